"""Exact knowledge: the product's cost over what the simulated caches hold, as KV events tell it.

What was placed and is still to be computed counts as held, as `kvaware` counts it until its events
arrive. Everything else is `prefixaware`: so their difference is what not knowing costs.

`served` is the strategy `kvaware` itself, asking a memory that knows every cache at once: so its
placements of the last seconds, which outlive what is evicted meanwhile, are part of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.routing_drive import Seat
from strategies.base import Candidate, Outcome, Prompt, WorkerView
from strategies.cost import held_tokens
from strategies.kvaware import KvAware, KvAwareOptions
from strategies.loads import Held
from strategies.prefixaware import PrefixAware, PrefixAwareOptions
from strategies.prefixtree import PrefixTree


class Exact(PrefixAware):
    """Knows every cache."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        super().__init__(PrefixAwareOptions())
        self._known = {seat.name: Known(seat) for seat in seats}
        self._tree = ExactTree(PrefixAwareOptions().memory, self._known)

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """It will hold these."""
        super().placed(prompt, worker, now)
        self._known[worker.name].coming.update(prompt.keys)

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Its cache tells from now on."""
        super().settled(prompt, candidate, outcome, now)
        coming = self._known[candidate.worker.name].coming
        for key in prompt.keys:
            coming[key] -= 1
            if not coming[key]:
                del coming[key]


class Known:
    """One worker's cache, and the blocks of what runs there."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.coming: Counter[int] = Counter()

    def held(self, keys: Sequence[int]) -> int:
        """How many of the first keys it holds or will hold."""
        blocks = self._seat.engine.cache.held(keys)
        while blocks < len(keys) and keys[blocks] in self.coming:
            blocks += 1
        return blocks


class ExactTree(PrefixTree):
    """In the place of what is believed, what is."""

    def __init__(self, limit_bytes: int, known: dict[str, Known]) -> None:
        super().__init__(limit_bytes)
        self._known = known

    def held(self, keys: Sequence[int]) -> dict[str, int]:
        """How many of the first blocks each worker holds, if any."""
        depths = {name: known.held(keys) for name, known in self._known.items()}
        return {name: blocks for name, blocks in depths.items() if blocks}


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
