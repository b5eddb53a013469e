"""One tier of one engine: what it calls its blocks, and how many there are."""

from collections import Counter

from controller.events import Tier
from controller.names import Names, Tally


class Place:
    """One tier of one engine; the shared store is one of the engine called ``""``."""

    __slots__ = ("bit", "blocks", "copies", "names", "sizes", "tier", "worker")

    def __init__(self, worker: str, tier: Tier, bit: int, tally: Tally) -> None:
        """`tally` counts the names of all places."""
        self.worker = worker
        self.tier = tier
        self.bit = bit
        self.names = Names(tally)
        self.copies: dict[int, int] = {}
        """Of blocks that are there more than once, how many more; by reference."""
        self.blocks = 0
        self.sizes: Counter[int] = Counter()
        """And how many of each size, in tokens."""

    @property
    def usual(self) -> int:
        """The size of most of its blocks; 0 where it has none."""
        return max(self.sizes, key=self.sizes.__getitem__, default=0)

    def empty(self) -> None:
        """It holds nothing any more."""
        self.names.clear()
        self.copies.clear()
        self.sizes.clear()
        self.blocks = 0

    def __repr__(self) -> str:
        return f"<Place {self.worker} {self.tier.name} {self.blocks} blocks>"
