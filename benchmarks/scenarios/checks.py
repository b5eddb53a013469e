"""The checks of scenarios, and helpers to run and measure them."""

from collections.abc import Callable, Sequence
from statistics import fmean

from msgspec import Struct

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import EngineFleet, Placed, VirtualDrive
from benchmarks.routing.policies import policy_named, router
from benchmarks.routing.workloads import Work

#: A fleet as in the routing benchmark: eight workers with host memory.
ROOMY = EngineFleet(SMALL, cache_tokens=2_000_000)


class Check(Struct, frozen=True):
    """A check: `value` must be at most `bound`, or at least `bound` if `least`."""

    what: str
    value: float
    bound: float
    least: bool = False

    @property
    def met(self) -> bool:
        """Return true if the check holds."""
        return self.value >= self.bound if self.least else self.value <= self.bound


#: Runs a scenario at a size, relative to the benchmark's, and returns its checks.
Scenario = Callable[[float], Sequence[Check]]


def drive(policy: str = "prefixaware", fleet: EngineFleet = ROOMY) -> VirtualDrive:
    """Create a fleet with a policy, ready to run."""
    return router(policy_named(policy), fleet, 1)


def run(work: Work, policy: str = "prefixaware", fleet: EngineFleet = ROOMY) -> list[Placed]:
    """Run a workload with a policy."""
    return drive(policy, fleet).run(work)


def ttft(done: Sequence[Placed]) -> float:
    """Return the mean seconds to the first token."""
    return fmean(placed.first_s for placed in done)


def p99(done: Sequence[Placed]) -> float:
    """Return the 99th percentile of the seconds to the first token."""
    ordered = sorted(placed.first_s for placed in done)
    return ordered[int(0.99 * (len(ordered) - 1))]


def hit_rate(done: Sequence[Placed]) -> float:
    """Return the prompt tokens found in a cache, as a share of all prompt tokens."""
    cached = sum(placed.asked.job.cached_tokens or 0 for placed in done)
    return cached / sum(placed.asked.prompt.tokens for placed in done)


def imbalance(done: Sequence[Placed], workers: int) -> float:
    """Return the booked prefill seconds of the busiest worker, divided by the mean over workers."""
    booked: dict[str, float] = {}
    for placed in done:
        name = placed.seat.name
        booked[name] = booked.get(name, 0.0) + placed.choice.cost.prefill
    return max(booked.values()) / (sum(booked.values()) / workers)
