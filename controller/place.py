"""One tier of one engine: what it calls its blocks, and how many there are."""

from collections import Counter
from collections.abc import Iterable, Sequence

from controller.events import Tier
from controller.names import Names

#: Names that are kept apart while a place is doubtful: some 1 MiB.
MOST_APART = 1 << 14


class Place:
    """One tier of one engine; the shared store is one of the engine called ``""``."""

    __slots__ = ("bit", "blocks", "copies", "names", "since", "sizes", "tier", "worker")

    def __init__(self, worker: str, tier: Tier, bit: int) -> None:
        self.worker = worker
        self.tier = tier
        self.bit = bit
        self.names = Names()
        self.copies: dict[int, int] = {}
        """Of blocks that are there more than once, how many more; by reference."""
        self.blocks = 0
        self.sizes: Counter[int] = Counter()
        """And how many of each size, in tokens."""
        self.since: set[int] | None = None
        """While it is doubtful whether the rest is still there: names of what came since."""

    def came(self, names: Iterable[int]) -> None:
        """These have come; when so many have without a sign of loss, nothing was lost."""
        if self.since is not None:
            self.since.update(names)
            if len(self.since) > MOST_APART:
                self.since = None

    def told_again(self, names: Sequence[int]) -> bool:
        """Whether these are nothing but blocks that it had before it became doubtful."""
        since, get = self.since, self.names.get
        return since is not None and all(n not in since and get(n) is not None for n in names)

    @property
    def usual(self) -> int:
        """The size of most of its blocks; 0 where it has none."""
        return max(self.sizes, key=self.sizes.__getitem__, default=0)

    def empty(self) -> None:
        """It holds nothing any more."""
        self.names = Names()
        self.copies.clear()
        self.sizes.clear()
        self.blocks = 0
        self.since = None

    def __repr__(self) -> str:
        return f"<Place {self.worker} {self.tier.name} {self.blocks} blocks>"
