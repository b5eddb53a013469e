"""Peers that know no cache: each by the rule it publishes, as a strategy of ours.

Every peer has ideal information, where in life its gauges are seconds old; so nothing here is to
the disadvantage of a peer but its rule.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from benchmarks.routing_drive import Seat
from benchmarks.routing_work import Talk, follows
from strategies.base import FREE, Candidate, Decision, NoOptions, Outcome, Prompt, WorkerView


class Peer:
    """Chooses one seat; the least `score` wins, ties are broken at random."""

    Options: ClassVar[type[Any]] = NoOptions
    reads_prompt: ClassVar[bool] = True

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        self.seats = seats
        self.chance = Random(seed)
        self.session = 0

    def about(self, talk: Talk) -> None:
        """What comes next belongs to this talk: those that go by sessions may know."""
        self.session = talk.session

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Give the chosen one alone."""
        return Decision([Candidate(self.choose(prompt, now), FREE)], "peer")

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Return the seat with the least score."""
        return self.least(self.score(prompt, now))

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Return a number for each seat, the least being the best."""
        return [0.0] * len(self.seats)

    def least(self, scores: Sequence[float]) -> Seat:
        """Return a seat of the least score, drawn among equals."""
        best = min(scores)
        ties = [seat for seat, score in zip(self.seats, scores, strict=True) if score == best]
        return ties[0] if len(ties) == 1 else self.chance.choice(ties)

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """It was sent there."""

    def computed(self, prompt: Prompt, worker: WorkerView) -> None:
        """Its first token was seen."""

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """It has ended."""

    def forget(self, worker: str) -> None:
        """That worker was restarted."""

    def gauges(self) -> Mapping[str, float]:
        """Nothing is watched here."""
        return {}


class AtRandom(Peer):
    """Anyone."""


class LeastRequests(Peer):
    """Who has the fewest requests in flight."""

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Count them."""
        return [seat.load.in_flight for seat in self.seats]


class PowerOfTwo(Peer):
    """The one with fewer requests of two drawn at random."""

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Draw and compare."""
        two = self.chance.sample(self.seats, min(2, len(self.seats)))
        return min(two, key=lambda seat: seat.load.in_flight)


class Sticky(Peer):
    """A session stays where its first request found the fewest, whatever goes on there since."""

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self._bound: dict[int, Seat] = {}

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Look it up, or bind it."""
        if self.session not in self._bound:
            self._bound[self.session] = self.least([seat.load.in_flight for seat in self.seats])
        return self._bound[self.session]


class BoundedLoad(Peer):
    """Consistent hashing with bounded loads, on the prompt's first blocks.

    After KubeAI `internal/loadbalancer/balance_chwbl.go`: the first on the ring with at most 1.25
    times the mean load, the newcomer counted; the owner where nobody is (so with few in flight).
    """

    def __init__(self, seats: Sequence[Seat], seed: int = 0, *, blocks: int = 1) -> None:
        super().__init__(seats, seed)
        self._blocks = blocks

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Walk the ring from where the first blocks are."""
        keys = prompt.keys
        key = keys[min(self._blocks, len(keys)) - 1] if keys else prompt.tokens
        bound = 1.25 * (sum(seat.load.in_flight for seat in self.seats) + 1) / len(self.seats)
        ring = sorted(range(len(self.seats)), key=lambda place: follows(key, place))
        for place in ring:
            if self.seats[place].load.in_flight + 1 <= bound:
                return self.seats[place]
        return self.seats[ring[0]]


#: How a policy is made for a fleet, with a seed for what it draws.
Maker = Callable[[Sequence[Seat], int], Any]
