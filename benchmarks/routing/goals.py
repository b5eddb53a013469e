"""The goals of the routing benchmark: each with its value, its bound, and whether it is met."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.decision import measured
from benchmarks.routing.cells import Cell
from benchmarks.routing.policies import OURS, POLICIES
from benchmarks.routing_rates import Rate
from benchmarks.routing.work import Ideal

Means = Mapping[tuple[str, str], Cell]

PEERS = tuple(policy.name for policy in POLICIES if policy.kind in {"plain", "peer"})
#: Upper bounds for the mean seconds to the first token.
TTFT_S = {
    "conversation x2": 0.80,
    "conversation x2.2": 1.0,
    "conversation tight x1.75": 1.0,
    "sessions x0.3": 0.48,
}
#: Upper bounds for the 99th percentile of the seconds to the first token.
P99_S = {"conversation x2": 9.5}
#: Upper bounds for mean TTFT at moderate load, as multiples of the zero-queue floor.
NEAR_FLOOR = {"conversation x1": 1.15}
#: Fields of `Cell` that goals bound from above, and their names.
NAMES = {
    "ttft_s": "mean TTFT, s",
    "ttft_p99_s": "p99 TTFT, s",
    "e2e_s": "mean end to end, s",
}
#: Multiples of the best peer's number that count as no worse, to allow for noise.
TTFT_OVER, E2E_OVER = 1.02, 1.03

#: CPU microseconds that a decision on 8,000 tokens (35 kB) may take, by number of workers: to rank
#: them, all busy, and to record the choice. Computing the keys is extra (`benchmarks.steps`).
DECISION_BYTES = 35_000
DECISION_US = {8: 60.0, 64: 150.0, 500: 1_000.0}


#: Peers up to this many times as slow as the best may be the best with other seeds.
RIVALS_WITHIN = 1.05
#: A policy that takes this many times as long as the best peer, both to the first token and to the
#: end of the answer, is not competitive: one seed is enough for it.
HOPELESS = 1.5


class Goal(Struct, frozen=True):
    """A goal: `value` must be at most `bound`, or at least `bound` if `least`."""

    name: str
    policy: str
    column: str
    value: float
    bound: float
    against: str = ""
    """What the bound comes from."""
    least: bool = False
    measure: str = ""
    """The field of `Cell` that it is about; empty if more seeds cannot judge it."""
    rivals: tuple[str, ...] = ()
    """Policies of which the best by `measure`, times `over`, makes the bound; empty: a number."""
    over: float = 1.0
    seeds: int = 1
    """How many seeds it was judged by."""

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.value >= self.bound if self.least else self.value <= self.bound


def decisions() -> list[Goal]:
    """Measure the cost of ranking and recording on this machine, as goals."""
    found = []
    for workers, bound in DECISION_US.items():
        _, rank, record = measured(DECISION_BYTES, workers)
        column = f"{workers} workers"
        found.append(Goal("decision, CPU µs", "prefixaware", column, rank + record, bound))
    return found


class Found(NamedTuple):
    """Everything that was measured."""

    means: Means
    ideals: Mapping[str, Ideal]
    rates: Sequence[Rate]


def goals(found: Found) -> list[Goal]:
    """Return every goal that can be judged from what was measured."""
    return [goal for part in _PARTS for goal in part(found)]


def _targets(found: Found) -> Iterator[Goal]:
    for cell in _ours(found):
        if cell.column in TTFT_S:
            bound = TTFT_S[cell.column]
            yield _goal(cell, "ttft_s", bound)
        if cell.column in P99_S:
            yield _goal(cell, "ttft_p99_s", P99_S[cell.column])
        if cell.column in NEAR_FLOOR:
            floor = found.ideals[cell.column].ttft_s
            bound = NEAR_FLOOR[cell.column] * floor
            yield _goal(cell, "ttft_s", bound, "floor x 1.15")


def _never_worse(found: Found) -> Iterator[Goal]:
    for measure, over in (("ttft_s", TTFT_OVER), ("e2e_s", E2E_OVER)):
        for cell in _ours(found):
            peers = [found.means.get((cell.column, peer)) for peer in PEERS]
            yield from _against(cell, measure, over, peers)


def _goal(cell: Cell, measure: str, bound: float, against: str = "") -> Goal:
    """Return the goal that a number of a cell is at most `bound`."""
    value = getattr(cell, measure)
    return Goal(
        *(NAMES[measure], cell.policy, cell.column, value, bound, against),
        measure=measure,
        seeds=cell.seed,
    )


def times(policy: str, over: float) -> str:
    """Say what a bound is: so many times a policy's number."""
    return policy if over == 1.0 else f"{policy} x {over:g}"


def _against(
    cell: Cell, measure: str, over: float, rivals: Sequence[Cell | None]
) -> Iterator[Goal]:
    """Yield the goal that a number is at most `over` times the best of `rivals`, if any."""
    ranked = sorted((getattr(one, measure), one.policy) for one in rivals if one is not None)
    if ranked:
        least, name = ranked[0]
        near = tuple(policy for value, policy in ranked if value <= RIVALS_WITHIN * least)
        goal = _goal(cell, measure, over * least, times(name, over))
        yield replace(goal, rivals=near, over=over)


def _hits(found: Found) -> Iterator[Goal]:
    """The hit rate, wherever caches are large enough."""
    for cell in _ours(found):
        if "tight" not in cell.column:
            bound, against = 0.8 * found.ideals[cell.column].hit_rate, "ideal x 0.8"
            yield Goal(
                "hit rate", cell.policy, cell.column, cell.hit_rate, bound, against, least=True
            )


def _sustained(found: Found) -> Iterator[Goal]:
    """The sustainable rate, only where some peer has one: equal to none is no success."""
    for rate in found.rates:
        best = best_rate(found, rate.column)
        if rate.policy in OURS and best is not None and best.rate:
            mine = rate.rate or 0.0
            against = f"{best.policy}, a tie" if mine == best.rate else best.policy
            name = "sustainable rate"
            yield Goal(name, rate.policy, rate.column, mine, best.rate, against, least=True)


def _no_reuse(found: Found) -> Iterator[Goal]:
    """Work without reuse: no worse than `leastload`, and than booked seconds alone."""
    for policy in ("leastload", "booked seconds"):
        plain = found.means.get(("no_reuse", policy))
        for cell in _ours(found):
            if cell.column == "no_reuse":
                for measure in ("ttft_s", "ttft_p99_s"):
                    yield from _against(cell, measure, 1.02, [plain])


def _one_prefix(found: Found) -> Iterator[Goal]:
    plain = found.means.get(("one_prefix", "round robin"))
    for cell in _ours(found):
        if cell.column == "one_prefix" and plain is not None:
            for measure in NAMES:
                yield from _against(cell, measure, 1.0, [plain])
            yield Goal("imbalance", cell.policy, cell.column, cell.imbalance, 1.15)


def _as_good_as_exact(found: Found) -> Iterator[Goal]:
    for cell in _ours(found):
        exact = found.means.get((cell.column, "kvaware"))
        if cell.policy == "prefixaware":
            over = 1.10 if "tight" in cell.column else 1.03
            yield from _against(cell, "ttft_s", over, [exact])


_PARTS: Sequence[Callable[[Found], Iterator[Goal]]] = (
    _targets,
    _never_worse,
    _hits,
    _sustained,
    _no_reuse,
    _one_prefix,
    _as_good_as_exact,
)


def _ours(found: Found) -> Iterator[Cell]:
    return (found.means[key] for key in found.means if key[1] in OURS)


def best_peer(means: Means, column: str, number: Callable[[Cell], float]) -> Cell | None:
    """Return the peer with the least `number` in a column; None if none was run."""
    cells = [means[column, peer] for peer in PEERS if (column, peer) in means]
    return min(cells, key=number, default=None)


def hopeless(means: Means) -> set[tuple[str, str]]:
    """Return the columns and policies (other than `OURS`) that are hopeless by `HOPELESS`."""
    return {
        (column, policy)
        for (column, policy), cell in means.items()
        if policy not in OURS
        and all(
            (best := best_peer(means, column, number)) is not None
            and number(cell) > HOPELESS * number(best)
            for number in (attrgetter("ttft_s"), attrgetter("e2e_s"))
        )
    }


def best_rate(found: Found, column: str) -> Rate | None:
    """Return the highest sustainable rate of a peer in a column; None if no peer has one."""
    rates = [
        rate
        for rate in found.rates
        if rate.column == column and rate.policy in PEERS and rate.rate and not rate.below
    ]
    return max(rates, key=lambda rate: rate.rate or 0.0, default=None)
