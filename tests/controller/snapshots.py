"""Write an index to bytes and read it back, in one step each."""

from controller.events.source import Mark
from controller.index.index import Index
from controller.index.snapshot import read, taken, written


def dump(index: Index, marks: dict[str, Mark]) -> bytes:
    """Write an index, with the position of each engine's stream."""
    return written(taken(index.holdings, marks))


def restore(index: Index, data: bytes) -> dict[str, Mark]:
    """Fill an empty index; return the position of each stream. Raises BadSnapshot."""
    holdings, marks = read(data)
    index.adopt(holdings)
    return marks
