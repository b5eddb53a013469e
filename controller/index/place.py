"""One tier of one engine: the names of its blocks, and how many there are."""

from collections import Counter
from collections.abc import Iterable

from controller.events.decode import Tier
from controller.index.hash_table import Names, Tally

#: Most names of new blocks that are tracked while a place is doubtful: about 1 MiB.
MOST_APART = 1 << 14
#: Answers assumed to be in flight when a loss is found out.
ON_THEIR_WAY = 16


class Place:
    """One tier of one engine; the shared store is a tier of the engine ``""``."""

    __slots__ = ("bit", "blocks", "copies", "excused", "names", "since", "sizes", "tier", "worker")

    def __init__(self, worker: str, tier: Tier, bit: int, tally: Tally) -> None:
        """`tally` counts the names of all places."""
        self.worker = worker
        self.tier = tier
        self.bit = bit
        self.names = Names(tally)
        self.copies: dict[int, int] = {}
        """Number of extra copies of blocks that are there more than once, by reference."""
        self.blocks = 0
        self.sizes: Counter[int] = Counter()
        """Number of blocks by size in tokens."""
        self.since: set[int] | None = None
        """While its contents are doubtful, the names of blocks that came since the doubt arose, and
        are certain; None while nothing is doubtful."""
        self.excused = 0
        """How many more misses to ignore after a loss was found out: answers that were in flight
        then may miss blocks that have been announced again since."""

    def came(self, names: Iterable[int]) -> None:
        """Track new blocks while in doubt; after `MOST_APART` of them, the doubt is dropped."""
        if self.since is not None:
            self.since.update(names)
            if len(self.since) > MOST_APART:
                self.since = None

    @property
    def usual(self) -> int:
        """The most frequent block size in tokens; 0 if there are no blocks."""
        return max(self.sizes, key=self.sizes.__getitem__, default=0)

    def empty(self) -> None:
        """Drop everything it holds."""
        self.names.clear()
        self.copies.clear()
        self.sizes.clear()
        self.blocks = 0
        self.since = None
        self.excused = 0

    def __repr__(self) -> str:
        return f"<Place {self.worker} {self.tier.name} {self.blocks} blocks>"
