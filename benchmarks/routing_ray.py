"""Ray Serve's rule for LLMs."""

from collections.abc import Sequence
from math import inf

from benchmarks.routing_fleet import Seat
from benchmarks.routing_rules import Placements
from simulator.strides import BLOCK_TOKENS
from strategies.base import Prompt


class RayPrefix(Placements):
    """Ray Serve's `PrefixCacheAffinityRouter`: the longest match, whatever the load by default.

    `python/ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py`. Of the
    workers with the longest match, the one with the shortest queue; if that covers less than a
    tenth of the prompt, those that were sent the least text. While queues differ by more than
    `imbalanced_threshold` (infinite by default), the shorter of two drawn at random instead.
    """

    def __init__(self, seats: Sequence[Seat], seed: int = 0, *, apart: float = inf) -> None:
        super().__init__(seats, seed)
        self._apart = apart

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Check the balance of queues, then match."""
        loads = [seat.load.in_flight for seat in self.seats]
        if max(loads) - min(loads) > self._apart:
            two = self.chance.sample(self.seats, min(2, len(self.seats)))
            return min(two, key=lambda seat: seat.load.in_flight)
        depths = self.depths(prompt)
        if max(depths) * BLOCK_TOKENS < 0.1 * prompt.tokens:
            depths = [-len(self.sent[seat.name]) for seat in self.seats]
        best = max(depths)
        return self.least(
            [load if depth == best else inf for load, depth in zip(loads, depths, strict=True)]
        )
