"""Token ids sent with a request, so that the engine need not tokenize it again.

vLLM takes `kv_transfer_params.prompt_token_ids` instead of rendering a chat's messages (0.32,
renderers/online_renderer.py, `_reused_prompt_token_ids`).
"""

from array import array

import msgspec

from router.api.request import Request, with_field

#: Ids encoded at once; other threads can run in between.
_PIECE = 4 << 10

_encode = msgspec.json.encode


def may_have(request: Request) -> bool:
    """Return true if token ids may be sent with a chat.

    Not if the request has `kv_transfer_params` of its own, or their like; not with `echo`, which
    needs the messages; and not with tools and `tool_choice: none`, as engines may leave such tools
    out (`--exclude-tools-when-tool-choice-none`).
    """
    if request.engine_fields or bytes(request.echo):
        return False
    return not (request.tools and request.tool_choice == "none")


def written(ids: bytes) -> bytes:
    """Return `ids` (32 bits each, little-endian) as a JSON list; empty if there are none.

    A long prompt takes some milliseconds, so this is done once, where the prompt is made.
    """
    numbers = array("I", ids)
    pieces = [
        _encode(numbers[at : at + _PIECE].tolist())[1:-1] for at in range(0, len(numbers), _PIECE)
    ]
    return b"[%b]" % b",".join(pieces) if pieces else b""


def with_ids(body: bytes, listed: bytes) -> bytes:
    """Return a chat's body with its prompt's ids, as `written`; unchanged if there are none."""
    if not listed:
        return body
    return with_field(body, b'"kv_transfer_params":{"prompt_token_ids":%b}' % listed)
