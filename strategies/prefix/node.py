"""A node of the prefix tree: a run of blocks up to where prompts diverge."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from strategies.prefix.lru import CacheEntry


class Node:
    """A run of blocks; a worker that holds any of it holds everything before it as well."""

    __slots__ = ("at", "children", "ends", "entries", "keys", "mask", "parent", "unit", "users")

    def __init__(
        self, parent: "Node | None", keys: "array[int]", at: int, ends: Sequence[int], unit: float
    ) -> None:
        self.parent = parent
        self.keys = keys
        self.at = at
        """Number of blocks before it."""
        self.ends = ends
        self.unit = unit
        """Tokens per unit of `ends`."""
        self.children: dict[int, Node] = {}
        """Child nodes by their first key."""
        self.entries: dict[int, CacheEntry] = {}
        """What each worker holds of it, by the worker's bit."""
        self.mask = 0
        """The bits of all workers in `entries`."""
        self.users = 0
        """Requests with these blocks that run on any worker or are held in the router; at the root,
        all of them."""

    def tokens(self, first: int, last: int) -> float:
        """Return tokens in its blocks from `first` up to `last`; negative if `last` is smaller."""
        return (self.ends[self.at + last] - self.ends[self.at + first]) * self.unit

    def kept(self, held: int, tokens: float) -> int:
        """Return how many of its first `held` blocks are left if at least one, and `tokens`, go."""
        ends, at = self.ends, self.at
        target = ends[at + held] - tokens / self.unit
        kept = bisect_left(ends, target, at, at + held)
        while kept > at and ends[kept] > target:
            kept -= 1
        return min(held - 1, kept - at)

    def leave(self) -> None:
        """Remove it from its parent if no worker holds it any more."""
        if self.parent is not None and not self.mask:
            self.parent.children.pop(self.keys[0], None)


def count(node: "Node", requests: int) -> None:
    """Add to the number of requests with the blocks of `node` and of all before it."""
    at: Node | None = node
    while at is not None:
        at.users += requests
        at = at.parent
