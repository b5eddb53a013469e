"""The strategy `kvaware` with exact knowledge of the simulated caches, without any delay.

Recent placements also count as held, as they do in the router until their events arrive. The
difference between `prefixaware` and this is the cost of not knowing the caches.
"""

from collections.abc import Mapping, Sequence

from benchmarks.routing_fleet import Seat
from strategies.base import Outcome, Prompt
from strategies.cost import held_tokens
from strategies.kvaware import KvAware, KvAwareOptions
from strategies.loads import Held


def served(seats: Sequence[Seat]) -> KvAware:
    """Create the strategy with default settings and `Caches` as its memory."""
    made = KvAware(KvAwareOptions())
    made.memory = Caches(seats)
    return made


class Caches:
    """The blocks every worker holds, read from its cache; a `strategies.kvaware.Memory`."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = {seat.name: seat for seat in seats}

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """Look the prompt up in the caches."""
        found = {name: self._seats[name].engine.cache.held(prompt.keys) for name in workers}
        return {name: Held(held_tokens(prompt, blocks)) for name, blocks in found.items() if blocks}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """No doubt: the caches are exact."""
        del worker, prompt
        return ""

    def heard(self, worker: str) -> int:
        """Always 0: there are no events, the caches are read directly."""
        return 0

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """Do nothing: there is nothing to learn."""

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """Do nothing: there are no beliefs to correct."""

    def forget(self, worker: str) -> None:
        """Do nothing: the cache itself is read."""
