"""The goals of the routing benchmark: each with its value, its bound, and whether it is met."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from operator import attrgetter
from statistics import fmean

from msgspec import Struct

from benchmarks.decision import measured
from benchmarks.routing.cells import Cell
from benchmarks.routing.columns import Column
from benchmarks.routing.policies import OURS, PEERS, POOLED, POOLED_SHORTEST
from strategies.cost import cost

Means = Mapping[tuple[str, str], Cell]
Number = Callable[[Cell], float]

#: What is compared with the best peer, and how many times that is good enough.
MEASURES: dict[str, tuple[Number, float]] = {
    "mean TTFT": (attrgetter("ttft_s"), 1.05),
    "p99 TTFT": (attrgetter("ttft_p99_s"), 1.15),
    "mean end to end": (attrgetter("e2e_s"), 1.05),
}
#: At most so much is the geometric mean over all columns of mean TTFT over the best peer's.
GEOMETRIC = 0.90
#: Mean TTFT, as a multiple of the better of the pooled bounds.
OVER_POOLED = {
    "conversation x1": 1.02,
    "conversation tight x1.75": 1.02,
    "conversation x2": 1.08,
    "conversation x2.2": 1.20,
}
#: CPU microseconds that a decision on 8,000 tokens (35 kB) may take, by number of workers: to rank
#: them, all busy, and to record the choice. Computing the keys is extra (`benchmarks.steps`).
DECISION_BYTES = 35_000
DECISION_US = {8: 25.0, 64: 80.0, 500: 450.0}


class Goal(Struct, frozen=True):
    """A goal: `value` must be at most `bound`."""

    name: str
    policy: str
    where: str
    """The column, or what else it is about."""
    value: float
    bound: float
    against: str = ""
    """What the value is a multiple of."""

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.value <= self.bound


def goals(means: Means, columns: Sequence[Column]) -> list[Goal]:
    """Return every goal that can be judged from what was measured."""
    return [*_beside_peers(means, columns), *_geometric(means, columns), *_beside_bounds(means)]


def decisions() -> list[Goal]:
    """Measure the cost of ranking and recording on this machine, as goals."""
    how = "interpreted" if (cost.__file__ or "").endswith(".py") else "compiled"
    found = []
    for workers, bound in DECISION_US.items():
        _, rank, record = measured(DECISION_BYTES, workers)
        found.append(
            Goal(f"decision, CPU µs, {how}", OURS[0], f"{workers} workers", rank + record, bound)
        )
    return found


def best(means: Means, column: str, among: Sequence[str], number: Number) -> Cell | None:
    """Return the policy of `among` with the least `number` in a column; None if none was run."""
    cells = [means[column, name] for name in among if (column, name) in means]
    return min(cells, key=number, default=None)


def pooled(means: Means, column: str) -> Cell | None:
    """Return the better of the pooled bounds, by mean TTFT."""
    return best(means, column, (POOLED, POOLED_SHORTEST), attrgetter("ttft_s"))


def _beside_peers(means: Means, columns: Sequence[Column]) -> Iterator[Goal]:
    for name, (number, bound) in MEASURES.items():
        for column in columns:
            rival = best(means, column.name, PEERS, number)
            for policy in OURS:
                cell = means.get((column.name, policy))
                if cell is not None and rival is not None:
                    ratio = number(cell) / number(rival)
                    yield Goal(name, policy, column.name, ratio, bound, rival.policy)


def _geometric(means: Means, columns: Sequence[Column]) -> Iterator[Goal]:
    number, _ = MEASURES["mean TTFT"]
    for policy in OURS:
        ratios = []
        for column in columns:
            cell, rival = means.get((column.name, policy)), best(means, column.name, PEERS, number)
            if cell is not None and rival is not None:
                ratios.append(number(cell) / number(rival))
        if ratios:
            value = exp(fmean(map(log, ratios)))
            where = f"geometric mean of {len(ratios)} columns"
            yield Goal("mean TTFT", policy, where, value, GEOMETRIC, "each column's best peer")


def _beside_bounds(means: Means) -> Iterator[Goal]:
    for column, bound in OVER_POOLED.items():
        least = pooled(means, column)
        for policy in OURS:
            cell = means.get((column, policy))
            if cell is not None and least is not None:
                ratio = cell.ttft_s / least.ttft_s
                yield Goal("mean TTFT", policy, column, ratio, bound, least.policy)
