"""Workers that turn requests away are left alone for a moment, while others could answer.

503 and 429 are backpressure: they say nothing bad of a worker (`breaker.py`), but the quickest
refusal must not look like the quickest answer, or a full worker draws everything to itself: nothing
is booked there for long, so it always seems to have the least to do. So does one that does not know
the router's key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

#: Seconds of the first rest; each that follows soon is twice as long as the one before it.
FIRST_S = 0.1
#: Seconds of the longest.
LONGEST_S = 2.0

W = TypeVar("W")


@dataclass
class _Rest:
    since: float
    until: float
    span: float


class Rests:
    """Who rests. Every time is the caller's clock, in seconds. Holds no more than the workers."""

    def __init__(self) -> None:
        self._rests: dict[object, _Rest] = {}

    def __bool__(self) -> bool:
        """Whether `awake` needs to be asked."""
        return bool(self._rests)

    def refused(self, worker: object, now: float) -> None:
        """It is full."""
        rest = self._rests.get(worker)
        if rest is None:
            self._rests[worker] = _Rest(now, now + FIRST_S, FIRST_S)
        elif now >= rest.until:  # else it was asked before it rested, and this is no news
            rest.span = min(2 * rest.span, LONGEST_S)
            rest.since, rest.until = now, now + rest.span

    def answered(self, worker: object, asked: float) -> None:
        """It took on a request sent at `asked`: if that was since it refused, it has room."""
        rest = self._rests.get(worker)
        if rest is not None and asked >= rest.since:
            del self._rests[worker]

    def awake(self, workers: Sequence[W], now: float) -> Sequence[W]:
        """Those that do not rest; all of them if all do."""
        rests = self._rests
        found = [
            worker for worker in workers if (rest := rests.get(worker)) is None or now >= rest.until
        ]
        return found or workers

    def keep(self, workers: Sequence[object]) -> None:
        """Forget all others."""
        self._rests = {one: rest for one, rest in self._rests.items() if one in workers}
