"""Recent demand: the share of workers busy with prefill, and the share of prompts that was held.

The price of a second of prefill and the expected number of later turns are derived from these.
"""

from math import exp
from typing import Final

#: A second of prefill delays every request that comes while it lasts. About s / (1 - s) are
#: waiting, where s is the share of workers with prefill to do (the queue length at that load).
PRICE: Final = 3.0
#: Bounds of the price in a nearly idle or overloaded fleet, and the least idle share assumed. Due
#: to the lower bound, of two equally early answers the one that computes less is taken, and
#: siblings in a burst wait for the first of them.
LEAST_PRICE, MOST_PRICE, LEAST_IDLE = 0.12, 32.0, 0.05
#: Time constant of the smoothing of both shares, in seconds.
SMOOTHED_S: Final = 45.0
#: Until that much time has passed, the busy share is an average since the start, as if the fleet
#: had been idle for so many seconds before. A cold start is the busiest time of all.
IDLE_S: Final = 1.5
#: Prior: the share of a prompt that is assumed to be held, and its weight in prompts. Without it,
#: the first prompts, which are all cold, would say too much.
REUSE, BELIEF = 0.5, 8.0
#: A prompt that no worker holds goes where there is no queue, so prefill delays it only if all
#: workers have some: chance s ** workers, if they were busy independently of each other. They are
#: not: prompts come in bursts, and long prompts keep several busy. So the exponent is reduced.
FREE: Final = 0.25
#: Share of requests that are bound to one worker, per share of prompts that is held: a prompt that
#: is half held waits for its worker just as one that is held in full.
BOUND: Final = 1.6
#: Upper bound of later turns per prompt, r / (1 - r), where r is the share of prompts that is held.
MOST_TURNS: Final = 10.0


class Demand:
    """Smooths the two shares. Every time is the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._busy = 0.0
        self._over_s = IDLE_S
        """How many seconds it is the average of."""
        self.reuse = REUSE
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
        self.reuse = (self._held + BELIEF * REUSE) / (self._prompts + BELIEF)
        self._seen = now if self._seen is None else max(now, self._seen)

    def price(self, workers: int) -> float:
        """Return what a second of prefill costs the requests that come next, in seconds."""
        busy, bound = self._busy, min(1.0, BOUND * self.reuse)
        all_busy: float = busy ** max(1.0, FREE * workers)
        met = bound * busy + (1.0 - bound) * all_busy
        return min(MOST_PRICE, LEAST_PRICE + PRICE * met / max(LEAST_IDLE, 1.0 - busy))

    def turns(self) -> float:
        """Return how often what is computed now can be expected to be asked for again."""
        reuse = self.reuse
        return min(MOST_TURNS, reuse / (1.0 - reuse)) if reuse < 1.0 else MOST_TURNS
