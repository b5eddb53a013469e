"""The router's token ids sent along, so that the engine need not compute them again.

vLLM takes `kv_transfer_params.prompt_token_ids` in place of rendering a chat's messages (0.32,
renderers/online_renderer.py, `_reused_prompt_token_ids`). The body is otherwise untouched: the
field is written before its last brace.
"""

from array import array

import msgspec

#: What a request must not say itself: its own such parameters, or a wish that needs the messages.
_OWN = (b'"kv_transfer_params"', b'"echo"')
_BLANKS = b" \t\r\n"

_encode = msgspec.json.encode


def with_ids(body: bytes, ids: bytes) -> bytes:
    """Return a chat's body with its prompt's `ids` (32 bits each, lowest byte first).

    A body to which they cannot be added without changing what it asks for is returned as it is.
    """
    end = len(body.rstrip(_BLANKS)) - 1
    if not ids or end < 1 or body[end : end + 1] != b"}" or any(own in body for own in _OWN):
        return body
    if not body[:end].rstrip(_BLANKS + b"{"):  # an empty object
        return body
    numbers = _encode(array("I", ids).tolist())
    return b'%b,"kv_transfer_params":{"prompt_token_ids":%b}}' % (body[:end], numbers)
