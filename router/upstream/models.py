"""The fields that the router reads from an answer that is one JSON document."""

from typing import Any

import msgspec


class Answered(msgspec.Struct):
    """The fields with token counts."""

    usage: dict[str, Any] | None = None
    kv_transfer_params: Any = None
    sglext: Any = None


#: Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError.
decode = msgspec.json.Decoder(Answered).decode
