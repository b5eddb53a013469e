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
from tests.controller.index.naive import SIZE, depths
from tests.controller.index.test_index import ids, stored, stored_of

LIMIT = 1 << 23
SMALL = TableSizes(page=1024, slice=256)


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


@pytest.mark.parametrize("workers", [1, 8])
def test_each_event_makes_a_little_room(workers: int) -> None:
    """A few runs go at a time, and a few pages of names are tidied up."""
    with (
        counted(Holdings, "drop") as dropped,
        counted(TablePage, "compacted", lambda page: len(page) + page.added) as settled,
        counted(TablePage, "drop_missing") as struck,
    ):
        index, first = full(workers)
        for number in range(first, first + 8000):
            dropped[0] = settled[0] = struck[0] = 0
            index.store(f"w{number % workers}", prompt(number))
            assert dropped[0] <= 33
            assert settled[0] <= 2048
            assert struck[0] <= 2
            assert index.bytes <= LIMIT
    assert len(index) > 40_000


def test_a_full_index_stays_nearly_full() -> None:
    """Names of what is dropped are looked for later; no more is dropped meanwhile to make up for
    them, though there are several times as many names as blocks."""
    index, number = Index(LIMIT, sizes=SMALL), 0
    least = most = 0
    while number < 20_000:
        event = prompt(number, 16)
        for worker in range(4):
            index.store(f"w{worker}", event)
        number += 1
        if not index.counts["dropped for room"]:
            least = most = len(index)
        least = min(least, len(index))
        assert index.bytes <= LIMIT
    assert index.counts["dropped for room"] > 5 * most
    assert least > 0.75 * most


def test_a_run_that_all_hold_counts_for_each() -> None:
    """Dropping it takes as long as dropping one run for each of its holders."""
    index, number, most = Index(LIMIT), 0, 0
    with counted(Holdings, "drop", lambda _, run: run.holders().bit_count()) as left:
        while number < 12_000:
            left[0] = 0
            index.store(f"w{number % 100}", prompt(number // 100))
            number, most = number + 1, max(most, left[0])
    for number in range(12_000):
        left[0] = 0
        with counted(Holdings, "drop", lambda _, run: run.holders().bit_count()) as left:
            index.store("w", prompt(1000 + number))
        most = max(most, left[0])
    assert index.counts["dropped for room"] > 0
    assert 100 <= most < 400


def test_runs_that_prompts_have_used_are_passed_over_a_few_at_a_time() -> None:
    """Even if that is every run of the index."""
    index, first = full(2)
    for run in index.holdings.tree.ring:
        run.used = True
    used, most = len(index.holdings.tree), 0
    for number in range(first, first + 1000):
        index.store("a", prompt(number))
        left = sum(run.used for run in index.holdings.tree.ring)
        used, most = left, max(most, used - left)
        assert index.bytes <= LIMIT
    assert 0 < most <= 65
    assert used < first - 1000, "it went on from one event to the next"


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


def test_the_ring_is_cleared_of_empty_runs_of_long_chains() -> None:
    """Also where the blocks of a prompt go from its end, so that a parent is still held each time
    that a run is gone."""
    index, blocks = Index(1 << 30), 5000
    for number in range(120):
        event = prompt(number, blocks)
        index.store("a", event)
        index.remove("a", BlockRemoved(event.hashes[::-1], Tier.GPU, False, None))
    assert len(index) == 0
    assert len(index.holdings.tree.ring) < 1100


def test_a_tier_that_was_emptied_is_lost() -> None:
    """What came since stays, also in the middle of a run."""
    index = Index(1 << 30)
    blocks = list(range(400))
    index.store("a", stored("a", Tier.L1, "", blocks, range(400)))
    index.clear("a", Tier.GPU)
    fresh = stored("a", Tier.L1, "", [*blocks[:100], 1000, 1001], range(100, 102))
    index.store("a", fresh)
    index.store("a", stored("a", Tier.L1, "", blocks, range(2)))
    assert index.counts["gone without a word"] == 400
    assert depths(index, "", ids(blocks)) == {("a", Tier.L1): 2}
    place = index.cache("a", Tier.L1)
    assert place is not None
    assert sorted(name for name, _ in place.names) == sorted(
        [*fresh.hashes, *stored("a", Tier.L1, "", blocks, range(2)).hashes]
    )
