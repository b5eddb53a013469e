"""A long text in JSON, decoded in slices: one call for all of it would hold the GIL too long."""

import re

import msgspec

from router.api.messages import UNEXPECTED
from router.runtime.slices import BYTES, rest

#: A place where a JSON string may be cut: not inside an escape, the longest of which is a pair of
#: surrogates of twelve characters, nor inside a character of UTF-8.
_PLACE = re.compile(rb"[^\\]{12}(?![\x80-\xbf])")
#: Bytes in which a place is looked for.
_NEAR = 4096

_text = msgspec.json.Decoder(str).decode


def encoded(raw: msgspec.Raw) -> list[bytes] | None:
    """Return a text as UTF-8, in pieces; None if `raw` is none, or is not valid as a whole."""
    given = bytes(raw)
    if given[:1] != b'"':
        return None
    pieces, start, end = list[bytes](), 1, len(given) - 1
    try:
        while start < end:
            cut = _cut(given, start + BYTES, end)
            pieces.append(_text(b'"%b"' % given[start:cut]).encode())
            start = cut
            rest()
    except UNEXPECTED:
        return None
    return pieces


def _cut(given: bytes, wanted: int, end: int) -> int:
    """Return where the piece ends that should end at `wanted`."""
    while wanted < end:
        found = _PLACE.search(given, wanted, min(wanted + _NEAR, end))
        if found is not None and found.end() < end:
            return found.end()
        wanted += BYTES
    return end
