"""Recent demand: the share of workers busy with prefill, and the share of prompts that was held.

The price of a second of prefill and the expected number of later turns are derived from these.
"""

from math import exp
from typing import Final

from strategies.constants import BELIEF, IDLE_S, LEAST_PRICE, LEAST_REST, PRICE, SMOOTHED_S

_MOST: Final = 1.0 - LEAST_REST


class Demand:
    """Smooths the two shares. Every time is the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._busy = 0.0
        self._over_s = IDLE_S
        """How many seconds it is the average of."""
        self.reuse = 0.5
        """Share of recent prompts that some worker held."""
        self._held = self._prompts = 0.0
        self._seen: float | None = None

    def arrived(self, busy: float, reuse: float, now: float) -> None:
        """Record that a prompt was sent; the arguments are the two shares at that moment.

        `busy` is smoothed over time and `reuse` over prompts, so each prompt of a burst counts.
        """
        stays = 1.0 if self._seen is None else exp(min(0.0, self._seen - now) / SMOOTHED_S)
        more = (1.0 - stays) * SMOOTHED_S
        self._over_s = min(SMOOTHED_S, self._over_s + more)
        self._busy += more / self._over_s * (busy - self._busy)
        self._held = stays * self._held + reuse
        self._prompts = stays * self._prompts + 1.0
        self.reuse = (self._held + BELIEF / 2.0) / (self._prompts + BELIEF)
        self._seen = now if self._seen is None else max(now, self._seen)

    def price(self) -> float:
        """Return what a second of prefill costs the requests that come next, in seconds."""
        return LEAST_PRICE + PRICE * over_rest(self._busy)

    def turns(self) -> float:
        """Return how often what is computed now can be expected to be asked for again."""
        return over_rest(self.reuse)


def over_rest(share: float) -> float:
    """Return s / (1 - s): how many wait on average for what is in use for the share s of the time.

    Also how often what is asked for again with that chance is asked for again in all.
    """
    return share / (1.0 - share) if share < _MOST else _MOST / LEAST_REST
