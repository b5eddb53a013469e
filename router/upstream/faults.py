"""Finds what an answer says that its status does not.

One of status 200 may be an error, have one as an event, or have nothing in it. An error may say
what is missing at that worker, and perhaps not at others.

vLLM and SGLang send the status before they know how an answer ends, so errors come as events
(vLLM `entrypoints/openai/chat_completion/serving.py`, `create_streaming_error_response`).
"""

import re
from enum import Enum
from typing import Any, Final

import msgspec

from router.upstream.models import decode_error

#: The label of an answer with nothing in it.
EMPTY: Final = "empty"
#: The label of an error that came after the status, by the worker's own fault.
EVENT: Final = "event"
#: The label of a stream that ended in the middle, though properly for HTTP.
CLOSED: Final = "closed"
#: Nothing is wrong.
NO_FAULT: Final = (200, "")
#: How an error begins: by its first field, as OpenAI, older vLLM and Anthropic write it.
_OBJECT: Final = rb'\s*\{\s*"(?:error"\s*:\s*[{"]|(?:object|type)"\s*:\s*"error")'
#: An answer in one piece that is an error.
_BODY: Final = re.compile(_OBJECT)
#: Line starts that only an error has: within JSON, line ends are escaped.
_ERRORS: Final = re.compile(
    rb"^(?:event: ?(?:error|response\.failed)\r?\ndata: ?|data: ?(?=" + _OBJECT + rb"))(.*)$",
    re.MULTILINE,
)
#: How a stream begins that is an error alone.
_BEGINS: Final = re.compile(rb"event: ?error|data: ?" + _OBJECT)
#: A line of a stream that says nothing: a comment, or that it ends.
_BLANK: Final = re.compile(rb"(?::.*|data: ?\[DONE\])?")
#: What a chat or completion says: a field with a value, other than the role.
_SAYS: Final = re.compile(
    rb'"(?:delta|message)"\s*:\s*\{[^}]*?"(?!role")\w+"\s*:\s*(?!\s|""|null|\[\])'
    rb'|"text"\s*:\s*"[^"]'
)
#: One that says nothing has these all the same.
_SILENT: Final = re.compile(rb'"(?:delta|message)"\s*:\s*\{|"text"\s*:\s*"')
#: How a stream of these tells that an answer is whole, but for `[DONE]`.
_ENDS: Final = re.compile(rb'"finish_reason"\s*:\s*"|"done"\s*:\s*true')
#: Types of errors that are the request's fault: Anthropic's, OpenAI's and vLLM's.
_REQUEST: Final = re.compile(
    "invalid|bad_?request|not_?found|unprocessable|too_large", re.IGNORECASE
)


def begins(data: bytes) -> bool:
    """Whether a stream that begins with `data` begins with an error event."""
    return _BEGINS.match(data) is not None


def fault(end: bytes, *, stream: bool, whole: bool, writes: bool) -> tuple[int, str]:
    """Return the status that an answer should have had, and a label; 200 if nothing is wrong.

    `end` is the last part of it, or the `whole`. If the model `writes`, chats or completions, what
    it says is looked for as well.
    """
    if not end:
        return 502, EMPTY
    if not stream:
        if end.find(b'"error"') >= 0 and _BODY.match(end):  # (`in` tries a number first)
            return _status(end), EVENT
    else:
        last = _last_events(end)
        errs = last.find(b"error") >= 0 or last.find(b"failed") >= 0
        match = _ERRORS.search(last) if errs else None
        if match is not None:
            return _status(match[1]), EVENT
    if stream and end.find(b"{") < 0 and all(map(_BLANK.fullmatch, end.splitlines())):
        return 502, EMPTY
    return _unwritten(end, stream=stream, whole=whole) if writes else NO_FAULT


def _last_events(end: bytes) -> bytes:
    """Return the last two events: after an error there is `[DONE]` at most."""
    return b"\n\n".join(end.rstrip().rsplit(b"\n\n", 2)[-2:])


def _unwritten(end: bytes, *, stream: bool, whole: bool) -> tuple[int, str]:
    """Return what is wrong with a chat or completion that says nothing, or not all."""
    if whole and not _SAYS.search(end) and _SILENT.search(end):
        return 502, EMPTY
    if stream and end.rfind(b"[DONE]") < 0 and not _ENDS.search(end) and _SILENT.search(end):
        return 502, CLOSED
    return NO_FAULT


def _status(data: bytes) -> int:
    """Return the status that an error event tells; 500 if it tells none."""
    try:
        answer: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 500
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(answer, dict) and not isinstance(error, dict):
        error = answer
    if not isinstance(error, dict):
        return 500
    code = error.get("code")
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:
        return code
    kind = error.get("type")
    return 400 if isinstance(kind, str) and _REQUEST.search(kind) else 500


class MissingAtWorker(Enum):
    """What a worker has not got, so that it certainly did not start."""

    MODEL = "model"
    PATH = "path"
    TEMPLATE = "template"
    """A chat template, without which no chat is possible."""
    LENGTH = "length"
    """The context is too short."""
    MEDIA = "media"
    """It takes no images, say."""


#: FastAPI's words for a path that it does not serve; vLLM puts them into an error of its own.
_NO_PATH: Final = "Not Found"
#: Of a model that does not do what a path is for (vLLM).
_NO_TASK: Final = "The model does not support "
#: What a 400 says: first as vLLM does (vllm/renderers, vllm/multimodal/processing/context.py), then
#: as transformers and SGLang do.
_UNABLE: Final = {
    MissingAtWorker.TEMPLATE: re.compile(
        "default chat template is no longer|chat_template is not set"
    ),
    MissingAtWorker.LENGTH: re.compile(
        "maximum context length|longer than the model's context length"
    ),
    MissingAtWorker.MEDIA: re.compile(
        r"^At most 0 \w+\(s\) may be provided|is not a multimodal model"
    ),
}
#: The statuses that may say so.
BAD_REQUEST, NOT_FOUND, NOT_IMPLEMENTED = 400, 404, 501


def missing_at_worker(status: int, body: bytes) -> MissingAtWorker | None:
    """Return what is missing by an answer's body; None if it is anything else, as a response.

    The words for a model are those of `check_model` in vllm/entrypoints/openai/models/serving.py.
    """
    try:
        answer = decode_error(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    message = answer.error.message or answer.message or answer.detail
    if status == BAD_REQUEST:
        return next((what for what, words in _UNABLE.items() if words.search(message)), None)
    if status == NOT_IMPLEMENTED:
        return MissingAtWorker.PATH if message.startswith(_NO_TASK) else None
    if message == _NO_PATH:
        return MissingAtWorker.PATH
    gone = message.startswith("The model ") and message.endswith(" does not exist.")
    return MissingAtWorker.MODEL if gone else None
