"""An index to bytes and back, in one step each."""

from controller.index import Index
from controller.picture import taken
from controller.snapshot import read, written
from controller.source import Mark


def dump(index: Index, marks: dict[str, Mark]) -> bytes:
    """Write down an index, and how far each engine's stream is."""
    return written(taken(index.holdings, marks))


def restore(index: Index, data: bytes) -> dict[str, Mark]:
    """Fill an empty index; return how far each stream was. Raises BadSnapshot."""
    holdings, marks = read(data)
    index.adopt(holdings)
    return marks
