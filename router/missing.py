"""What a worker's 404 says is missing."""

from enum import Enum

import msgspec


class Missing(Enum):
    """What a worker has not got, so that it certainly did not start."""

    MODEL = "model"
    PATH = "path"


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
_NO_PATH = "Not Found"


def missing(body: bytes) -> Missing | None:
    """Return what is missing by the body of a 404; None if it is anything else, as a response.

    The words for a model are those of `check_model` in vllm/entrypoints/openai/models/serving.py.
    """
    try:
        said = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    message = said.error.message or said.message or said.detail
    if message == _NO_PATH:
        return Missing.PATH
    gone = message.startswith("The model ") and message.endswith(" does not exist.")
    return Missing.MODEL if gone else None
