"""One cell of the routing benchmark: the results of a policy on a column with one seed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import sqrt
from multiprocessing import get_context
from statistics import fmean
from time import process_time
from typing import NamedTuple, TypeVar

from msgspec import Struct

from benchmarks.routing.bounds import Answer, Pool
from benchmarks.routing.columns import CHOOSING, STOCK, Column
from benchmarks.routing.drive import Drive, Placed
from benchmarks.routing.peers import Sticky
from benchmarks.routing.policies import Policy, router
from simulator.profiles import Profile

T = TypeVar("T")
C = TypeVar("C")

#: Halvings of a factor of 512, which find the rate of a column on another engine.
_HALVINGS = 9


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
    hit_rate: float
    """Prompt tokens found in a cache, as a share of all prompt tokens."""
    imbalance: float
    """Prefill seconds of the busiest worker, divided by the mean over workers."""
    cpu_s: float = 0.0
    """Real CPU seconds that the simulation took."""


class Task(NamedTuple):
    """A cell to compute."""

    column: Column
    policy: Policy
    seed: int


def cell(task: Task) -> Cell:
    """Compute a cell. The same task gives the same cell on any machine, except for `cpu_s`."""
    column, policy = task.column, task.policy
    began = process_time()
    work = column.work(task.seed, column.rate)
    if policy.make is None:
        pool = Pool(column.fleet, shortest=policy.shortest, infinite=policy.infinite)
        answers = pool.run(work)
        busy = [engine.busy_s for engine in pool.engines]
    else:
        runs = router(policy, column.fleet, task.seed)
        answers = [_answer(placed) for placed in runs.run(work)]
        busy = [seat.engine.busy_s for seat in runs.seats]
    return summed(task, answers, busy, process_time() - began)


def _answer(placed: Placed) -> Answer:
    return Answer(placed.asked.job, placed.asked.at_s, placed.first_s, placed.ended_s)


def summed(task: Task, done: Sequence[Answer], busy_s: Sequence[float], cpu_s: float) -> Cell:
    """Summarize the requests of one run; `busy_s` has each worker's prefill seconds."""
    firsts = sorted(answer.first_s for answer in done)
    tokens = sum(answer.job.prompt_tokens for answer in done)
    return Cell(
        task.column.name,
        task.policy.name,
        task.seed,
        len(done),
        fmean(firsts),
        quantile(firsts, 0.5),
        quantile(firsts, 0.9),
        quantile(firsts, 0.99),
        fmean(answer.ended_s for answer in done),
        sum(answer.job.cached_tokens or 0 for answer in done) / tokens,
        max(busy_s) / (fmean(busy_s) or 1.0),
        cpu_s,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile at `share` of sorted values."""
    return ordered[int(share * (len(ordered) - 1))]


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


def scaled(column: Column, stock: Column) -> Column:
    """Return a column of another engine at the rate at which its workers are as busy as stock ones.

    Busy is a worker by the larger of two: the share of time that goes to prefill, and the share of
    its KV cache that running requests take, where one takes a half if two such fit. Both are of a
    run with sticky sessions and the first seed for choosing. An engine with the pace and the KV
    cache of the stock one has its rate.
    """
    if _size(column) == _size(stock):
        return column
    usual, low, high = stock.rate * _work_s(stock), stock.rate / 128, stock.rate * 4
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        column = column._replace(rate=middle)
        if middle * _work_s(column) < usual:
            low = middle
        else:
            high = middle
    return column


def _size(column: Column) -> tuple[float, int]:
    profile = column.fleet.profile
    return profile.prefill_tokens_per_s, profile.kv_tokens


def _work_s(column: Column) -> float:
    """Return the seconds that a request keeps one worker busy, on average."""
    runs = Drive(column.fleet, Sticky)
    done = runs.run(column.work(CHOOSING[0], column.rate))
    held = sum(_held_s(placed, column.fleet.profile) for placed in done)
    prefill_s = sum(seat.engine.busy_s for seat in runs.seats)
    return max(prefill_s, held) / len(done)


def _held_s(placed: Placed, profile: Profile) -> float:
    """Return the seconds from the start of prefill to the end, over how many such requests fit."""
    job = placed.asked.job
    cached = job.cached_tokens or 0
    fit = profile.kv_tokens // (job.prompt_tokens + job.answer_tokens)
    prefill_s = profile.prefill_seconds(job.prompt_tokens - cached, cached)
    return (prefill_s + placed.ended_s - placed.first_s) / fit


def rescaled(picked: Sequence[Column], stock: Sequence[Column], jobs: int) -> list[Column]:
    """Return the columns, those of other engines at rates by `scaled`."""
    usual = {one.workload: one for one in stock}
    pairs = [(one, usual[one.workload]) for one in picked]
    return list(each(_scaled, pairs, jobs))


def _scaled(pair: tuple[Column, Column]) -> Column:
    column, stock = pair
    return column if column.engine == STOCK else scaled(column, stock)


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
