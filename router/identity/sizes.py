"""How much a request may hold to be read, so that whoever reads it holds the interpreter briefly.

What decodes or writes JSON, in C, lets nobody else in until it has ended, in a thread too.
"""

from router.identity.unlike import Unlike

#: Objects and lists in a request; `ENTRIES` entries of lists or objects, or as many commas of
#: text, count as much as one. All of them together are read in some hundredths of a second.
THINGS, ENTRIES = 1 << 18, 4
#: Bytes that are looked at at once.
_SLICE = 1 << 20


def check_things(json: bytes) -> None:
    """Refuse what holds too many things, before it is decoded. Raises Unlike."""
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
