"""A long text in JSON is decoded piece by piece, to the same bytes as at once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from router.prompt.canonical import encoded
from router.runtime.threads import BYTES

#: Characters of every length in UTF-8, and those that JSON writes in another way.
PIECES = ("a", "é", "日", "😀", "\n", "\\", '"', "\x01", " and words between", "\\" * 7)


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=40), st.booleans())
def test_it_is_the_same(pieces: list[str], escaped: bool) -> None:
    """Wherever it would be cut, whether or not other characters than ASCII are escaped."""
    part = "".join(pieces)
    text = part * (2 * BYTES // len(part.encode()) + 1)
    raw = Raw(json.dumps(text, ensure_ascii=escaped).encode())
    found = encoded(raw)
    assert found is not None
    assert b"".join(found) == text.encode()


def test_it_comes_in_pieces() -> None:
    """No piece is much longer than a slice, so that nobody waits for long."""
    found = encoded(Raw(json.dumps("All the king's horses.\n" * (4 * BYTES // 23)).encode()))
    assert found is not None
    assert 4 <= len(found) <= 6
    assert max(map(len, found)) < 1.1 * BYTES


@pytest.mark.parametrize("raw", [b'["a"]', b"{}", b"7", b"null", b'"\xff"', b""])
def test_what_is_no_text(raw: bytes) -> None:
    """Nothing is returned for anything else, or for a text that is not valid."""
    assert encoded(Raw(raw)) is None
