"""One prompt's path in the prefix tree: who holds it, who uses it, how much of it is wanted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strategies.prefix.lru import Shadow
from strategies.prefix.node import Node


class WantedCopies(NamedTuple):
    """The start of a prompt of which one more copy is wanted on the workers."""

    blocks: int = 0
    """How many of the prompt's first blocks are wanted."""
    tokens: float = 0.0
    """Their tokens, each weighted by how much of a copy is missing (at most one)."""


NOT_WANTED = WantedCopies()


class Match:
    """The nodes along one prompt. Valid until the tree changes."""

    __slots__ = ("_at", "_by_bit", "_path", "_shadows")

    def __init__(
        self,
        path: Sequence[Node],
        at: int,
        shadows: Mapping[str, Shadow],
        by_bit: Mapping[int, Shadow],
    ) -> None:
        """Take the root and the nodes with the prompt's first `at` blocks, all that are known."""
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
        """Return how many of the prompt's tokens running requests on `worker` already use."""
        shadow, tokens = self._shadows.get(worker), 0.0
        if shadow is None:
            return tokens
        for node in self._path[1:]:
            entry = node.entries.get(shadow.bit)
            if entry is None or not entry.users:
                break
            tokens += node.tokens(0, min(entry.held, self._at - node.at))
        return tokens

    def wanted(self, workers: int) -> WantedCopies:
        """Return the start of the prompt of which another copy is wanted, among `workers` workers.

        A prefix should lie on as large a share of the workers as it has of the running requests;
        otherwise its holders get more than their share. The first request with the prefix does not
        count, as a single request shares nothing.
        """
        blocks, tokens, under_way = 0, 0.0, self._path[0].users
        for node in self._path[1:]:
            others = node.users - 1
            lacking = others * workers / under_way - node.mask.bit_count() if others > 0 else 0.0
            if lacking <= 0.0:
                break
            blocks = min(node.at + len(node.keys), self._at)
            tokens += min(1.0, lacking) * node.tokens(0, blocks - node.at)
        return WantedCopies(blocks, tokens)
