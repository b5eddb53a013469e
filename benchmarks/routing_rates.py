"""The sustainable rate: the highest at which nine in ten answers begin within two seconds, and 99
in a hundred within thirty.

Rates differ by steps of two percent, starting from the column's own. For Warmroute's strategies
the rate is searched. Of the peers only the best counts: each is tried one step above the best so
far, and searched only if it sustains that. For the others it is only known that they do not.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

from msgspec import Struct

from benchmarks.routing_cells import IN_TIME_S, Task, drive, each
from benchmarks.routing_columns import Column
from benchmarks.routing_policies import OURS, Policy

#: Shares of the answers that must begin within so many seconds. If nine in ten were all, a router
#: would sustain almost any rate that never lets the longest tenth begin.
ENOUGH = {0.9: IN_TIME_S, 0.99: 30.0}
#: Factor from one rate to the next; and the most steps that a search goes up or down from the
#: column's own rate, which is a factor of 12.6 either way.
STEP, FARTHEST = 1.02, 128


class Rate(Struct, frozen=True):
    """The sustainable rate of a policy, in the unit of the column."""

    column: str
    policy: str
    rate: float | None
    """None if it sustains no rate at all."""
    below: bool = False
    """True if it does not sustain `rate`, which is one step above the best peer's then."""


class Search(NamedTuple):
    """The policies to compare on a column, with one seed."""

    column: Column
    policies: Sequence[Policy]
    seed: int = 1


def sustainable(search: Search) -> list[Rate]:
    """Search the rates of our policies, and of the best of the others."""
    best: int | None = None
    near, rates = 0, list[Rate]()
    for policy in search.policies:
        bears = cache(partial(_bears, search, policy))
        ours = policy.name in OURS
        if not ours and best is not None and not bears(best + 1):
            rates.append(_rate(search, policy, best + 1, below=True))
            continue
        steps = highest(bears, near if ours or best is None else best + 1)
        rates.append(_rate(search, policy, steps))
        near = near if steps is None else steps
        best = best if ours else steps
    return rates


def _bears(search: Search, policy: Policy, steps: int) -> bool:
    column = search.column
    return in_time(Task(column, policy, search.seed, column.rate * STEP**steps))


def _rate(search: Search, policy: Policy, steps: int | None, *, below: bool = False) -> Rate:
    column = search.column
    rate = None if steps is None else column.rate * STEP**steps
    return Rate(column.name, policy.name, rate, below)


def highest(bears: Callable[[int], bool], start: int = 0) -> int | None:
    """Return the highest step for which `bears` is true, searching from `start`; None if none is.

    Goes up or down by one step, two, four and so on, then bisects.
    """
    up = bears(start)
    near, stride = start, 1 if up else -1
    while (far := max(-FARTHEST, min(FARTHEST, near + stride))) != near:
        if bears(far) != up:
            break
        near, stride = far, 2 * stride
    else:
        return near if up else None
    low, high = (near, far) if up else (far, near)
    while high - low > 1:
        middle = (low + high) // 2
        if bears(middle):
            low = middle
        else:
            high = middle
    return low


class Punctual:
    """A `Watch` for whether enough answers begin in time; ends the run once that is certain."""

    def __init__(self, requests: int) -> None:
        """Watch a run of `requests` requests."""
        self._bounds = [Bound(share, seconds, requests) for share, seconds in ENOUGH.items()]

    def asked(self, number: int, now: float) -> bool:
        """Note an arrival at time `now`, and count waiting requests that are late by now."""
        for bound in self._bounds:
            bound.asked(number, now)
        return self._is_certain

    def begun(self, number: int, first_s: float) -> bool:
        """Note a first token that came `first_s` seconds after the request arrived."""
        for bound in self._bounds:
            bound.begun(number, first_s)
        return self._is_certain

    @property
    def _is_certain(self) -> bool:
        return self.enough or any(bound.broken for bound in self._bounds)

    @property
    def enough(self) -> bool:
        """Whether enough answers began in time."""
        return all(bound.kept for bound in self._bounds)


class Bound:
    """Whether a share of the answers begins within so many seconds.

    A request that has waited for longer counts as late even before its first token. Under heavy
    overload, first tokens alone would decide only after most of the run.
    """

    def __init__(self, share: float, seconds: float, requests: int) -> None:
        self._seconds = seconds
        self._wanted = share * requests
        self._spare = requests - self._wanted
        self._waiting: OrderedDict[int, float] = OrderedDict()
        """Arrival times of the requests without a first token, in order of arrival."""
        self._timely = self._late = 0

    def asked(self, number: int, now: float) -> None:
        """Note an arrival, and count those that are late by now."""
        waiting = self._waiting
        while waiting and now - next(iter(waiting.values())) > self._seconds:
            waiting.popitem(last=False)
            self._late += 1
        waiting[number] = now

    def begun(self, number: int, first_s: float) -> None:
        """Note a first token."""
        if self._waiting.pop(number, None) is not None:
            self._timely += first_s <= self._seconds
            self._late += first_s > self._seconds

    @property
    def kept(self) -> bool:
        """Whether enough were in time, whatever comes."""
        return self._timely >= self._wanted

    @property
    def broken(self) -> bool:
        """Whether too many were late, whatever comes."""
        return self._late > self._spare


def in_time(task: Task) -> bool:
    """Whether enough answers begin in time. The simulation ends once that is certain."""
    work, runs = task.column.work(task.seed, task.rate), drive(task)
    runs.watch = watch = Punctual(work.requests)
    runs.run(work)
    return watch.enough


def found(searches: Sequence[Search], jobs: int, told: Callable[[], None]) -> list[Rate]:
    """Run all searches in `jobs` processes; `told` is called after each."""
    rates = []
    for several in each(sustainable, searches, jobs):
        rates += several
        told()
    return rates
