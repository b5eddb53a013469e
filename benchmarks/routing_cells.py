"""One cell: a policy on a column with a seed, and what came of it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from multiprocessing import get_context
from statistics import fmean
from time import process_time
from typing import NamedTuple, TypeVar

from msgspec import Struct

from benchmarks.routing_columns import Column
from benchmarks.routing_drive import Drive, Placed
from benchmarks.routing_policies import Policy

T = TypeVar("T")
C = TypeVar("C")

#: An answer that began within this many seconds counts as in time.
IN_TIME_S = 2.0


class Cell(Struct, frozen=True):
    """Times in seconds of the simulated fleet; shares of one."""

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
    """Prompt tokens found cached over all of them."""
    in_time: float
    """Share of the answers that began within two seconds."""
    imbalance: float
    """Largest over mean prefill seconds of the workers."""
    span_s: float
    """From the first request to the last answer."""
    cpu_s: float = 0.0
    """What it took to simulate."""


class Task(NamedTuple):
    """A cell to be computed. The rate is the column's, unless another is searched."""

    column: Column
    policy: Policy
    seed: int
    rate: float


def cell(task: Task) -> Cell:
    """Compute it. The same task gives the same cell on any machine, but for `cpu_s`."""
    began = process_time()
    runs = drive(task)
    done = runs.run(task.column.work(task.seed, task.rate))
    busy = [seat.engine.busy_s for seat in runs.seats]
    return summed(task, done, busy, process_time() - began)


def drive(task: Task) -> Drive:
    """Make its fleet with its policy, ready to run."""
    policy = task.policy
    hold = None if policy.hold is None else policy.hold()
    return Drive(task.column.fleet, lambda seats: policy.make(seats, task.seed), hold)


def summed(task: Task, done: Sequence[Placed], busy_s: Sequence[float], cpu_s: float = 0.0) -> Cell:
    """Sum up the requests of one run; `busy_s` are each worker's prefill seconds."""
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
    """Return the value that this share of them, which are in order, is not above."""
    return ordered[int(share * (len(ordered) - 1))]


def _between(placed: Placed) -> float:
    return (placed.ended_s - placed.first_s) / max(1, placed.asked.job.answer_tokens - 1)


def computed(tasks: Sequence[Task], jobs: int, told: Callable[[], None]) -> list[Cell]:
    """Compute all of them, in `jobs` processes; `told` is called after each."""
    cells = []
    for one in each(cell, tasks, jobs):
        cells.append(one)
        told()
    return cells


def each(work: Callable[[T], C], tasks: Sequence[T], jobs: int) -> Iterator[C]:
    """Yield what comes of every task, in order, from `jobs` processes."""
    if jobs == 1:
        yield from map(work, tasks)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(work, tasks)


def means(cells: Sequence[Cell]) -> dict[tuple[str, str], Cell]:
    """Return the mean over seeds of every column and policy."""
    ordered = sorted(cells, key=lambda one: (one.column, one.policy))
    return {
        key: _mean(list(alike))
        for key, alike in groupby(ordered, key=lambda one: (one.column, one.policy))
    }


def _mean(cells: Sequence[Cell]) -> Cell:
    first = cells[0]
    numbers = (fmean(getattr(one, name) for one in cells) for name in Cell.__struct_fields__[4:])
    return Cell(first.column, first.policy, len(cells), first.requests, *numbers)
