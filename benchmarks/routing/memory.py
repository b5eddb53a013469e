"""The blocks that simulated workers hold on every tier, for `kvaware`, without event delay."""

from collections.abc import Mapping, Sequence

from benchmarks.routing.fleet import Seat
from simulator.store import SharedStore
from strategies.api import Outcome, Prompt
from strategies.cost.tiers import Held


class Exact:
    """A `strategies.policies.kv_aware.Memory` that reads the simulated caches directly."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = {seat.name: seat for seat in seats}

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """Look the prompt up in the caches."""
        found = {name: _held(self._seats[name], prompt) for name in workers}
        return {name: held for name, held in found.items() if held.total}

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
        """Do nothing: the caches themselves are read."""


def _held(seat: Seat, prompt: Prompt) -> Held:
    engine, keys = seat.engine, prompt.keys
    size = engine.block_tokens
    stop = (prompt.tokens - 1) // size
    at = gpu = engine.cache.held(keys, stop)
    tiers = engine.tiers
    if tiers is None:
        return Held(gpu * size)
    host, store = tiers.l1, tiers.store
    while at < stop and keys[at] in host:
        at += 1
    l1 = at - gpu
    l2 = store.peek(keys[at:stop]) if isinstance(store, SharedStore) else 0
    return Held(gpu * size, l1 * size, l2 * size)
