"""Recent placements, in two prefix trees, the older of which is dropped at regular intervals."""

from collections.abc import Sequence
from typing import NamedTuple

from strategies.prefixtree import Placement, PrefixTree


class Sent(NamedTuple):
    """The record of one prompt."""

    tree: PrefixTree
    placement: Placement


class Recent:
    """Keeps placements for at least `seconds` seconds, and at most twice as long."""

    def __init__(self, limit_bytes: int, seconds: float) -> None:
        self._limit = limit_bytes // 2
        self._seconds = seconds
        self._young = PrefixTree(self._limit)
        self._old = PrefixTree(self._limit)
        self._since = 0.0

    def insert(self, keys: Sequence[int], worker: str, now: float) -> Sent:
        """Record that `worker` was sent the prompt with these keys; to be settled once."""
        self._turn(now)
        return Sent(self._young, self._young.insert(keys, worker))

    def held(self, keys: Sequence[int], now: float) -> dict[str, int]:
        """Return how many of the prompt's first blocks each worker was sent recently."""
        self._turn(now)
        found = self._old.held(keys)
        for worker, blocks in self._young.held(keys).items():
            found[worker] = max(blocks, found.get(worker, 0))
        return found

    def settle(self, sent: Sent, *, took: bool) -> None:
        """End the request; if the worker did not accept it (`took`), take the record back."""
        sent.tree.close(sent.placement)
        if not took:
            sent.tree.take_back(sent.placement)

    def forget(self, worker: str) -> None:
        """Drop everything the worker was sent."""
        self._young.forget(worker)
        self._old.forget(worker)

    def _turn(self, now: float) -> None:
        """Drop the older tree and start a new one, if it is time."""
        age = now - self._since
        if age < self._seconds:
            return
        self._old = self._young if age < 2 * self._seconds else PrefixTree(self._limit)
        self._young = PrefixTree(self._limit)
        self._since = now

    def __len__(self) -> int:
        """Return the number of blocks, counted once for each holder."""
        return len(self._young) + len(self._old)
