"""A request head seen before is recognised, however its bytes are split; others are parsed."""

import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.errors import BodyTooLarge
from router.http.exchange import Exchange
from router.http.parser import MAX_RECALLED_HEAD_BYTES, Recall, RequestParser
from router.settings.server import LimitSettings

#: The longest body allowed, in bytes.
LIMIT = 100


class Listener:
    """Collects the bodies that are read."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def admit(self, exchange: Exchange) -> int:
        """Admit every request."""
        assert exchange.headers[0] == (b"host", b"a")
        return LIMIT

    def received(self, exchange: Exchange) -> None:
        """Keep its body."""
        self.bodies.append(exchange.body)

    def write(self, data: bytes) -> None:
        """Answer nothing."""

    finished = feed_from = cut = write


def request(length: int, body: bytes, more: bytes = b"") -> bytes:
    """Build a request, or the beginning of one."""
    return b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n%b\r\n%b" % (length, more, body)


def reader() -> tuple[Listener, RequestParser]:
    """Return a reader that has already read one request."""
    listener: Any = Listener()
    reading = RequestParser(listener, LimitSettings())
    reading.feed(request(3, b"one"))
    return listener, reading


@given(
    st.lists(st.binary(max_size=20), max_size=6),
    st.lists(st.integers(0, 2000), max_size=30),
)
def test_cut_anywhere(bodies: list[bytes], cuts: list[int]) -> None:
    """Every body arrives whole, wherever the bytes are split."""
    listener, reading = reader()
    data = b"".join(request(len(body), body) for body in bodies)
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for start, end in pairwise(places):
        reading.feed(data[start:end])
    assert listener.bodies == [b"one", *bodies]
    assert not reading.in_head
    assert reading.current is None


def test_what_is_missing() -> None:
    """The body under way of a recognised head counts as progress."""
    listener, reading = reader()
    reading.feed(request(5, b"t"))
    under_way = reading.current
    assert under_way
    before = reading.progress
    reading.feed(b"w")
    assert reading.progress > before
    reading.feed(b"o..")
    assert reading.current is None
    assert listener.bodies == [b"one", b"two.."]


@pytest.mark.parametrize("body", [b"", b"x", b"x" * (LIMIT + 1)])
def test_too_long(body: bytes) -> None:
    """A body that is too long is refused as soon as its length is known."""
    listener, reading = reader()
    with pytest.raises(BodyTooLarge):
        reading.feed(request(LIMIT + 1, body))
    assert listener.bodies == [b"one"]


def test_a_client_that_waits_to_be_told() -> None:
    """A head with `Expect` is parsed every time, as the client waits for a reply to it."""
    listener, reading = reader()
    waiting = request(3, b"", b"expect: 100-continue\r\n")
    for _ in range(2):
        reading.feed(waiting)
        assert reading.expects
        reading.feed(b"two")
        assert not reading.expects
    assert listener.bodies == [b"one", b"two", b"two"]


def test_a_body_in_tiny_pieces() -> None:
    """It takes a few times its size in memory, not a hundred times."""
    listener: Any = Listener()
    listener.admit = lambda _: 1 << 20
    reading = RequestParser(listener, LimitSettings())
    reading.feed(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    some = b"1\r\nx\r\n" * 4096
    tracemalloc.start()
    try:
        for _ in range(32):
            reading.feed(some)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    reading.feed(b"0\r\n\r\n")
    assert listener.bodies == [b"x" * (32 * 4096)]


def message(length: bytes, body: bytes, *more: bytes) -> bytes:
    """Build a request with these header lines."""
    lines = [b"POST / HTTP/1.1", b"host: a", b"Content-Length: " + length, *more, b"", body]
    return b"\r\n".join(lines)


def test_the_same_with_another_length() -> None:
    """Only the digits of the length may differ; they give the length of the body."""
    recall: Recall[str] = Recall()
    recall.keep(message(b"3", b"abc", b"x: y"), "head")
    assert recall.find(message(b"5", b"abcde", b"x: y")) == ("head", b"abcde", 0)
    assert recall.find(message(b"0", b"", b"x: y")) == ("head", b"", 0)
    assert recall.find(message(b"5", b"abcd", b"x: y")) == ("head", b"abcd", 1)
    assert recall.find(message(b"5", b"", b"x: y")) == ("head", b"", 5)
    for other in (
        message(b"5", b"abcdef", b"x: y"),  # more is there
        message(b"5", b"", b"x: y")[:-1],  # not all of the head is there
        message(b"5", b"abcde", b"x: z"),
        message(b"5", b"abcde"),
        message(b"5", b"abcde", b"x: y", b"content-length: 5"),
        message(b"+5", b"abcde", b"x: y"),
        message(b"", b"", b"x: y"),
        message(b"5 ", b"abcde", b"x: y"),
        message(b"0" * 30 + b"5", b"abcde", b"x: y"),
        message(b"", b"", b"x: y").partition(b"Length: ")[0] + b"Length: ",  # cut before the digits
        message(b"55", b"", b"x: y").partition(b"5\r\n")[0],  # cut amid the digits
        b"",
    ):
        assert recall.find(other) is None


def test_what_is_not_remembered() -> None:
    """Not kept: heads without exactly one length, very long ones, and more than one message."""
    for kept in (
        message(b"3", b"abc") + b"GET / HTTP/1.1\r\n\r\n",
        message(b"3", b"abc", b"content-length: 3"),
        message(b"3", b"abc", b"x: " + b"y" * MAX_RECALLED_HEAD_BYTES),
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    ):
        recall: Recall[str] = Recall()
        recall.keep(kept, "head")
        assert recall.find(kept) is None


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 99))
def test_nothing_false_is_recognised(body: bytes, other: bytes, length: int) -> None:
    """Only the kept head is recognised, with no more body than its length says."""
    recall: Recall[str] = Recall()
    kept = message(b"%d" % len(body), body)
    recall.keep(kept, "head")
    found = recall.find(message(b"%d" % length, other))
    missing = length - len(other)
    assert found == (("head", other, missing) if missing >= 0 else None)
