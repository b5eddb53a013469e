"""Adds a field to a request body; everything else in it stays byte for byte as received."""

_BLANKS = b" \t\r\n"


def with_field(body: bytes, field: bytes) -> bytes:
    """Return a JSON object with a field (`"name":value`) inserted before its last brace.

    If the name occurs twice then, Python's `json`, with which engines read bodies, takes the last.
    An empty object, or a body that is not an object, is returned unchanged: nothing can be added
    without changing what it asks for.
    """
    end = len(body.rstrip(_BLANKS)) - 1
    if end < 1 or body[end : end + 1] != b"}":
        return body
    if not body[:end].rstrip(_BLANKS + b"{"):
        return body
    return b"%b,%b}" % (body[:end], field)
