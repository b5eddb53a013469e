"""Chained block keys."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.blocks import chain, root_key


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_longer_text_begins_with_the_shorter_ones_keys(head: bytes, tail: bytes) -> None:
    """Appending never changes the keys of full blocks."""
    short = chain(0, head, 16)
    assert chain(0, head + tail, 16)[: len(short)] == short
    assert len(short) == len(head) // 16


@given(st.binary(min_size=64, max_size=200), st.integers(0, 15))
def test_a_change_changes_every_key_after_it(text: bytes, at: int) -> None:
    """One flipped byte in the first block gives a wholly different path."""
    other = bytearray(text)
    other[at] ^= 1
    assert not set(chain(0, text, 16)) & set(chain(0, bytes(other), 16))


def test_identity_keeps_tenants_apart() -> None:
    """Model, adapter and salt each give another root, and their parts do not run together."""
    roots = [root_key("m", "a", "b"), root_key("m", "ab", ""), root_key("ma", "b", ""), root_key()]
    assert len(set(roots)) == len(roots)
    text = b"x" * 64
    assert not set(chain(roots[0], text, 16)) & set(chain(roots[1], text, 16))
