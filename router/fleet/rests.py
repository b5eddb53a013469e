"""Lets workers that refuse requests back off for a moment, while others can answer.

503 and 429 are back pressure and no fault of the worker (`breaker.py`). But a quick refusal must
not look like a quick answer: nothing stays booked on a full worker for long, so it would always
seem the least busy and attract every request. The same goes for a worker that rejects the router's
own key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

#: Seconds of the first rest; each further one, without an answer in between, is twice as long.
FIRST_S = 0.1
#: Seconds of the longest rest.
LONGEST_S = 2.0

W = TypeVar("W")


@dataclass
class Rest:
    """Why a worker rests, and until when."""

    since: float
    until: float
    span: float
    why: str = ""
    full: bool = False
    """It said that it is full."""
    here: int = 0
    """How many requests from here it had then."""


class Rests:
    """The workers that rest. All times are in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._rests: dict[object, Rest] = {}

    def __bool__(self) -> bool:
        """Whether any worker refused lately; else nothing else needs to be asked here."""
        return bool(self._rests)

    def refused(self, worker: object, now: float) -> Rest:
        """Start or extend the rest of a worker that refused a request; return it."""
        rest = self._rests.get(worker)
        if rest is None:
            rest = self._rests[worker] = Rest(now, now + FIRST_S, FIRST_S)
        elif now >= rest.until:  # otherwise it was asked before this rest: no new information
            rest.span = min(2 * rest.span, LONGEST_S)
            rest.since, rest.until = now, now + rest.span
        return rest

    def answered(self, worker: object, asked: float) -> None:
        """End the rest of a worker that accepted a request sent at `asked`, after it refused."""
        rest = self._rests.get(worker)
        if rest is not None and asked >= rest.since:
            del self._rests[worker]

    def most(self, worker: object, now: float) -> int | None:
        """Return how many requests a worker may have that said that it is full; None: any number.

        That is fewer than it had then, until its rest is over. Then it may have one more than they
        were, whose answer tells whether it takes others; and as an answer may take minutes, but a
        refusal does not, another one each time that as long passes without one.
        """
        rest = self._rests.get(worker)
        if rest is None or not rest.full:
            return None
        return rest.here + (now >= rest.until) * (1 + int((now - rest.until) / rest.span))

    def awake(self, workers: Sequence[W], now: float) -> Sequence[W]:
        """Return the workers that do not rest, or all of them if all rest."""
        rests = self._rests
        found = [
            worker for worker in workers if (rest := rests.get(worker)) is None or now >= rest.until
        ]
        return found or workers

    def keep(self, workers: Sequence[object]) -> None:
        """Forget all workers but these."""
        self._rests = {one: rest for one, rest in self._rests.items() if one in workers}
