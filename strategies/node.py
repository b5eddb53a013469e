"""A run of blocks in the prefix tree, up to where prompts part."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from strategies.shadow import Entry


class Node:
    """A run of blocks: those who hold any of it hold all that lies before it."""

    __slots__ = ("at", "children", "ends", "entries", "keys", "mask", "parent", "unit", "users")

    def __init__(
        self, parent: "Node | None", keys: "array[int]", at: int, ends: Sequence[int], unit: float
    ) -> None:
        self.parent = parent
        self.keys = keys
        self.at = at
        """Blocks before it."""
        self.ends = ends
        self.unit = unit
        """Tokens of a unit of `ends`."""
        self.children: dict[int, Node] = {}
        """By their first key."""
        self.entries: dict[int, Entry] = {}
        """By the bit of the worker."""
        self.mask = 0
        """The bits of `entries`."""
        self.users = 0
        """Requests under way with it, wherever; those of all of the tree at the root."""

    def tokens(self, first: int, last: int) -> float:
        """Tokens of its blocks from `first` up to `last`; negative backwards."""
        return (self.ends[self.at + last] - self.ends[self.at + first]) * self.unit

    def blocks(self, held: int, tokens: float) -> int:
        """How many of the last of `held` blocks make at least so many tokens; at least one."""
        ends, at = self.ends, self.at
        target = ends[at + held] - tokens / self.unit
        kept = bisect_left(ends, target, at, at + held)
        while kept > at and ends[kept] > target:
            kept -= 1
        return max(1, at + held - kept)

    def leave(self) -> None:
        """Nobody holds it any more."""
        if self.parent is not None:
            self.parent.children.pop(self.keys[0], None)
