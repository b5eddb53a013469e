"""Write an index to bytes and read it back, in one step each."""

from controller.index.block_events import Mark
from controller.index.index import Index
from controller.index.snapshot import copy_index, decode_snapshot, encode_snapshot


def dump(index: Index, marks: dict[str, Mark]) -> bytes:
    """Write an index, with the position of each engine's stream."""
    return encode_snapshot(copy_index(index.holdings, marks))


def restore(index: Index, data: bytes) -> dict[str, Mark]:
    """Fill an empty index; return the position of each stream. Raises BadSnapshot."""
    holdings, marks = decode_snapshot(data)
    index.adopt(holdings)
    return marks
