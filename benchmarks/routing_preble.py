"""Preble's rule."""

from collections import Counter, deque
from collections.abc import Sequence
from statistics import median

from benchmarks.routing_fleet import Seat
from benchmarks.routing_rules import Knowing
from simulator.strides import BLOCK_TOKENS
from strategies.base import Candidate, Outcome, Prompt, WorkerView

#: Seconds of history that make up a worker's load.
WINDOW_S = 180.0
#: The busiest worker gives requests to the idlest once it has this many times as much load.
APART = 1.5
#: Requests per worker before that begins, and answers per worker whose pace is remembered.
WARM, REMEMBERED = 50, 200


class Share:
    """What one worker was given lately."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.prefill_s = 0.0
        self.answer_tokens = 0
        self.uses: Counter[int] = Counter()
        """How many of its requests use each block."""
        self.paces: deque[float] = deque([seat.engine.profile.t0_s], REMEMBERED)
        """Seconds per token of its latest answers."""
        self._given: deque[tuple[float, float, int, Sequence[int]]] = deque()

    def give(self, now: float, prefill_s: float, answer_tokens: int, keys: Sequence[int]) -> None:
        """Add a request."""
        self._given.append((now, prefill_s, answer_tokens, keys))
        self._count(1, prefill_s, answer_tokens, keys)

    def load(self, now: float) -> float:
        """Seconds of prefill and decoding of the requests in the window."""
        while self._given and self._given[0][0] < now - WINDOW_S:
            self._count(-1, *self._given.popleft()[1:])
        return self.prefill_s + self.answer_tokens * median(self.paces)

    def lost(self, blocks: int) -> float:
        """Seconds to compute again what so many new blocks push out, once per request using it."""
        block_s = self.seat.engine.profile.prefill_seconds(BLOCK_TOKENS, 0)
        return block_s * sum(self.uses[key] for key in self.seat.engine.cache.leaving(blocks))

    def _count(self, sign: int, prefill_s: float, answer_tokens: int, keys: Sequence[int]) -> None:
        self.prefill_s += sign * prefill_s
        self.answer_tokens += sign * answer_tokens
        for key in keys:
            self.uses[key] += sign
            if not self.uses[key]:
                del self.uses[key]


class Preble(Knowing):
    """Preble's E2: exploit a prefix if more of the prompt is cached than not, else explore.

    ICLR'25 (arXiv 2407.00023) section 3.2, and `multi_node/global_scheduler_with_time.py` of
    github.com/WukLab/preble. Exploiting takes the least loaded of those that hold most; exploring
    the least sum of load (prefill and decoding given in three minutes), of what would be evicted
    times its uses, and of the prompt's own prefill. Requests to exploit the busiest worker go to
    the idlest while that has 1.5 times less load. True prefill times replace its regression.
    Left out: adding a worker to a prefix whose queueing time doubles, which this rebalancing does
    too, and its priorities within the engine.
    """

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self._shares = {seat.name: Share(seat) for seat in seats}
        self._given = 0
        self._at: dict[int, float] = {}

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Exploit or explore."""
        held = self.held(prompt, now)
        loads = [self._shares[seat.name].load(now) for seat in self.seats]
        most = max(held)
        if most <= prompt.tokens - most:
            return self.least(self._costs(prompt, held, loads))
        best = self.least(
            [load if kept == most else float("inf") for load, kept in zip(loads, held, strict=True)]
        )
        busiest = loads[self.seats.index(best)] == max(loads) > APART * min(loads)
        return self.least(loads) if busiest and self._given >= WARM * len(loads) else best

    def _costs(
        self, prompt: Prompt, held: Sequence[int], loads: Sequence[float]
    ) -> Sequence[float]:
        needed = -(-(prompt.tokens + prompt.answer_tokens) // BLOCK_TOKENS)
        return [
            load
            + self._shares[seat.name].lost(needed - kept // BLOCK_TOKENS)
            + seat.engine.profile.prefill_seconds(prompt.tokens - kept, kept)
            for seat, kept, load in zip(self.seats, held, loads, strict=True)
        ]

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Add the request to the worker's load."""
        super().placed(prompt, worker, now)
        share = self._shares[worker.name]
        kept = prompt.tokens - self._own[id(prompt)]
        prefill_s = share.seat.engine.profile.prefill_seconds(prompt.tokens - kept, kept)
        share.give(now, prefill_s, prompt.answer_tokens, prompt.keys)
        self._given += 1
        self._at[id(prompt)] = now

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Learn how fast the worker decodes."""
        took_s = now - self._at.pop(id(prompt)) - (outcome.first_byte_s or 0.0)
        if outcome.ok and outcome.answer_tokens and outcome.answer_tokens > 1:
            pace = took_s / (outcome.answer_tokens - 1)
            self._shares[candidate.worker.name].paces.append(pace)
