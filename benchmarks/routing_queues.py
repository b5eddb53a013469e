"""Peers that hold requests in the router while the whole fleet is saturated.

A rule says with each decision whether it is; one queue (`Parked`) serves all of them. Where their
gauges lag in practice, the rules here see engines as they are; and what workers hold is looked up
anew for each request that leaves the queue.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from itertools import count
from statistics import fmean
from typing import Any

from msgspec import Struct

from benchmarks.routing_fleet import Seat
from benchmarks.routing_rules import Affinity, Dynamo, Knowing, Scorers
from strategies.base import FREE, Candidate, Decision, Prompt, WorkerView
from strategies.load import Load
from strategies.queue import Wait

#: The reason of a decision that no worker has room for.
SATURATED = "saturated"


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


class QueuedDynamo(Holding, Dynamo):
    """Dynamo's rule with its queue: on while every worker has too much prefill under way.

    That is more than `threshold` times `max_num_batched_tokens`, in uncached tokens of prompts
    without a first token (`lib/kv-router/src/scheduling/queue.rs`, and `worker_is_busy` in
    `policy_config.rs`). The default of 16 is in `config.rs`; earlier ones were 4 and 2.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        seed: int = 0,
        *,
        weight: float = 1.0,
        predicted_s: float = 0.0,
        threshold: float = 16.0,
    ) -> None:
        super().__init__(seats, seed, weight=weight, predicted_s=predicted_s)
        self._threshold = threshold

    def saturated(self) -> bool:
        """Compare the pending prefill of each worker with the threshold."""
        return all(
            self.pending[seat.name] > self._threshold * seat.engine.profile.max_num_batched_tokens
            for seat in self.seats
        )


def full(seats: Sequence[Seat]) -> bool:
    """Whether llm-d's flow control holds requests, by its default `utilization-detector`.

    The mean over workers of the larger of waiting requests / 5 and KV use / 0.8 is at least 1
    (`pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization`).
    """
    return fmean(max(len(s.engine.waiting) / 5, s.engine.usage / 0.8) for s in seats) >= 1.0


class FlowScorers(Holding, Scorers):
    """llm-d's scorers with its flow control, which `guides/flow-control` has with 3:2:2.

    Flow control is off by default. The guide sets a detector of its own, 132 requests in flight
    per worker, which is never reached here except by policies that are far behind.
    """

    def saturated(self) -> bool:
        """Ask the utilization detector."""
        return full(self.seats)


class FlowAffinity(Holding, Affinity):
    """llm-d's affinity filter (`guides/optimized-baseline`) with its flow control."""

    def saturated(self) -> bool:
        """Ask the utilization detector."""
        return full(self.seats)


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
