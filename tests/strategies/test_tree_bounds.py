"""A prefix tree's memory stays within its bound, which its workers share."""

import tracemalloc
from array import array
from bisect import bisect_right
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.block_keys import TEXT_ENDS
from strategies.prefix.tree import AT_ONCE, PrefixTree
from tests.strategies.tries import PROMPTS, STEPS, Prompt, Reference, keys, sound


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
            assert all(shadow.size <= capacity for shadow in tree._shadows.values())
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


def test_a_newcomer_takes_its_share_bit_by_bit() -> None:
    """With each placement on the new worker the others shrink a little, always faster than it
    grows."""
    limit = 2_000 * 776
    tree = PrefixTree(limit)
    for number in range(3_000):
        tree.close(tree.insert(keys((number % 2, number)), f"w{number % 2}"))
    full = tree.bytes
    assert full > 0.95 * limit
    others = [tree._shadows[name] for name in ("w0", "w1")]
    sizes = [full]
    for number in range(60):
        entries = sum(len(list(shadow)) for shadow in others)
        tree.close(tree.insert(keys((2, number)), "new"))
        assert entries - sum(len(list(shadow)) for shadow in others) <= AT_ONCE
        sizes.append(tree.bytes)
        shrunk = all(shadow.bytes <= limit / 3 for shadow in others)
        assert shrunk or sizes[-1] < sizes[-2]
    assert shrunk
    assert max(sizes) <= limit
