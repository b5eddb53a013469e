"""Blocks that wait for their parents: bounded for all engines together, whatever they contain."""

from collections import Counter
from unittest.mock import patch

import pytest

from controller.index.block_events import BlockStored, Tier
from controller.index.index import Index
from controller.index.orphans import DROPPED, Orphan, OrphanBudget, Orphans
from tests.controller.index.naive import SIZE, depths
from tests.controller.index.test_index import TIERS, ids, stored

LIMIT = 1 << 20


def orphan(number: int, extras: list[object] | None = None) -> BlockStored:
    """Return a block whose parent is unknown."""
    return BlockStored(
        *([number], number + (1 << 40), bytes(4 * SIZE), SIZE, Tier.GPU, False, "", extras, 0, True)
    )


def test_many_engines_orphans_leave_the_index_alone() -> None:
    """All orphans together have a part of the bound; the oldest go first, whichever engine's they
    are."""
    index = Index(LIMIT)
    index.store("good", stored("good", Tier.GPU, "", [1, 2, 0], range(3)))
    for number in range(3000):
        index.store(f"w{number % 300}", orphan(number))
        assert index.bytes <= LIMIT
    assert depths(index, "", ids([1, 2, 0])) == {("good", Tier.GPU): 3}
    assert 0 < index.waiting < 400
    assert index.counts == {DROPPED: 3000 - index.waiting}
    for number in range(300):
        index.forget(f"w{number}")
    index.forget("good")
    assert (index.waiting, index.bytes) == (0, 0)


def test_what_else_is_part_of_an_orphans_name_is_counted() -> None:
    """Texts of a megabyte, and nested lists."""
    index = Index(LIMIT)
    index.store("w", orphan(1, [["x" * LIMIT]]))
    assert index.waiting == 0
    index.store("w", orphan(2, [["x" * 10_000, {"y": [["z" * 10_000]]}]]))
    assert 20_000 < index.bytes < 25_000


def test_a_removal_told_over_and_over_is_kept_once() -> None:
    """A waiting block cannot be removed more often than it was stored."""
    room = OrphanBudget(LIMIT, Counter())
    orphans = Orphans(room)
    orphans.keep(orphan(1))
    assert all(orphans.remove(Tier.GPU, False, 1) for _ in range(100))
    (kept,) = orphans.of(1 + (1 << 40))
    assert kept.gone == [1]


def test_a_clear_looks_at_each_waiting_block_once() -> None:
    """Of many that wait for one parent, those of the tier go, and the others stay."""
    room = OrphanBudget(LIMIT, Counter())
    orphans = Orphans(room)
    with patch.object(Orphan, "__eq__", lambda *_: pytest.fail("compared"), create=True):
        for number in range(300):
            event = orphan(number)._replace(parent=99, tier=TIERS[number % 2])
            orphans.keep(event)
        before = room.bytes
        orphans.clear(Tier.L1)
    assert room.bytes == before // 2
    assert [orphans.remove(Tier.GPU, False, number) for number in range(4)] == [True, False] * 2
    assert [orphans.remove(Tier.L1, False, number) for number in range(4)] == [False] * 4
    assert [one.event.hashes[0] for one in orphans.of(99)] == list(range(0, 300, 2))
    assert (room.bytes, len(orphans)) == (0, 0)
