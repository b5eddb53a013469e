"""A request head seen before is recognised; anything else is left to the parser."""

from hypothesis import given
from hypothesis import strategies as st

from router.http.parser import MAX_RECALLED_HEAD_BYTES, Recall


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
