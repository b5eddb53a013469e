"""The router's token ids sent along, so that the engine need not compute them again.

vLLM takes `kv_transfer_params.prompt_token_ids` in place of rendering a chat's messages (0.32,
renderers/online_renderer.py, `_reused_prompt_token_ids`).
"""

from array import array

import msgspec

from router.added import with_field
from router.openai import Request

#: Ids written at once: in between, other threads have their turn.
_PIECE = 4 << 10

_encode = msgspec.json.encode


def may_have(request: Request) -> bool:
    """Whether ids may go along with a chat.

    Not if it says itself what they would replace, its own such parameters, however that is spelled,
    or has a wish that needs the messages; nor if the engine may leave its tools out, as with
    `--exclude-tools-when-tool-choice-none`.
    """
    told = request.kv_transfer_params, request.echo
    return not any(map(bytes, told)) and not (request.tools and request.tool_choice == "none")


def written(ids: bytes) -> bytes:
    """Return `ids` (32 bits each, lowest byte first) as a list in JSON; nothing if there are none.

    A long prompt's take some milliseconds: it is done where the prompt is made, and once.
    """
    numbers = array("I", ids)
    pieces = [
        _encode(numbers[at : at + _PIECE].tolist())[1:-1] for at in range(0, len(numbers), _PIECE)
    ]
    return b"[%b]" % b",".join(pieces) if pieces else b""


def with_ids(body: bytes, listed: bytes) -> bytes:
    """Return a chat's body with its prompt's ids, as `written`; as it is if there are none."""
    if not listed:
        return body
    return with_field(body, b'"kv_transfer_params":{"prompt_token_ids":%b}' % listed)
