"""What the simulated workers hold, on every tier, for `kvaware`: as KV events tell it, at once."""

from collections.abc import Mapping, Sequence

from benchmarks.routing_drive import Seat
from simulator.store import SharedStore
from strategies.base import Outcome, Prompt
from strategies.loads import Held


class Exact:
    """`strategies.kvaware.Memory`, over the caches themselves."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = {seat.name: seat for seat in seats}

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """As the protocol has it."""
        found = {name: _held(self._seats[name], prompt) for name in workers}
        return {name: held for name, held in found.items() if held.total}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """Nobody is doubted here."""
        del worker, prompt
        return ""

    def heard(self, worker: str) -> int:  # noqa: ARG002
        """No events: the caches themselves are looked at."""
        return 0

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """Nothing to be learned."""

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """The caches themselves are looked at."""

    def forget(self, worker: str) -> None:
        """Its caches tell."""


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
