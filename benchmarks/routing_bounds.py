"""Two bounds: one infinite cache that all workers share, first come first served or shortest first.

No policy over caches of their own can hit more. They are not strict bounds on time, as they still
choose workers by what is queued there.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Struct

from benchmarks.routing_drive import Seat
from benchmarks.routing_peers import Peer
from simulator.strides import StrideCache
from strategies.base import Candidate, Cost, Decision, Prompt, WorkerView
from strategies.load import Load


class SharedCache(StrideCache):
    """A worker's room, and the keys that anyone has ever computed."""

    def __init__(self, room: int, known: set[int]) -> None:
        super().__init__(room, room)
        self._known = known

    def held(self, keys: Sequence[int], limit: int | None = None) -> int:
        """How many of the first keys anyone has computed."""
        low, high = 0, len(keys) if limit is None else min(limit, len(keys))
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in self._known:
                low = middle
            else:
                high = middle - 1
        return low

    def name(self, keys: Sequence[int]) -> None:
        """They are everybody's now."""
        super().name(keys)
        self._known.update(keys)


class Shared(Peer):
    """First come first served: whoever has the least prefill queued, the true pace known."""

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        known: set[int] = set()
        for seat in seats:
            seat.engine.cache = SharedCache(seat.engine.cache.room, known)

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Compare what is queued; the prompt costs the same everywhere."""
        first = self.seats[0].engine
        held = first.cache.held(prompt.keys, (prompt.tokens - 1) // first.block_tokens)
        held *= first.block_tokens
        prefill = first.profile.prefill_seconds(prompt.tokens - held, held)
        waits = [seat.load.wait(now) for seat in self.seats]
        best = self.least([wait + 1e-3 * seat.load.in_flight for wait, seat in self._beside(waits)])
        cost = Cost(wait=waits[self.seats.index(best)], prefill=prefill)
        return Decision([Candidate(best, cost, held)], "bound")

    def _beside(self, waits: Sequence[float]) -> list[tuple[float, Seat]]:
        return list(zip(waits, self.seats, strict=True))


class Ticket(Struct):
    """A request that is held."""

    item: Any
    prompt: Prompt


class Shortest:
    """Requests held until a worker has no prefill left: then the shortest goes first.

    It has the methods of the product's late binding, which the drive calls.
    """

    #: Of those held, the oldest that are compared.
    LOOK = 256

    def __init__(self) -> None:
        self._held: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._held)

    def must_hold(self, decision: Decision) -> bool:
        """Whether the best one is still computing a prompt."""
        return decision.candidates[0].cost.wait > 0.0

    def enter(self, item: object, prompt: Prompt, decision: Decision, now: float) -> Ticket:
        """Keep it."""
        ticket = Ticket(item, prompt)
        self._held.append(ticket)
        return ticket

    def release(
        self, rank: Callable[[Prompt], Decision], now: float, loads: Collection[Load]
    ) -> tuple[Ticket, Decision] | None:
        """Give out the shortest, if a worker is free."""
        if not self._held or self.must_hold(rank(self._held[0].prompt)):
            return None
        ranked = [(rank(ticket.prompt), ticket) for ticket in self._held[: self.LOOK]]
        decision, best = min(ranked, key=lambda one: one[0].candidates[0].cost.prefill)
        self._held.remove(best)
        return best, decision
