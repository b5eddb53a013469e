"""Cache-aware peer policies, each from its published rule; exact knowledge replaces KV events.

Sources are named in each docstring. Where a rule counts blocks, tokens are counted here. That
changes no comparison, because all terms of a sum have the same unit.

Some hold requests while the whole fleet is saturated: a decision says whether it is, and one queue
(`Parked`) serves all of them. Where their gauges lag in practice, engines are seen as they are; and
what workers hold is looked up anew for each request that leaves the queue.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from statistics import fmean
from typing import Any

from msgspec import Struct

from benchmarks.routing.drive import Seat
from benchmarks.routing.peers import Peer, depth_of
from benchmarks.routing.strides import BLOCK_TOKENS
from strategies.api import FREE, Candidate, Cost, Decision, Outcome, Prompt, WorkerView
from strategies.cost.load import Load
from strategies.hold.queue import Wait

#: The reason of a decision that no worker has room for.
SATURATED = "saturated"
#: Seconds for which placements count as held, for peers that have such an option; as in llm-d.
AHEAD_S = 2.0


class Knowing(Peer):
    """Base of policies with exact knowledge of every cache and of the prefill that they placed."""

    #: Seconds for which placements count as held before their events arrive; 0: not at all.
    ahead_s = 0.0

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self._ahead = {seat.name: dict[int, float]() for seat in seats}
        self.pending = dict.fromkeys((seat.name for seat in seats), 0)
        """Uncached tokens of the prompts sent to each worker that had no first token yet."""
        self._own: dict[int, int] = {}
        self._held: list[int] = []

    def held(self, prompt: Prompt, now: float) -> list[int]:
        """Tokens of the prompt that each seat has cached; the last token is always computed."""
        limit = (prompt.tokens - 1) // BLOCK_TOKENS
        keys = prompt.keys[:limit]
        self._held = []
        for seat in self.seats:
            blocks, ahead = seat.engine.cache.held(keys), self._ahead[seat.name]
            while blocks < len(keys) and ahead.get(keys[blocks], 0.0) > now:
                blocks += 1
            self._held.append(blocks * BLOCK_TOKENS)
        return self._held

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Add the prompt's uncached tokens to the worker's pending ones."""
        if self.ahead_s:
            self._ahead[worker.name].update(dict.fromkeys(prompt.keys, now + self.ahead_s))
        place = next(n for n, seat in enumerate(self.seats) if seat is worker)
        own = prompt.tokens - self._held[place]  # held as of the choice, which was just made
        self._own[id(prompt)] = own
        self.pending[worker.name] += own

    def computed(self, prompt: Prompt, worker: WorkerView) -> None:
        """Remove the prompt's tokens from the pending ones."""
        self.pending[worker.name] -= self._own.pop(id(prompt), 0)


class Conductor(Peer):
    """Mooncake's: least predicted time to first token (FAST'25 section 4), from the true pace."""

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Add queued prefill and this prompt's prefill, in seconds."""
        limit = (prompt.tokens - 1) // BLOCK_TOKENS
        costs, totals = [], []
        for seat in self.seats:
            held = seat.engine.cache.held(prompt.keys, limit) * BLOCK_TOKENS
            prefill = seat.engine.profile.prefill_seconds(prompt.tokens - held, held)
            cost = Cost(wait=seat.load.wait(now), prefill=prefill)
            costs.append(Candidate(seat, cost, held))
            totals.append(cost.wait + cost.prefill)
        best = self.least(totals)
        return Decision([costs[self.seats.index(best)]], "peer")


class VllmKvAware(Knowing):
    """vllm-router's `kv_aware`: (new + active prefill tokens) x (active requests + 1)."""

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Score as in `policies/kv_aware.rs`."""
        return [
            (prompt.tokens - held + self.pending[seat.name]) * (seat.load.in_flight + 1)
            for seat, held in zip(self.seats, self.held(prompt, now), strict=True)
        ]


class Holding(Knowing):
    """Base of rules with a queue: each decision says whether the fleet is saturated."""

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Return all seats with what they hold, the chosen one first."""
        best = self.choose(prompt, now)
        every = [
            Candidate(seat, FREE, held) for seat, held in zip(self.seats, self._held, strict=True)
        ]
        every.sort(key=lambda one: one.worker is not best)
        return Decision(every, SATURATED if self.saturated() else "peer")

    def saturated(self) -> bool:
        """Whether requests have to wait, wherever they would go."""
        raise NotImplementedError


class Dynamo(Holding):
    """NVIDIA Dynamo's: weight x prefill blocks + decode blocks; shared active blocks count once.

    `lib/kv-router/src/scheduling/selector/default.rs`; without overlap decay, the default. With
    `--router-predicted-ttl-secs` (off by default) placements of the last seconds count as held: for
    each worker the larger match of both indexes is used.

    Its queue is on while every worker has more than `threshold` times `max_num_batched_tokens`
    under way, in uncached tokens of prompts without a first token (`scheduling/queue.rs`, and
    `worker_is_busy` in `policy_config.rs`).
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        seed: int = 0,
        *,
        weight: float,
        predicted_s: float = 0.0,
        threshold: float = 0.0,
    ) -> None:
        super().__init__(seats, seed)
        self._weight = weight
        self._threshold = threshold
        self.ahead_s = predicted_s
        self._active: dict[str, dict[int, int]] = {seat.name: {} for seat in seats}

    def saturated(self) -> bool:
        """Compare the pending prefill of each worker with the threshold."""
        return all(
            self.pending[seat.name] > self._threshold * seat.engine.profile.max_num_batched_tokens
            for seat in self.seats
        )

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Add prefill and decode blocks, in tokens."""
        scores = []
        for seat, held in zip(self.seats, self.held(prompt, now), strict=True):
            active = self._active[seat.name]
            prefill = self.pending[seat.name] + prompt.tokens - held
            new = len(prompt.keys) + 1 - depth_of(prompt.keys, active)
            scores.append(self._weight * prefill + (len(active) + new) * BLOCK_TOKENS)
        return scores

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Mark the prompt's blocks as active on the worker."""
        super().placed(prompt, worker, now)
        active = self._active[worker.name]
        for key in prompt.keys:
            active[key] = active.get(key, 0) + 1

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Unmark the prompt's active blocks."""
        active = self._active[candidate.worker.name]
        for key in prompt.keys:
            active[key] -= 1
            if not active[key]:
                del active[key]


class Scorers(Holding):
    """llm-d's scorers with its flow control: prefix share, waiting requests, KV use, at 3:2:2.

    As in `guides/flow-control`, with `speculativeIndexing` (off by default): placements of the last
    two seconds count as held (`pkg/kvcache`). Each score is between 0 and 1; the largest sum wins.
    """

    ahead_s = AHEAD_S

    def saturated(self) -> bool:
        """Ask the utilization detector."""
        return full(self.seats)

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Return the negated weighted sums, because the least score wins here."""
        waiting = [len(seat.engine.waiting) for seat in self.seats]
        most, spread = max(waiting), max(waiting) - min(waiting)
        return [
            -(
                3 * held / prompt.tokens
                + 2 * ((most - waits) / spread if spread else 1.0)
                + 2 * (1.0 - seat.engine.usage)
            )
            for seat, held, waits in zip(self.seats, self.held(prompt, now), waiting, strict=True)
        ]


def full(seats: Sequence[Seat]) -> bool:
    """Whether llm-d's flow control holds requests, by its default `utilization-detector`.

    The mean over workers of the larger of waiting requests / 5 and KV use / 0.8 is at least 1
    (`pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization`).
    """
    return fmean(max(len(s.engine.waiting) / 5, s.engine.usage / 0.8) for s in seats) >= 1.0


class Affinity(Knowing):
    """llm-d's recipe of 2026: the prefix affinity filter, then the fewest tokens in flight.

    The filter keeps the workers that hold 80 % of the prompt, unless the best of them is over 18 s
    of prefill behind the best worker (`scheduling/filter/prefixcacheaffinity`). `token-load-scorer`
    decides among the rest. llm-d counts in the engine's blocks, usually of 16 tokens, while blocks
    here have 512. A match is therefore extended to just before the next block.
    """

    ahead_s = AHEAD_S

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Filter the seats, then compare their pending prefill."""
        waits = [
            self.pending[seat.name] / seat.engine.profile.prefill_tokens_per_s
            for seat in self.seats
        ]
        held = self.held(prompt, now)
        near = [kept > 0 and kept + BLOCK_TOKENS - 1 >= 0.8 * prompt.tokens for kept in held]
        if any(near) and not all(near):
            best = min(wait for wait, kept in zip(waits, near, strict=True) if kept)
            if best - min(waits) <= 18.0:
                waits = [wait if kept else inf for wait, kept in zip(waits, near, strict=True)]
        return self.least(waits)


class Ticket(Struct):
    """A held request."""

    item: Any
    prompt: Prompt


def first_come(prompt: Prompt, decision: Decision) -> float:
    """Return the same for all: they go in order of arrival."""
    del prompt, decision
    return 0.0


def shortest(prompt: Prompt, decision: Decision) -> float:
    """Return the tokens that even the best holder lacks (WSPT in Dynamo's `policy.rs`)."""
    return max(1, prompt.tokens - max(one.held_tokens for one in decision.candidates))


class Parked:
    """The queue: the least by `order` first, as of its arrival; nobody bypasses it.

    Nothing is refused, and nothing expires.
    """

    def __init__(self, order: Callable[[Prompt, Decision], float] = first_come) -> None:
        self._order = order
        self._numbers = count()
        self._held: list[tuple[float, int, Ticket]] = []

    def __len__(self) -> int:
        return len(self._held)

    def must_hold(self, decision: Decision, now: float) -> bool:
        """Whether the fleet is saturated, or others wait already."""
        del now
        return bool(self._held) or decision.reason == SATURATED

    def enter(
        self, item: object, prompt: Prompt, decision: Decision, now: float, *, wait: Wait
    ) -> Ticket:
        """Hold a request."""
        ticket = Ticket(item, prompt)
        heappush(self._held, (self._order(prompt, decision), next(self._numbers), ticket))
        return ticket

    def release(
        self, rank: Callable[[Ticket], Decision], now: float, loads: Collection[Load]
    ) -> tuple[Ticket, Decision] | None:
        """Return the first request, decided anew, unless the fleet is saturated."""
        if not self._held:
            return None
        decision = rank(self._held[0][2])
        if decision.reason == SATURATED:
            return None
        return heappop(self._held)[2], decision
