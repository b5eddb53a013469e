"""The map from names to references: whatever is done in whatever order, it is as a dictionary."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.index import hash_table as names_module
from controller.index import hash_table as pages_module
from controller.index.hash_table import Names, Page, Tally

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from controller.index.hash_table import There, Words

#: Few different ones, so that they are given and removed again, at both ends of the range.
NAME = st.one_of(st.integers(0, 40), st.integers((1 << 64) - 20, (1 << 64) - 1))
REFERENCE = st.integers(1, 1 << 63)
STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(NAME, REFERENCE), max_size=30)),
    st.tuples(st.just("pop"), st.lists(NAME, max_size=10)),
    st.tuples(st.just("doubt"), st.lists(NAME, max_size=10)),
    st.tuples(st.just("purge"), st.lists(NAME, max_size=10)),
    st.tuples(st.just("tidy"), st.integers(0, 20)),
    st.tuples(st.just("clear"), st.none()),
)


@contextmanager
def small(page: int, few: int) -> Iterator[None]:
    """Let pages have at most so many names, and be due early."""
    with ExitStack() as stack:
        for module in (pages_module, names_module):
            for name, value in (("PAGE", page), ("FEW", few), ("SLICE", max(1, page // 4))):
                stack.enter_context(patch.object(module, name, value))
        yield


def without(gone: set[int]) -> "There":
    """Tell that all blocks are there but these."""

    def there(keys: "Words") -> "NDArray[np.bool_]":
        return np.array([int(key) not in {0, *gone} for key in keys], np.bool_)

    return there


@settings(max_examples=300, deadline=None)
@given(
    st.lists(STEP, max_size=30),
    st.sampled_from((0, 2, 256)),
    st.sampled_from((1, 3, 8, 1 << 16)),
    st.sampled_from((0, 5, 1 << 13)),
)
def test_names_are_a_dictionary(
    history: list[tuple[str, Any]], few: int, page: int, front: int
) -> None:
    """Names of blocks that are gone may stay until they are purged, all others do until removed."""
    tally = Tally()
    names, model, gone = Names(tally), dict[int, int](), set[int]()
    live: dict[int, int] = {}
    with (
        small(page, few),
        patch.object(names_module, "_FRONT", front),
    ):
        for what, given in history:
            _apply(tally, (names, model, gone), what, given)
            live = {name: key for name, key in model.items() if key not in gone}
            assert live.items() <= dict(names).items() <= model.items()
            assert {name: names.get(name) for name in live} == live
            assert tally.bytes == names.bytes
            assert tally.gone == names._doubted >= 0
            assert tally.struck == sum(page.struck for page in names._pages)
            assert {*live.values()} <= {*names.references().tolist()}
        names.purge(without(gone))
        assert dict(names) == live
        assert {name: names.get(name) for name in model} == {n: live.get(n) for n in model}
        assert {name: names.pop(name) for name in live} == live
        while tally.tidy(1):
            pass
        assert dict(names) == {}
        names.clear()
    assert (tally.bytes, names.bytes, tally.promised) == (0, 0, 0)


def _apply(
    tally: Tally, state: tuple[Names, dict[int, int], set[int]], what: str, given: Any
) -> None:
    names, model, gone = state
    if what == "add":
        told = {name: key for name, key in given if key not in gone}
        names.add([*told], told.values())
        model.update(told)
    elif what == "pop":
        for name in given:
            key = names.pop(name)
            assert key == model.pop(name, None) or key in {None, *gone}
    elif what in ("doubt", "purge"):
        lost = [name for name in set(given) if name in model]
        gone.update(model[name] for name in lost)
        if what == "doubt":
            names.doubt(len(lost), without(gone))
        else:
            names.purge(without(gone))
    elif what == "tidy":
        tally.tidy(given)
    else:
        names.clear()
        model.clear()
        assert tally.bytes == 0


def _many(tally: Tally, number: int) -> Names:
    names = Names(tally)
    for start in range(0, number, 100):
        names.add([one * 7919 % 65_521 for one in range(start, start + 100)], range(1, 101))
        tally.tidy(1)
    while tally.tidy(1):
        pass
    return names


def test_names_of_what_is_gone_leave_one_slice_at_a_time() -> None:
    """Even if all blocks go at once; until then their names stay."""
    tally, slices = Tally(), 0
    with small(page=128, few=16):
        names = _many(tally, 10_000)
        alive = len(dict(names))
        names.doubt(10_000, without(set(range(1, 101))))
        assert len(dict(names)) == alive
        while tally.tidy(1):
            left = len(dict(names))
            assert alive - 32 <= left <= alive
            slices, alive = slices + (left < alive), left
    assert slices > 250
    assert alive <= 16 + 10_000 // 8, "the new ones that were in no page"


def test_pages_that_are_due_are_settled_one_by_one() -> None:
    """Also if new names make all of them due at once."""
    tally = Tally()
    with (
        small(page=128, few=16),
        patch.object(names_module, "_FRONT", 16),
        patch.object(Page, "settled", autospec=True, side_effect=Page.settled) as settled,
    ):
        names = _many(tally, 10_000)
        names.add([one * 7919 % 65_521 for one in range(10_000, 20_000)], range(1, 10_001))
        pages, before = len(names._pages), settled.call_count
        assert len(tally.due) == pages
        while tally.tidy(1):
            assert settled.call_count == before + 1
            before += 1
        assert len(names._pages) > pages > 78
        assert all(len(page) <= 128 for page in names._pages)
        assert len(dict(names)) == 20_000


def test_small_pages_are_joined() -> None:
    """If all but a few names of every page leave, few pages stay."""
    tally = Tally()
    with small(page=128, few=4):
        names = _many(tally, 10_000)
        before = len(names._pages)
        for number, (name, _) in enumerate(sorted(names)):
            if number % 100:
                names.pop(name)
        while tally.tidy(1):
            pass
        assert (len(dict(names)), before > 78) == (100, True)
        assert len(names._pages) < before // 4


def test_lower_names_come_after_the_lowest_page_has_gone() -> None:
    """They belong to the page that is the lowest then."""
    tally = Tally()
    with small(page=4, few=0):
        names = Names(tally)
        for lowest in (60, 20):
            names.add(range(lowest, lowest + 40), range(1, 41))
            while tally.tidy(1):
                pass
            for name in range(lowest, lowest + 30):
                assert names.pop(name) == name - lowest + 1
            while tally.tidy(1):
                pass
            assert [names.get(name) for name in range(lowest + 30, lowest + 40)] == [*range(31, 41)]
