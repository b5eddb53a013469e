"""Errors between the router and a worker, and what the client gets for them.

Each says whether the worker may have started the request: only one that certainly did not start is
tried on another worker.

What a worker's refusal says is missing at that worker, and perhaps not at others.
"""

import re
from enum import Enum
from typing import Final

import msgspec

from router.api.errors import DoorError, NoWorker, WorkerFailed, WorkerTooSlow
from router.http.headers import header
from router.runtime.quoting import shown
from router.upstream.head import Head


class WorkerError(Exception):
    """Something went wrong between the router and a worker."""

    kind = "error"
    """Metric label."""
    target = ""
    """Where the worker wanted to send the client, for the log only."""
    safe = False
    """Whether the request certainly did not start there, so that another worker may be asked."""


class Refused(WorkerError):
    """No connection could be made: nothing was sent."""

    kind = "connect"
    safe = True

    def __init__(self, message: str, *, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours
        """The router lacked descriptors or ports; the worker may be fine."""


class Stale(WorkerError):
    """A kept-alive connection was closed before any byte of an answer.

    The worker closed it as idle while the request was on its way (RFC 9112 section 9.5). If it has
    started the request after all, the close has made it stop.
    """

    kind = "stale"
    safe = True


class Gone(WorkerError):
    """The worker closed a connection in the middle of a request."""

    kind = "closed"


class Garbled(WorkerError):
    """The worker's answer is not HTTP."""

    kind = "garbled"


class Redirected(WorkerError):
    """The worker answered with a redirect."""

    kind = "redirect"

    def __init__(self, head: Head) -> None:
        super().__init__(f"answered with a redirect ({head.status}), which is not followed")
        self.target = shown(header(head.headers, b"location").decode("latin-1"), 200)


class Silent(WorkerError):
    """The worker sent nothing for longer than the timeout."""

    kind = "timeout"


def answer_for(error: WorkerError, worker: str) -> DoorError:
    """Translate a worker's error to the one that the client gets."""
    if isinstance(error, Refused):
        return NoWorker("No worker could be reached; please try again.")
    if isinstance(error, Silent):
        return WorkerTooSlow(f"Worker {worker} {error}.")
    return WorkerFailed(f"Worker {worker} {error}.")


class Missing(Enum):
    """What a worker has not got, so that it certainly did not start."""

    MODEL = "model"
    PATH = "path"
    TEMPLATE = "template"
    """A chat template, without which no chat is possible."""
    LENGTH = "length"
    """The context is too short."""
    MEDIA = "media"
    """It takes no images, say."""


class _Error(msgspec.Struct):
    message: str = ""


class _Said(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)
    message: str = ""
    """As in older versions of vLLM."""
    detail: str = ""
    """As in FastAPI."""


_decode = msgspec.json.Decoder(_Said).decode
#: FastAPI's words for a path that it does not serve; vLLM puts them into an error of its own.
_NO_PATH: Final = "Not Found"
#: Of a model that does not do what a path is for (vLLM).
_NO_TASK: Final = "The model does not support "
#: What a 400 says: first as vLLM does (vllm/renderers, vllm/multimodal/processing/context.py), then
#: as transformers and SGLang do.
_UNABLE: Final = {
    Missing.TEMPLATE: re.compile("default chat template is no longer|chat_template is not set"),
    Missing.LENGTH: re.compile("maximum context length|longer than the model's context length"),
    Missing.MEDIA: re.compile(r"^At most 0 \w+\(s\) may be provided|is not a multimodal model"),
}
#: The statuses that may say so.
BAD, NOT_THERE, NOT_IMPLEMENTED = 400, 404, 501


def missing(status: int, body: bytes) -> Missing | None:
    """Return what is missing by an answer's body; None if it is anything else, as a response.

    The words for a model are those of `check_model` in vllm/entrypoints/openai/models/serving.py.
    """
    try:
        said = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    message = said.error.message or said.message or said.detail
    if status == BAD:
        return next((what for what, words in _UNABLE.items() if words.search(message)), None)
    if status == NOT_IMPLEMENTED:
        return Missing.PATH if message.startswith(_NO_TASK) else None
    if message == _NO_PATH:
        return Missing.PATH
    gone = message.startswith("The model ") and message.endswith(" does not exist.")
    return Missing.MODEL if gone else None
