"""Finds what is wrong with an answer of status 200: it is an error, or has one as an event, or is
empty.

vLLM and SGLang send the status before they know how an answer ends, so errors come as events
(vLLM `entrypoints/openai/chat_completion/serving.py`, `create_streaming_error_response`).
"""

import re
from typing import Any, Final

import msgspec

#: The label of an answer with nothing in it.
EMPTY: Final = "empty"
#: The label of an error that came after the status, by the worker's own fault.
EVENT: Final = "event"
#: Nothing is wrong.
SOUND: Final = (200, "")
#: How a stream begins that is an error alone.
ERRORS: Final = (b'data: {"error":', b"event: error", b'data: {"object":"error"')
#: How an answer in one piece begins that is an error.
_BODIES: Final = (b'{"error":{', b'{"error": {', b'{"object":"error"')
_DONE: Final = b"data: [DONE]"
#: Line starts that only an error has: within JSON, line ends are escaped.
_ERRORS: Final = re.compile(
    rb"^(?:event: ?(?:error|response\.failed)\r?\ndata: ?"
    rb'|data: ?(?=\{ ?"(?:error"|object": ?"error")))(.*)$',
    re.MULTILINE,
)
#: Types of errors that are the request's fault: Anthropic's, OpenAI's and vLLM's.
_REQUEST: Final = re.compile(
    "invalid|bad_?request|not_?found|unprocessable|too_large", re.IGNORECASE
)


def flaw(end: bytes, *, stream: bool) -> tuple[int, str]:
    """Return the status that an answer should have had, and a label; 200 if nothing is wrong.

    `end` is the last part of it, or all.
    """
    if not end:
        return 502, EMPTY
    if not stream:
        return (_status(end), EVENT) if end.startswith(_BODIES) else SOUND
    if b'"error"' in end or b"event: error" in end or b"response.failed" in end:
        found = _ERRORS.search(end)
        if found is not None:
            return _status(found[1]), EVENT
    if len(end) < 64 and end.strip() in {b"", _DONE}:
        return 502, EMPTY
    return SOUND


def _status(data: bytes) -> int:
    """Return the status that an error event tells; 500 if it tells none."""
    try:
        said: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 500
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(said, dict) and not isinstance(error, dict):
        error = said
    if not isinstance(error, dict):
        return 500
    code = error.get("code")
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:
        return code
    kind = error.get("type")
    return 400 if isinstance(kind, str) and _REQUEST.search(kind) else 500
