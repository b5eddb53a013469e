"""Two bounds with one infinite cache for all workers: first come first served, shortest first.

No policy for separate caches can have a higher hit rate. They are not strict bounds on time,
because they still choose workers by what is queued there.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Struct

from benchmarks.routing.fleet import Seat
from benchmarks.routing.peers import Peer
from simulator.stride_cache import StrideCache
from strategies.base import Candidate, Cost, Decision, Prompt, WorkerView
from strategies.load import Load


class SharedCache(StrideCache):
    """A worker's room for running requests, and the keys that any worker has ever computed."""

    def __init__(self, room: int, known: set[int]) -> None:
        super().__init__(room, room)
        self._known = known

    def held(self, keys: Sequence[int], limit: int | None = None) -> int:
        """Return how many of `keys`, from the first without a gap, any worker has computed."""
        low, high = 0, len(keys) if limit is None else min(limit, len(keys))
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in self._known:
                low = middle
            else:
                high = middle - 1
        return low

    def name(self, keys: Sequence[int]) -> None:
        """Register computed blocks for all workers."""
        super().name(keys)
        self._known.update(keys)


class Shared(Peer):
    """First come, first served, on the worker with the least queued prefill at its true pace."""

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        known: set[int] = set()
        for seat in seats:
            seat.engine.cache = SharedCache(seat.engine.cache.room, known)

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Compare queued prefill only, because the prompt costs the same everywhere."""
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
    """A held request."""

    item: Any
    prompt: Prompt


class Shortest:
    """Holds requests until a worker has no prefill left, then releases the shortest first.

    It has the methods of the router's own holding of requests, which the drive calls.
    """

    #: How many of the held requests, the oldest ones, are compared.
    LOOK = 256

    def __init__(self) -> None:
        self._held: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._held)

    def must_hold(self, prompt: Prompt, decision: Decision, now: float) -> bool:
        """Whether the best worker is still busy with prefill."""
        del prompt, now
        return decision.candidates[0].cost.wait > 0.0

    def enter(self, item: object, prompt: Prompt, decision: Decision, now: float) -> Ticket:
        """Hold a request."""
        ticket = Ticket(item, prompt)
        self._held.append(ticket)
        return ticket

    def release(
        self, rank: Callable[[Prompt], Decision], now: float, loads: Collection[Load]
    ) -> tuple[Ticket, Decision] | None:
        """Return the shortest request with its decision if a worker is free, else None."""
        if not self._held:
            return None
        oldest = self._held[0].prompt
        if self.must_hold(oldest, rank(oldest), now):
            return None
        ranked = [(rank(ticket.prompt), ticket) for ticket in self._held[: self.LOOK]]
        decision, best = min(ranked, key=lambda one: one[0].candidates[0].cost.prefill)
        self._held.remove(best)
        return best, decision
