"""The map from names to references: whatever is done in whatever order, it is as a dictionary."""

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.index.hash_table import Compaction, HashTable, TableSizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from controller.index.hash_table import Exists, Words

#: Few different ones, so that they are given and removed again, at both ends of the range.
NAME = st.one_of(st.integers(0, 40), st.integers((1 << 64) - 20, (1 << 64) - 1))
REFERENCE = st.integers(1, 1 << 63)
STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(NAME, REFERENCE), max_size=30)),
    st.tuples(st.just("pop"), st.lists(NAME, max_size=10)),
    st.tuples(st.just("stale"), st.lists(NAME, max_size=10)),
    st.tuples(st.just("purge"), st.lists(NAME, max_size=10)),
    st.tuples(st.just("compact"), st.integers(0, 20)),
    st.tuples(st.just("clear"), st.none()),
)
SIZES = st.builds(
    TableSizes,
    page=st.sampled_from((1, 3, 8, 1 << 16)),
    pending=st.sampled_from((0, 2, 256)),
    slice=st.sampled_from((1, 2, 1 << 12)),
    buffered=st.sampled_from((0, 5, 1 << 13)),
)


def without(gone: set[int]) -> "Exists":
    """Tell that all blocks are there but these."""

    def exists(keys: "Words") -> "NDArray[np.bool_]":
        return np.array([int(key) not in {0, *gone} for key in keys], np.bool_)

    return exists


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=30), SIZES)
def test_it_is_a_dictionary(history: list[tuple[str, Any]], sizes: TableSizes) -> None:
    """Names of blocks that are gone may stay until they are purged, all others do until removed."""
    compaction = Compaction(sizes)
    table, model, gone = HashTable(compaction), dict[int, int](), set[int]()
    live: dict[int, int] = {}
    for step, value in history:
        _apply(compaction, (table, model, gone), step, value)
        live = {name: key for name, key in model.items() if key not in gone}
        assert live.items() <= dict(table).items() <= model.items()
        assert {name: table.get(name) for name in live} == live
        assert compaction.bytes == table.bytes
        assert {*live.values()} <= {*table.references().tolist()}
    table.purge(without(gone))
    assert {name: table.get(name) for name in model} == {name: live.get(name) for name in model}
    assert {name: table.pop(name) for name in live} == live
    finish(compaction)
    assert dict(table) == {}
    table.clear()
    assert (compaction.bytes, table.bytes, compaction.reclaimable) == (0, 0, 0)


def _apply(
    compaction: Compaction,
    state: tuple[HashTable, dict[int, int], set[int]],
    step: str,
    value: Any,
) -> None:
    table, model, gone = state
    if step == "add":
        fresh = {name: key for name, key in value if key not in gone}
        table.add([*fresh], fresh.values())
        model.update(fresh)
    elif step == "pop":
        for name in value:
            key = table.pop(name)
            assert key == model.pop(name, None) or key in {None, *gone}
    elif step in ("stale", "purge"):
        lost = [name for name in set(value) if name in model]
        gone.update(model[name] for name in lost)
        if step == "stale":
            table.mark_stale(len(lost), without(gone))
        else:
            table.purge(without(gone))
    elif step == "compact":
        compaction.compact(value)
    else:
        table.clear()
        model.clear()
        assert compaction.bytes == 0


def finish(compaction: Compaction) -> None:
    """Compact all that is due."""
    while compaction.compact(1):
        pass


def filled(compaction: Compaction, number: int) -> HashTable:
    """Return a table with so many names, of which nothing is due."""
    table = HashTable(compaction)
    for start in range(0, number, 100):
        table.add([name * 7919 % 65_521 for name in range(start, start + 100)], range(1, 101))
        compaction.compact(1)
    finish(compaction)
    return table


def test_memory_is_given_back_when_most_names_leave() -> None:
    """Small pages are joined: what few names are left takes the room of few."""
    compaction = Compaction(TableSizes(page=128, pending=4, slice=32))
    table = filled(compaction, 4_000)
    before = compaction.bytes
    for number, (name, _) in enumerate(sorted(table)):
        if number % 100:
            table.pop(name)
    finish(compaction)
    assert len(dict(table)) == 40
    assert compaction.bytes < before // 10


def test_lower_names_come_after_the_lowest_page_has_gone() -> None:
    """They belong to the page that is the lowest then."""
    compaction = Compaction(TableSizes(page=4, pending=0, slice=1))
    table = HashTable(compaction)
    for lowest in (60, 20):
        table.add(range(lowest, lowest + 40), range(1, 41))
        finish(compaction)
        for name in range(lowest, lowest + 30):
            assert table.pop(name) == name - lowest + 1
        finish(compaction)
        kept = range(lowest + 30, lowest + 40)
        assert [table.get(name) for name in kept] == [*range(31, 41)]
