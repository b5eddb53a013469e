"""Exact knowledge: the strategy `kvaware` over what the simulated caches hold, known at once.

What was placed in the last seconds counts as held, as it does until its events are there. How
`prefixaware` differs from this is what not knowing costs.
"""

from collections.abc import Mapping, Sequence

from benchmarks.routing_drive import Seat
from strategies.base import Outcome, Prompt
from strategies.cost import held_tokens
from strategies.kvaware import KvAware, KvAwareOptions
from strategies.loads import Held


def served(seats: Sequence[Seat]) -> KvAware:
    """Make the strategy, with stock settings and this memory."""
    made = KvAware(KvAwareOptions())
    made.memory = Caches(seats)
    return made


class Caches:
    """What every worker holds, as its events would have it; a `strategies.kvaware.Memory`."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = {seat.name: seat for seat in seats}

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """Look into the caches."""
        found = {name: self._seats[name].engine.cache.held(prompt.keys) for name in workers}
        return {name: Held(held_tokens(prompt, blocks)) for name, blocks in found.items() if blocks}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """Never any."""
        del worker, prompt
        return ""

    def heard(self, worker: str) -> int:
        """No events: the caches themselves are looked at."""
        return 0

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """Nothing can be learned."""

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """Nothing is believed."""

    def forget(self, worker: str) -> None:
        """Its cache tells."""
