"""One cell of the routing benchmark: the results of a policy on a column with one seed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from multiprocessing import get_context
from statistics import fmean
from time import process_time
from typing import NamedTuple, TypeVar

from msgspec import Struct

from benchmarks.routing.columns import Column
from benchmarks.routing.drive import Drive, Placed
from benchmarks.routing.policies import Policy

T = TypeVar("T")
C = TypeVar("C")

#: An answer that began within this many seconds counts as in time.
IN_TIME_S = 2.0


class Cell(Struct, frozen=True):
    """The results of one run. Times are in simulated seconds; shares are from 0 to 1."""

    column: str
    policy: str
    seed: int
    requests: int
    ttft_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    e2e_s: float
    token_s: float
    """Mean seconds between two tokens of an answer."""
    hit_rate: float
    """Prompt tokens found in a cache, as a share of all prompt tokens."""
    in_time: float
    """Share of the answers that began within two seconds."""
    imbalance: float
    """Prefill seconds of the busiest worker, divided by the mean over workers."""
    span_s: float
    """From the first request to the last answer."""
    cpu_s: float = 0.0
    """Real CPU seconds that the simulation took."""


class Task(NamedTuple):
    """A cell to compute. The rate is the column's, except in a search for sustainable rates."""

    column: Column
    policy: Policy
    seed: int
    rate: float


def cell(task: Task) -> Cell:
    """Compute a cell. The same task gives the same cell on any machine, except for `cpu_s`."""
    began = process_time()
    runs = drive(task)
    done = runs.run(task.column.work(task.seed, task.rate))
    busy = [seat.engine.busy_s for seat in runs.seats]
    return summed(task, done, busy, process_time() - began)


def drive(task: Task) -> Drive:
    """Create the task's fleet and policy, ready to run."""
    policy = task.policy
    hold = None if policy.hold is None else policy.hold()
    return Drive(task.column.fleet, lambda seats: policy.make(seats, task.seed), hold)


def summed(task: Task, done: Sequence[Placed], busy_s: Sequence[float], cpu_s: float = 0.0) -> Cell:
    """Summarize the requests of one run; `busy_s` has each worker's prefill seconds."""
    firsts = sorted(placed.first_s for placed in done)
    tokens = sum(placed.asked.prompt.tokens for placed in done)
    begun = min(placed.asked.at_s for placed in done)
    return Cell(
        task.column.name,
        task.policy.name,
        task.seed,
        len(done),
        fmean(firsts),
        quantile(firsts, 0.5),
        quantile(firsts, 0.9),
        quantile(firsts, 0.99),
        fmean(placed.ended_s for placed in done),
        fmean(_between(placed) for placed in done),
        sum(placed.asked.job.cached_tokens or 0 for placed in done) / tokens,
        sum(first <= IN_TIME_S for first in firsts) / len(firsts),
        max(busy_s) / (fmean(busy_s) or 1.0),
        max(placed.asked.at_s + placed.ended_s for placed in done) - begun,
        cpu_s,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile at `share` of sorted values."""
    return ordered[int(share * (len(ordered) - 1))]


def _between(placed: Placed) -> float:
    return (placed.ended_s - placed.first_s) / max(1, placed.asked.job.answer_tokens - 1)


def computed(tasks: Sequence[Task], jobs: int, told: Callable[[], None]) -> list[Cell]:
    """Compute all cells in `jobs` processes; `told` is called after each."""
    cells = []
    for one in each(cell, tasks, jobs):
        cells.append(one)
        told()
    return cells


def each(work: Callable[[T], C], tasks: Sequence[T], jobs: int) -> Iterator[C]:
    """Yield the result of every task, in order, computed in `jobs` processes."""
    if jobs == 1:
        yield from map(work, tasks)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(work, tasks)


def means(cells: Sequence[Cell]) -> dict[tuple[str, str], Cell]:
    """Return the mean over seeds for every column and policy."""
    ordered = sorted(cells, key=lambda one: (one.column, one.policy))
    return {
        key: _mean(list(alike))
        for key, alike in groupby(ordered, key=lambda one: (one.column, one.policy))
    }


def _mean(cells: Sequence[Cell]) -> Cell:
    first = cells[0]
    numbers = (fmean(getattr(one, name) for one in cells) for name in Cell.__struct_fields__[4:])
    return Cell(first.column, first.policy, len(cells), first.requests, *numbers)
