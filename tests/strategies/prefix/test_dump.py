"""Prefix trees are written to bytes and restored, with the same contents and eviction order."""

# ruff: noqa: ARG005 - ways of one shape

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.api import TOKEN_ENDS
from strategies.prefix.block_keys import TEXT_ENDS
from strategies.prefix.dump import BadDump, dump, restore
from strategies.prefix.tree import BLOCKS, PrefixTree
from tests.strategies.prefix.tries import PROMPTS, STEPS, WORKERS, keys, sound

LARGE = 1 << 22
#: Prompts, and whether fewer cached tokens than predicted are reported for them.
_REPORTS = st.tuples(WORKERS, PROMPTS, st.booleans())


def taken_over(tree: PrefixTree, limit: int = LARGE) -> PrefixTree:
    """Return a new tree restored from a dump of this one."""
    other = PrefixTree(limit)
    restore(other, dump(tree))
    return other


@given(STEPS, PROMPTS, st.lists(_REPORTS, max_size=40), st.sampled_from((12, 50)))
def test_it_goes_on_as_the_one_before(
    steps: list[tuple[str, tuple[int, ...]]],
    asked: tuple[int, ...],
    later: list[tuple[str, tuple[int, ...], bool]],
    capacity: int,
) -> None:
    """The restored tree has the same holders, and evicts in the same order whatever comes later."""
    one = PrefixTree(LARGE)
    for worker, prompt in steps:
        one.close(one.insert(keys(prompt), worker), answer=3.0)
    other = taken_over(one)
    sound(other)
    known = {asked, *(prompt for _, prompt in steps), *(prompt for _, prompt, _ in later)}
    for worker, prompt, fewer in [*later, ("a", asked, False)]:
        for path in map(keys, known):
            assert other.held(path) == one.held(path)
        assert (len(other), other.bytes) == (len(one), one.bytes)
        for tree in (one, other):
            placed = tree.insert(keys(prompt), worker, capacity, gpu_only=True)
            tree.close(placed)
            tree.correct(placed, fewer=fewer)
        sound(other)


@pytest.mark.parametrize("ends", [TEXT_ENDS, TOKEN_ENDS, BLOCKS])
def test_tokens_are_those_of_before(ends: Any) -> None:
    """Sizes in tokens survive for blocks of text and of tokens; prompts cut in other ways are left
    out."""
    tree = PrefixTree(LARGE)
    tree.close(tree.insert(keys((1, 2, 3)), "a", None, ends, 0.25, tail=5.0), answer=7.0)
    tree.close(tree.insert(keys((4,)), "b", None, range(0, 100, 7), 1.0))
    (before, _), (after, other) = (list(one.shadows()) for one in (tree, taken_over(tree)))
    assert after.size == before.size
    assert (other.worker, other.blocks) == ("b", 0)


def form() -> dict[str, Any]:
    """Return the decoded dump of two prompts."""
    tree = PrefixTree(LARGE)
    for prompt in ((1, 2), (1, 3)):
        tree.close(tree.insert(keys(prompt), "a"))
    found: dict[str, Any] = msgspec.msgpack.decode(dump(tree))
    return found


Held = list[list[Any]]
#: Ways to corrupt a dump: `found` is the whole dump, `runs` and `held` its lists.
WAYS: dict[str, Callable[[dict[str, Any], Held, Held], object]] = {
    "version": lambda found, runs, held: found.update(version=99),
    "parent after its child": lambda found, runs, held: runs[0].__setitem__(0, 1),
    "odd keys": lambda found, runs, held: runs[0].__setitem__(1, b"123"),
    "no keys": lambda found, runs, held: runs[1].__setitem__(1, b""),
    "twice": lambda found, runs, held: runs.append(list(runs[0])),
    "unknown ends": lambda found, runs, held: runs[0].__setitem__(2, 7),
    "odd unit": lambda found, runs, held: runs[0].__setitem__(3, float("nan")),
    "no such run": lambda found, runs, held: held[0].__setitem__(0, 17),
    "before the first run": lambda found, runs, held: held[0].__setitem__(0, -1),
    "too many blocks": lambda found, runs, held: held[0].__setitem__(1, 99),
    "odd answer": lambda found, runs, held: held[0].__setitem__(2, -1.0),
    "backwards": lambda found, runs, held: held.reverse(),
    "held twice": lambda found, runs, held: held.append(list(held[-1])),
    "odd limit": lambda found, runs, held: found["workers"][0].__setitem__(1, -1.0),
    "worker twice": lambda found, runs, held: found["workers"].append(found["workers"][0]),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_makes_no_sense_is_refused(way: str) -> None:
    """A corrupt dump raises BadDump and leaves the tree empty."""
    found = form()
    restore(PrefixTree(LARGE), msgspec.msgpack.encode(found))
    WAYS[way](found, found["runs"], found["workers"][0][2])
    tree = PrefixTree(LARGE)
    with pytest.raises(BadDump, match="prefix tree"):
        restore(tree, msgspec.msgpack.encode(found))
    assert (len(tree), list(tree.shadows()), tree.root.children) == (0, [], {})


#: Ways to tear a prefix apart, and how much of it is then of use.
TORN: dict[str, tuple[Callable[[Held], object], int]] = {
    "no beginning": (lambda held: held.remove(held[3]), 0),
    "half a beginning": (lambda held: held[3].__setitem__(1, 1), 1),
    "no middle": (lambda held: held.remove(held[1]), 3),
    "beginning first": (lambda held: held.insert(0, [*held.pop(3)[:3], 0]), 2),
}


@pytest.mark.parametrize("way", TORN)
def test_an_end_without_its_beginning_is_left_out(way: str) -> None:
    """So is one that would be forgotten after it, and what follows; everything else is held."""
    tree = PrefixTree(LARGE)
    for prompt in ((1, 2, 3, 4), (1, 2, 3), (1, 2, 9), (5, 6)):
        tree.close(tree.insert(keys(prompt), "a"))
    found = msgspec.msgpack.decode(dump(tree))
    tear, kept = TORN[way]
    tear(found["workers"][0][2])
    other = PrefixTree(LARGE)
    restore(other, msgspec.msgpack.encode(found))
    sound(other)
    assert other.held(keys((5, 6))) == {"a": 2}
    assert len(other) == 2 + kept


@given(st.binary(max_size=300))
def test_anything_is_refused(data: bytes) -> None:
    """Arbitrary bytes raise BadDump and no other error."""
    tree = PrefixTree(LARGE)
    with pytest.raises(BadDump):
        restore(tree, data)
