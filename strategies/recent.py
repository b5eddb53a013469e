"""What was sent where in the last seconds: two prefix trees, of which the older one is dropped."""

from collections.abc import Sequence

from strategies.prefixtree import Placement, PrefixTree


class Recent:
    """Placements of at least the last `seconds` seconds, at most twice as old."""

    def __init__(self, limit_bytes: int, seconds: float) -> None:
        self._limit = limit_bytes // 2
        self._seconds = seconds
        self._young = PrefixTree(self._limit)
        self._old = PrefixTree(self._limit)
        self._since = 0.0
        self._last: dict[str, Placement] = {}
        """The last placement on each worker, as long as it is in the younger tree."""

    def insert(self, keys: Sequence[int], worker: str, now: float) -> None:
        """`worker` was sent the prompt with these keys."""
        self._turn(now)
        self._last[worker] = self._young.insert(keys, worker)

    def held(self, keys: Sequence[int], now: float) -> dict[str, int]:
        """Return how many of the first blocks each worker was sent lately."""
        self._turn(now)
        found = self._old.held(keys)
        for worker, blocks in self._young.held(keys).items():
            found[worker] = max(blocks, found.get(worker, 0))
        return found

    def take_back(self, keys: Sequence[int], worker: str) -> None:
        """It refused the prompt; nothing happens if others were sent there since."""
        placement = self._last.get(worker)
        if placement is not None:
            self._young.take_back(keys, worker, placement)

    def forget(self, worker: str) -> None:
        """Drop what it was sent."""
        self._young.forget(worker)
        self._old.forget(worker)
        self._last.pop(worker, None)

    def _turn(self, now: float) -> None:
        """The younger tree is the older one now, if it is time."""
        age = now - self._since
        if age < self._seconds:
            return
        self._old = self._young if age < 2 * self._seconds else PrefixTree(self._limit)
        self._young = PrefixTree(self._limit)
        self._since = now
        self._last.clear()

    def __len__(self) -> int:
        """Blocks, counted once for each holder."""
        return len(self._young) + len(self._old)
