"""What a worker's refusal says is missing at that worker, and perhaps not at others."""

import re
from enum import Enum
from typing import Final

import msgspec


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
