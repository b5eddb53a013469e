"""What the fleet is asked for: how busy its workers are, and how much of what comes is held.

From both follow the price of a second of prefill, and how many turns follow a prompt.
"""

from math import exp
from typing import Final

#: A second of prefill delays everybody who comes while it lasts: about s / (1 - s) of them are
#: waiting, s being the share of workers with prefill to do (a queue's length at that load).
PRICE: Final = 3.0
#: Nearly idle or overrun, the price stays within these: so of two equally early answers the one
#: that computes less is taken, and siblings of a burst wait for their first.
LEAST_PRICE, MOST_PRICE, LEAST_IDLE = 0.09, 32.0, 0.05
#: Seconds over which both shares are smoothed.
SMOOTHED_S: Final = 45.0
#: Part of each prompt that is taken to be held until some have come, and how many prompts that
#: belief weighs as much as: all are cold at first, and one alone tells little.
REUSE, BELIEF = 0.5, 8.0
#: Who has nothing held anywhere goes where nobody waits, so prefill delays it only where all
#: workers have some: s ** workers, were they busy independently of each other. They are not, for
#: prompts come together, and what is long keeps several busy: so a part of that exponent.
FREE: Final = 0.25
#: How many of those who come are bound to one worker, for each part of prompts that is held: one
#: that is held by half waits for it as one that is held whole.
BOUND: Final = 1.6
#: Turns that follow a prompt, at most: r / (1 - r), r being the part of prompts that is held.
MOST_TURNS: Final = 10.0


class Demand:
    """Remembers two shares, smoothed. Every time is the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._busy = 0.0
        self.reuse = REUSE
        """The part of recent prompts that was held somewhere."""
        self._held = self._prompts = 0.0
        self._seen: float | None = None

    def arrived(self, busy: float, reuse: float, now: float) -> None:
        """A prompt is sent: this share of the workers is busy, and this part of it is held.

        The share is smoothed over time, the part over prompts, so a burst counts as many.
        """
        stays = 1.0 if self._seen is None else exp(min(0.0, self._seen - now) / SMOOTHED_S)
        self._busy += (1.0 - stays) * (busy - self._busy)
        self._held = stays * self._held + reuse
        self._prompts = stays * self._prompts + 1.0
        self.reuse = (self._held + BELIEF * REUSE) / (self._prompts + BELIEF)
        self._seen = now if self._seen is None else max(now, self._seen)

    def price(self, workers: int) -> float:
        """What a second of prefill costs those who come, in seconds, among so many workers."""
        busy, bound = self._busy, min(1.0, BOUND * self.reuse)
        all_busy: float = busy ** max(1.0, FREE * workers)
        met = bound * busy + (1.0 - bound) * all_busy
        return min(MOST_PRICE, LEAST_PRICE + PRICE * met / max(LEAST_IDLE, 1.0 - busy))

    def turns(self) -> float:
        """How often what is computed now will be asked for again, as usual."""
        reuse = self.reuse
        return min(MOST_TURNS, reuse / (1.0 - reuse)) if reuse < 1.0 else MOST_TURNS
