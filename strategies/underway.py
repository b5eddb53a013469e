"""What is on its way to workers, or has just ended there: their own word on it is still to come."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from strategies.prefixtree import Placement, PrefixTree

#: Requests that have just ended; more count no longer.
MOST_ENDED = 1 << 16


class _Ended(NamedTuple):
    until: float
    placement: Placement


class UnderWay:
    """Prefixes of requests under way by worker, and of those that ended at most `seconds` ago; no
    more than `limit_bytes` of them.

    An engine cannot evict what a running request uses. When it has ended, its events have come, but
    for some milliseconds; from then on only they tell what is left of it.
    """

    def __init__(self, limit_bytes: int, seconds: float) -> None:
        self._tree = PrefixTree(limit_bytes)
        self._seconds = seconds
        self._ended: deque[_Ended] = deque()

    def insert(self, keys: Sequence[int], worker: str, now: float) -> Placement:
        """`worker` is sent the prompt with these keys; to be settled once."""
        self._let_go(now)
        return self._tree.insert(keys, worker)

    def held(self, keys: Sequence[int], now: float) -> dict[str, int]:
        """Return how many of the first blocks each worker has by them."""
        self._let_go(now)
        return self._tree.held(keys)

    def settle(self, placement: Placement, now: float, *, took: bool) -> None:
        """It has ended there; if the worker did not take it on, it was never sent."""
        if not took:
            self._tree.leave(placement)
            return
        self._ended.append(_Ended(now + self._seconds, placement))
        if len(self._ended) > MOST_ENDED:
            self._tree.leave(self._ended.popleft().placement)

    def forget(self, worker: str) -> None:
        """Drop what it was sent."""
        self._tree.forget(worker)

    def _let_go(self, now: float) -> None:
        ended = self._ended
        while ended and ended[0].until <= now:
            self._tree.leave(ended.popleft().placement)

    def __len__(self) -> int:
        """Blocks, counted once for each holder."""
        return len(self._tree)
