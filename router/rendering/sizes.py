"""Limits on a request's content, so that decoding it holds the GIL only briefly.

Decoding and encoding JSON in C blocks all other threads until it ends, even if done in a thread.
"""

from router.rendering.errors import Unlike

#: Most objects and lists in a request. `ENTRIES` entries of lists or objects, or as many commas in
#: text, count as one. The maximum takes some hundredths of a second to read.
THINGS, ENTRIES = 1 << 18, 4
#: Bytes scanned at a time.
_SLICE = 1 << 20


def check_things(json: bytes) -> None:
    """Raise Unlike if a body holds too many objects, lists and entries, before it is decoded."""
    if len(json) <= THINGS:
        return
    things = 0.0
    for start in range(0, len(json), _SLICE):
        objects, lists, commas = (
            json.count(mark, start, start + _SLICE) for mark in (b"{", b"[", b",")
        )
        things += objects + lists + commas / ENTRIES
        if things > THINGS:
            raise Unlike("too long")
