"""A field that the router adds to a body; all else of it is sent byte for byte as it came."""

_BLANKS = b" \t\r\n"


def with_field(body: bytes, field: bytes) -> bytes:
    """Return a JSON object with a field (`"name":value`) before its last brace.

    Of two fields of one name Python's `json`, which engines read bodies with, takes the last. A
    body to which none can be added without changing what it asks for is returned as it is: an
    empty object, or what is none.
    """
    end = len(body.rstrip(_BLANKS)) - 1
    if end < 1 or body[end : end + 1] != b"}":
        return body
    if not body[:end].rstrip(_BLANKS + b"{"):
        return body
    return b"%b,%b}" % (body[:end], field)
