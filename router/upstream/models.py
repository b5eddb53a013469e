"""The fields that the router reads from an answer that is one JSON document."""

from typing import Any

import msgspec


class Answered(msgspec.Struct):
    """The fields with token counts."""

    usage: dict[str, Any] | None = None
    kv_transfer_params: Any = None
    sglext: Any = None


class ErrorObject(msgspec.Struct):
    """An error as OpenAI has it."""

    message: str = ""


class ErrorAnswer(msgspec.Struct):
    """The message of an error, wherever it is."""

    error: ErrorObject = msgspec.field(default_factory=ErrorObject)
    message: str = ""
    """As in older versions of vLLM."""
    detail: str = ""
    """As in FastAPI."""


#: Both raise msgspec.DecodeError, UnicodeDecodeError or RecursionError.
decode = msgspec.json.Decoder(Answered).decode
decode_error = msgspec.json.Decoder(ErrorAnswer).decode
