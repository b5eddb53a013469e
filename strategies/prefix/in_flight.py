"""Prompts that are running or have just ended, whose KV events may not have arrived yet."""

from collections import deque
from collections.abc import Sequence

from strategies.prefix.tree import Placement, PrefixTree

#: Most requests kept after their end; the oldest are dropped.
MAX_ENDED = 1 << 16


class InFlight:
    """Prefixes of running requests by worker, and of those that ended at most `seconds` ago.

    Takes at most `limit_bytes`. An engine cannot evict what a running request uses. Within
    milliseconds of its end all its events have arrived; from then on only events tell what is left.
    """

    def __init__(self, limit_bytes: int, seconds: float) -> None:
        self._tree = PrefixTree(limit_bytes)
        self._seconds = seconds
        self._ended: deque[tuple[float, Placement]] = deque()
        """What has ended, each with the time until which it counts."""

    def insert(self, keys: Sequence[int], worker: str, now: float) -> Placement:
        """Record that `worker` is sent the prompt with these keys; to be settled once."""
        self._let_go(now)
        return self._tree.insert(keys, worker)

    def held(self, keys: Sequence[int], now: float) -> dict[str, int]:
        """Return how many of the prompt's first blocks each worker has from these requests."""
        self._let_go(now)
        return self._tree.held(keys)

    def settle(self, placement: Placement, now: float, *, took: bool) -> None:
        """End the request; if the worker did not accept it (`took`), drop it at once."""
        if not took:
            self._tree.leave(placement)
            return
        self._ended.append((now + self._seconds, placement))
        if len(self._ended) > MAX_ENDED:
            self._tree.leave(self._ended.popleft()[1])

    def forget(self, worker: str) -> None:
        """Drop everything the worker was sent."""
        self._tree.forget(worker)

    def _let_go(self, now: float) -> None:
        ended = self._ended
        while ended and ended[0][0] <= now:
            self._tree.leave(ended.popleft()[1])

    def __len__(self) -> int:
        """Return the number of blocks, counted once for each holder."""
        return len(self._tree)
