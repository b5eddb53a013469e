"""Chained block keys."""

import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.block_keys import TEXT_ENDS, chain, even_root, root_key

SIXTEENS = range(0, 1 << 20, 16)


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_longer_text_begins_with_the_shorter_ones_keys(head: bytes, tail: bytes) -> None:
    """Appending text never changes the keys of blocks that were already full."""
    short = chain(0, head, SIXTEENS)
    assert chain(0, head + tail, SIXTEENS)[: len(short)] == short
    assert len(short) == len(head) // 16


@given(st.binary(min_size=64, max_size=200), st.integers(0, 15))
def test_a_change_changes_every_key_after_it(text: bytes, at: int) -> None:
    """One flipped byte in the first block changes every key of the text."""
    other = bytearray(text)
    other[at] ^= 1
    assert not set(chain(0, text, SIXTEENS)) & set(chain(0, bytes(other), SIXTEENS))


def test_identity_keeps_tenants_apart() -> None:
    """Model, adapter and salt each change the root key, and cannot be confused by joining them."""
    roots = [root_key("m", "a", "b"), root_key("m", "ab", ""), root_key("ma", "b", ""), root_key()]
    assert len(set(roots)) == len(roots)
    text = b"x" * 64
    assert not set(chain(roots[0], text, SIXTEENS)) & set(chain(roots[1], text, SIXTEENS))


def test_blocks_of_text_grow_with_their_depth() -> None:
    """Each block is at most a small part of the text before it, and long prompts have few."""
    sizes = [end - start for start, end in pairwise(TEXT_ENDS)]
    assert TEXT_ENDS[0] == 0
    assert sizes == sorted(sizes)
    for start, size in zip(TEXT_ENDS, sizes, strict=False):
        assert size <= max(1024, start / 10)
    assert len(chain(0, bytes(1 << 20))) < 300


@given(st.binary(max_size=40_000), st.binary(max_size=40_000))
def test_text_that_grows_keeps_its_keys(head: bytes, tail: bytes) -> None:
    """Block boundaries do not depend on how long the text becomes."""
    short = chain(7, head)
    assert chain(7, head + tail)[: len(short)] == short
    assert TEXT_ENDS[len(short)] <= len(head) < TEXT_ENDS[len(short) + 1]


def test_nothing_is_kept_of_salts() -> None:
    """A client may send a new, long salt each time: none of them may stay in memory."""
    tracemalloc.start()
    try:
        for number in range(20):
            even_root("", f"{number}" + "x" * (1 << 20))
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
