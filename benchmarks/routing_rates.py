"""The sustainable rate: how often requests may come until one in ten waits two seconds."""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from multiprocessing import get_context
from typing import NamedTuple

from msgspec import Struct

from benchmarks.routing_cells import Task, cell
from benchmarks.routing_columns import Column
from benchmarks.routing_policies import Policy

#: Share of the answers that must begin in time.
ENOUGH = 0.9
#: Rates searched, as multiples of the column's own; and how often the span is halved (to 5 %).
LOWEST, HIGHEST, HALVINGS = 0.4, 1.8, 5


class Rate(Struct, frozen=True):
    """Multiples of the workload's own rate; 0 where even the lowest searched is too much."""

    column: str
    policy: str
    rate: float


class Search(NamedTuple):
    """A rate to be found, with one seed."""

    column: Column
    policy: Policy
    seed: int = 1


def sustainable(search: Search) -> Rate:
    """Halve the span (in the logarithm) until it is narrow."""
    column, policy, seed = search

    def bears(rate: float) -> bool:
        return cell(Task(column, policy, seed, rate)).in_time >= ENOUGH

    low, high = LOWEST * column.rate, HIGHEST * column.rate
    if not bears(low):
        return Rate(column.name, policy.name, 0.0)
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        if bears(middle):
            low = middle
        else:
            high = middle
    return Rate(column.name, policy.name, low)


def found(searches: Sequence[Search], jobs: int, told: Callable[[], None]) -> list[Rate]:
    """Search all of them, in `jobs` processes; `told` is called after each."""
    rates = []
    for one in _found(searches, jobs):
        rates.append(one)
        told()
    return rates


def _found(searches: Sequence[Search], jobs: int) -> Iterator[Rate]:
    if jobs == 1:
        yield from map(sustainable, searches)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(sustainable, searches)
