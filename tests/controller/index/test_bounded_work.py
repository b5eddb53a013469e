"""No event takes long in a full index: events are applied on the loop that serves requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from controller.index.block_events import BlockRemoved, BlockStored, Tier
from controller.index.hash_table import TablePage, TableSizes
from controller.index.holdings import Holdings
from controller.index.index import Index
from tests.controller.index.naive import SIZE
from tests.controller.index.test_index import stored_of

LIMIT = 1 << 21
SMALL = TableSizes(page=256, slice=64)


@contextmanager
def counted(where: type, name: str, size: Callable[..., int] = lambda *_: 1) -> Iterator[list[int]]:
    """Add up the size of all calls of a method."""
    method, total = getattr(where, name), [0]

    def counting(*args: Any) -> Any:
        total[0] += size(*args)
        return method(*args)

    with patch.object(where, name, counting):
        yield total


def prompt(number: int, blocks: int = 4) -> BlockStored:
    """Return an event about a prompt of its own."""
    return stored_of(number.to_bytes(4, "little") * (SIZE * blocks), SIZE)


def full(workers: int, sizes: TableSizes = SMALL) -> tuple[Index, int]:
    """Return an index at its bound, and how many prompts it was told."""
    index, number = Index(LIMIT, sizes=sizes), 0
    while not index.counts["dropped for room"]:
        index.store(f"w{number % workers}", prompt(number))
        number += 1
    return index, number


def test_each_event_makes_a_little_room() -> None:
    """A few runs go at a time, and a few pages of names are tidied up."""
    workers = 8
    with (
        counted(Holdings, "drop") as dropped,
        counted(TablePage, "compacted", lambda page: len(page) + page.added) as settled,
        counted(TablePage, "drop_missing") as struck,
    ):
        index, first = full(workers)
        for number in range(first, first + 2000):
            dropped[0] = settled[0] = struck[0] = 0
            index.store(f"w{number % workers}", prompt(number))
            assert dropped[0] <= 33
            assert settled[0] <= 1024
            assert struck[0] <= 2
            assert index.bytes <= LIMIT
    assert len(index) > 8_000


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_full_index_stays_nearly_full() -> None:
    """Names of what is dropped are looked for later; no more is dropped meanwhile to make up for
    them, though there are several times as many names as blocks."""
    limit = 1 << 23
    index, number = Index(limit, sizes=TableSizes(page=1024, slice=256)), 0
    least = most = 0
    while number < 20_000:
        event = prompt(number, 16)
        for worker in range(4):
            index.store(f"w{worker}", event)
        number += 1
        if not index.counts["dropped for room"]:
            least = most = len(index)
        least = min(least, len(index))
        assert index.bytes <= limit
    assert index.counts["dropped for room"] > 5 * most
    assert least > 0.75 * most


def test_the_ring_is_cleared_of_empty_runs_a_few_at_a_time() -> None:
    """While blocks are removed one by one, it stays nearly as short as the runs are many."""
    index = Index(1 << 30)
    events = [prompt(number, 1) for number in range(6000)]
    for event in events:
        index.store("a", event)
    ring = index.holdings.tree.ring
    for event in events[1000:]:
        before = len(ring)
        index.remove("a", BlockRemoved(event.hashes, Tier.GPU, False, None))
        ring = index.holdings.tree.ring
        assert before - len(ring) <= 8
    assert len(index) == 1000
    assert len(ring) < 3000
    assert sum(bool(run.keys) for run in ring) == 1000
