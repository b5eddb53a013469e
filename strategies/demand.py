"""What the fleet is asked for: how busy its workers are, and how much of what comes is held.

From both follow the price of a second of prefill, and how many turns follow a prompt.
"""

from math import exp

#: A second of prefill delays everybody who comes while it lasts: about s / (1 - s) of them are
#: waiting, s being the share of workers with prefill to do (a queue's length at that load).
PRICE = 3.0
#: Nearly idle or overrun, the price stays within these: so of two equally early answers the one
#: that computes less is taken, and siblings of a burst wait for their first.
LEAST_PRICE, MOST_PRICE, LEAST_IDLE = 0.09, 32.0, 0.05
#: Seconds over which both shares are smoothed.
SMOOTHED_S = 45.0
#: Part of each prompt that is taken to be held until some have come: all are cold at first.
REUSE = 0.5
#: Who has nothing held anywhere goes where nobody waits, so prefill delays it only where all
#: workers have some: s ** (workers / 4) is near the chance that one of so many queues is joined
#: (Erlang's C: 0.06, 0.27, 0.46 for eight workers at 0.5, 0.7, 0.8).
FREE = 0.25
#: How many of those who come are bound to one worker, for each part of prompts that is held: one
#: that is held by half waits for it as one that is held whole.
BOUND = 2.0
#: Turns that follow a prompt, at most: r / (1 - r), r being the part of prompts that is held.
MOST_TURNS = 10.0


class Demand:
    """Remembers two shares, smoothed. Every time is the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._busy = 0.0
        self._reuse = REUSE
        self._seen = 0.0

    def look(self, busy: float, reuse: float, now: float) -> None:
        """Note that this share of the workers is busy, and this part of a prompt is held."""
        if now > self._seen:
            weight = 1.0 - exp((self._seen - now) / SMOOTHED_S)
            self._busy += weight * (busy - self._busy)
            self._reuse += weight * (reuse - self._reuse)
            self._seen = now

    def price(self, workers: int) -> float:
        """What a second of prefill costs those who come, in seconds, among so many workers."""
        busy, bound = self._busy, min(1.0, BOUND * self._reuse)
        all_busy: float = busy ** max(1.0, FREE * workers)
        met = bound * busy + (1.0 - bound) * all_busy
        return min(MOST_PRICE, LEAST_PRICE + PRICE * met / max(LEAST_IDLE, 1.0 - busy))

    def turns(self) -> float:
        """How often what is computed now will be asked for again, as usual."""
        reuse = self._reuse
        return min(MOST_TURNS, reuse / (1.0 - reuse)) if reuse < 1.0 else MOST_TURNS
