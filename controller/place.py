"""One tier of one engine: what it calls its blocks, and how many there are."""

from collections import Counter
from collections.abc import Iterable

from controller.events import Tier
from controller.names import Names, Tally

#: Names that are kept apart while a place is doubtful: some 1 MiB.
MOST_APART = 1 << 14
#: Answers on their way when a loss is found out.
ON_THEIR_WAY = 16


class Place:
    """One tier of one engine; the shared store is one of the engine called ``""``."""

    __slots__ = ("bit", "blocks", "copies", "excused", "names", "since", "sizes", "tier", "worker")

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
        self.since: set[int] | None = None
        """While it is doubtful whether the rest is still there: names of what came since."""
        self.excused = 0
        """How many answers may still miss what was told again since its loss was found out: they
        were on their way then."""

    def came(self, names: Iterable[int]) -> None:
        """These have come; when so many have without a sign of loss, nothing was lost."""
        if self.since is not None:
            self.since.update(names)
            if len(self.since) > MOST_APART:
                self.since = None

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
        self.since = None
        self.excused = 0

    def __repr__(self) -> str:
        return f"<Place {self.worker} {self.tier.name} {self.blocks} blocks>"
