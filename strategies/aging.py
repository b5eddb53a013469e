"""Aging: a second of waiting makes up for some seconds of prefill, so that no long prompt starves.

The shortest remaining prefill goes first (`held.py`, `preemption.py`), and one that has waited
counts as shorter. If much waits, that would undo the order: all of it has waited, so what came
first would go first, and every request would wait for as long as the queue is. So the more requests
have been held for each worker of late, the less their waiting counts. The longest then wait longer,
and the others hardly at all. They are held until `held.LONGEST_S` at most, but as long again
whenever they are preempted after that, which the router bounds (`limits.preemptions`).
"""

from collections.abc import Collection
from math import exp
from typing import Final

from strategies.load import AGING, Load

#: As many held requests for each worker are usual.
USUAL: Final = 1.0
#: Time constant for how many are held, in seconds: a burst is not more than a fleet can do.
SMOOTHED_S: Final = 10.0


class Crowd:
    """How many requests are held, smoothed."""

    __slots__ = ("_at", "held")

    def __init__(self) -> None:
        self.held = self._at = 0.0

    def note(self, held: int, now: float) -> None:
        """Note how many have been held since the last time this was called."""
        stays = exp(min(0.0, self._at - now) / SMOOTHED_S)
        self.held = stays * self.held + (1.0 - stays) * held
        self._at = max(now, self._at)


def aging(held: float, loads: Collection[Load]) -> float:
    """Return the seconds of prefill that a second of waiting makes up for, on workers with `loads`.

    `held` requests wait in this process; in all processes there are taken to be more, in proportion
    to what is in flight. If this one has nothing in flight, they are taken to be all.
    """
    sent, here = 0, 0
    for load in loads:
        sent += load.in_flight
        here += load.here
    most = USUAL * len(loads) * (here / sent if here else 1.0)
    return AGING * (most / held if held > most else 1.0)
