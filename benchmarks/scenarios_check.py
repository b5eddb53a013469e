"""A scenario, and what must hold in it."""

from collections.abc import Callable, Sequence
from statistics import fmean

from msgspec import Struct

from benchmarks.routing_columns import SMALL
from benchmarks.routing_drive import Drive, Fleet, Placed
from benchmarks.routing_policies import policy_named
from benchmarks.routing_work import Work

#: A fleet like the benchmark's: eight workers with host memory.
ROOMY = Fleet(SMALL, cache_tokens=2_000_000)


class Check(Struct, frozen=True):
    """`value` is to be at most `bound`, or at least where `least`."""

    what: str
    value: float
    bound: float
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether it holds."""
        return self.value >= self.bound if self.least else self.value <= self.bound


#: A scenario is told how large to be, 1 being the benchmark's size, and says what came of it.
Scenario = Callable[[float], Sequence[Check]]


def drive(policy: str = "prefixaware", fleet: Fleet = ROOMY) -> Drive:
    """Make a fleet with a policy, ready to run."""
    one = policy_named(policy)
    return Drive(fleet, lambda seats: one.make(seats, 1), None if one.hold is None else one.hold())


def run(work: Work, policy: str = "prefixaware", fleet: Fleet = ROOMY) -> list[Placed]:
    """Run some work through a policy."""
    return drive(policy, fleet).run(work)


def ttft(done: Sequence[Placed]) -> float:
    """Mean seconds to the first token."""
    return fmean(placed.first_s for placed in done)


def p99(done: Sequence[Placed]) -> float:
    """Seconds to the first token that one in a hundred exceeds."""
    ordered = sorted(placed.first_s for placed in done)
    return ordered[int(0.99 * (len(ordered) - 1))]


def hit_rate(done: Sequence[Placed]) -> float:
    """Share of the prompt tokens that were found cached."""
    cached = sum(placed.asked.job.cached_tokens or 0 for placed in done)
    return cached / sum(placed.asked.prompt.tokens for placed in done)


def imbalance(done: Sequence[Placed], workers: int) -> float:
    """Largest over mean booked prefill seconds of the workers."""
    booked: dict[str, float] = {}
    for placed in done:
        name = placed.seat.name
        booked[name] = booked.get(name, 0.0) + placed.choice.cost.prefill
    return max(booked.values()) / (sum(booked.values()) / workers)
