"""One prompt in the prefix tree: who holds it, who uses it, and how much of it is wanted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strategies.node import Node
from strategies.shadow import Shadow


class Wanted(NamedTuple):
    """What is asked for more than it is held."""

    blocks: int = 0
    """First blocks of the prompt of which that is true."""
    tokens: float = 0.0
    """Their tokens, each as far as one more copy is wanted."""


NOT_WANTED = Wanted()


class Match:
    """Good until the tree is changed."""

    __slots__ = ("_at", "_by_bit", "_path", "_shadows")

    def __init__(
        self,
        path: Sequence[Node],
        at: int,
        shadows: Mapping[str, Shadow],
        by_bit: Mapping[int, Shadow],
    ) -> None:
        """`path` are the nodes that have any of the prompt's blocks, the first `at` of which are
        there."""
        self._path = path
        self._at = at
        self._shadows = shadows
        self._by_bit = by_bit

    def held(self) -> dict[str, int]:
        """Return, for each worker that holds any, how many of the first blocks it holds."""
        depths: dict[str, int] = {}
        below = 0
        for node in reversed(self._path):
            mask = node.mask & ~below
            while mask:
                bit = mask & -mask
                mask ^= bit
                shadow = self._by_bit[bit]
                if not shadow.leaving:
                    depths[shadow.worker] = min(node.at + node.entries[bit].held, self._at)
            below = node.mask
        return depths

    def in_use(self, worker: str) -> float:
        """Tokens of it that requests under way there have, whoever sends them."""
        shadow, tokens = self._shadows.get(worker), 0.0
        if shadow is None:
            return tokens
        for node in self._path:
            entry = node.entries.get(shadow.bit)
            if entry is None or not entry.users:
                break
            tokens += node.tokens(0, min(entry.held, self._at - node.at))
        return tokens

    def wanted(self, workers: int) -> Wanted:
        """Return what is asked for more than it is held, among so many workers.

        What a part of those under way have in common is to lie on that part of the workers: else
        those who hold it get more than their share. One request alone has nothing in common.
        """
        blocks, tokens = 0, 0.0
        if not self._path:
            return NOT_WANTED
        root = self._path[0].parent
        under_way = root.users if root is not None else 0
        for node in self._path:
            others = node.users - 1
            lacking = others * workers / under_way - node.mask.bit_count() if others > 0 else 0.0
            if lacking <= 0.0:
                break
            blocks = min(node.at + len(node.keys), self._at)
            tokens += min(1.0, lacking) * node.tokens(0, blocks - node.at)
        return Wanted(blocks, tokens)
