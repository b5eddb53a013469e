"""Peer policies without knowledge of caches, each implemented from its published rule.

Every peer has ideal information, while in practice its gauges are seconds old. So the only thing
that can put a peer at a disadvantage here is its rule.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from benchmarks.routing.fleet import Seat
from benchmarks.routing.work import Talk, follows
from strategies.base import FREE, Candidate, Decision, NoOptions, Outcome, Prompt, WorkerView


class Peer:
    """Base of peer policies: chooses the seat with the least `score`, ties broken at random."""

    Options: ClassVar[type[Any]] = NoOptions
    reads_prompt: ClassVar[bool] = True

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        self.seats = seats
        self.chance = Random(seed)
        self.session = 0

    def about(self, talk: Talk) -> None:
        """Announce the talk of the next request, for policies that use sessions."""
        self.session = talk.session

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Return a decision with the chosen seat as the only candidate."""
        return Decision([Candidate(self.choose(prompt, now), FREE)], "peer")

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Return the seat with the least score."""
        return self.least(self.score(prompt, now))

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Return a score for each seat; the least is the best."""
        return [0.0] * len(self.seats)

    def least(self, scores: Sequence[float]) -> Seat:
        """Return the seat with the least score, drawn at random among equals."""
        best = min(scores)
        ties = [seat for seat, score in zip(self.seats, scores, strict=True) if score == best]
        return ties[0] if len(ties) == 1 else self.chance.choice(ties)

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Note that a request was sent to a worker."""

    def computed(self, prompt: Prompt, worker: WorkerView) -> None:
        """Note that the first token of a request has arrived."""

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Note that a request has ended."""

    def forget(self, worker: str) -> None:
        """Note that a worker was restarted."""

    def gauges(self) -> Mapping[str, float]:
        """No gauges."""
        return {}


class AtRandom(Peer):
    """A random worker."""


class LeastRequests(Peer):
    """The worker with the fewest requests in flight."""

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Score by requests in flight."""
        return [seat.load.in_flight for seat in self.seats]


class PowerOfTwo(Peer):
    """The one of two workers drawn at random that has fewer requests in flight."""

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Draw two and compare."""
        two = self.chance.sample(self.seats, min(2, len(self.seats)))
        return min(two, key=lambda seat: seat.load.in_flight)


class Sticky(Peer):
    """A session stays on the worker that had the fewest requests in flight when it began."""

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self._bound: dict[int, Seat] = {}

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Return the session's seat, binding the session first if it is new."""
        if self.session not in self._bound:
            self._bound[self.session] = self.least([seat.load.in_flight for seat in self.seats])
        return self._bound[self.session]


class BoundedLoad(Peer):
    """Consistent hashing with bounded loads, on the prompt's first blocks.

    After KubeAI `internal/loadbalancer/balance_chwbl.go`: the first worker on the ring with at most
    1.25 times the mean load, counting the new request; the first on the ring if none qualifies
    (as happens with few requests in flight).
    """

    def __init__(self, seats: Sequence[Seat], seed: int = 0, *, blocks: int = 1) -> None:
        super().__init__(seats, seed)
        self._blocks = blocks

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Walk the ring from the position of the first blocks."""
        keys = prompt.keys
        key = keys[min(self._blocks, len(keys)) - 1] if keys else prompt.tokens
        bound = 1.25 * (sum(seat.load.in_flight for seat in self.seats) + 1) / len(self.seats)
        ring = sorted(range(len(self.seats)), key=lambda place: follows(key, place))
        for place in ring:
            if self.seats[place].load.in_flight + 1 <= bound:
                return self.seats[place]
        return self.seats[ring[0]]


#: Creates a policy for the seats of a fleet, with a random seed.
Maker = Callable[[Sequence[Seat], int], Any]
