"""A prefix tree stays within its memory, and whoever holds a prefix's end holds its beginning."""

import tracemalloc
from array import array
from bisect import bisect_right
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.block_keys import TEXT_ENDS
from strategies.prefix.tree import Placement, PrefixTree
from tests.strategies.prefix.test_dump import taken_over
from tests.strategies.prefix.tries import PROMPTS, STEPS, Prompt, Reference, keys, sound


@given(STEPS, PROMPTS, st.integers(3, 24), st.none() | st.integers(1, 6))
def test_bound_holds_and_never_invents(
    steps: list[tuple[str, Prompt]], asked: Prompt, entries: int, capacity: int | None
) -> None:
    """A full tree stays within its bounds, stays consistent, and credits nothing false."""
    tree, reference = PrefixTree(entries * 1000), Reference()
    for worker, prompt in steps:
        tree.close(tree.insert(keys(prompt), worker, capacity))
        reference.insert(prompt, worker)
        tree.insert((), worker, capacity)
        assert tree.bytes <= entries * 1000
        sound(tree)
        if capacity is not None:
            assert all(shadow.size <= capacity for shadow in tree.shadows())
    truth = reference.held(asked)
    assert all(depth <= truth.get(worker, 0) for worker, depth in tree.held(keys(asked)).items())


@pytest.mark.parametrize("bounded", [True, False])
def test_memory_stays_where_it_is(bounded: bool) -> None:
    """Allocated memory stays bounded for any number of distinct prompts of 8,000 tokens (row L1 of
    docs/hyperpod.md); with a larger bound the same prompts exceed it."""
    limit, blocks = 1 << 18, bisect_right(TEXT_ENDS, 4 * 8000) - 1
    tree = PrefixTree(limit if bounded else 64 * limit)
    sizes = array("q", bytes(8 * 600))  # takes no more memory later
    tracemalloc.start()
    try:
        for number in range(600):
            prompt = [Random(number).getrandbits(64) for _ in range(blocks)]
            tree.close(tree.insert(prompt, f"w{number % 4}"))
            sizes[number] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (max(sizes) <= 1.1 * limit) is bounded
    assert (max(sizes[300:]) <= 1.1 * max(sizes[:300])) is bounded


Step = tuple[str, str, Prompt, int, int]
#: Few prompts, most of them sent to one worker, so that they share and come back.
_PROMPTS = st.lists(st.integers(0, 1), max_size=5).map(tuple)
_WORKERS = st.sampled_from("aaab")
#: Bytes that suffice for one entry of each worker at least, and seldom for all.
_LIMITS = st.integers(2, 12).map(lambda entries: entries * 1000)


def steps(*ends: str) -> st.SearchStrategy[list[Step]]:
    """Return random placements, and what comes after them: one of `ends`, or a worker leaves."""
    what = st.sampled_from((*["insert"] * 5, *ends, "forget"))
    return st.lists(
        st.tuples(what, _WORKERS, _PROMPTS, st.integers(0, 30), st.integers(1, 12)),
        min_size=30,
        max_size=60,
    )


class Part(NamedTuple):
    """The part of one run that a worker holds."""

    at: int
    keys: list[int]
    held: int
    extra: float
    stamp: int


def parts(tree: PrefixTree) -> dict[str, list[Part]]:
    """Return what every worker holds, in order of eviction."""
    return {
        shadow.worker: [
            Part(entry.node.at, [*entry.node.keys], entry.held, entry.extra, entry.stamp)
            for entry in shadow
        ]
        for shadow in tree.shadows()
    }


def end(tree: PrefixTree, what: str, placement: Placement, number: int) -> None:
    """End a request in the given way."""
    if what == "leave":
        tree.leave(placement)
        return
    tree.close(placement, float(number % 4))
    if what == "refused":
        tree.take_back(placement)
    elif what == "dropped":
        tree.keep(placement, number % 9)
    elif what == "reported":
        tree.correct(placement, fewer=number % 3 == 0)


def go(tree: PrefixTree, done: list[Step], *, tight: bool) -> None:
    """Take the steps; the tree is always sound, and a dump of it at the end holds the same."""
    under_way: list[Placement] = []
    for what, worker, prompt, number, capacity in done:
        if what == "insert":
            room = capacity if tight else None
            under_way.append(tree.insert(keys(prompt), worker, room, tail=number % 2 / 2))
        elif what == "forget":
            tree.forget(worker)
        elif under_way:
            placement = under_way.pop(number % len(under_way))
            end(tree, what, placement, number)
        sound(tree)
    assert parts(taken_over(tree)) == parts(tree)


@given(steps("close", "close", "refused", "dropped", "reported"), _LIMITS, st.booleans())
def test_what_workers_hold_is_connected(done: list[Step], limit: int, tight: bool) -> None:
    """With too little memory, and requests that need more than their workers' caches."""
    go(PrefixTree(limit), done, tight=tight)


@given(steps("leave", "leave"), _LIMITS)
def test_what_running_requests_hold_is_connected(done: list[Step], limit: int) -> None:
    """With too little memory for the requests that run."""
    go(PrefixTree(limit), done, tight=False)
