"""Parsing a worker's answer piece by piece, without a socket."""

import pytest

from router.upstream.response import MAX_HEAD_BYTES, ResponseParser

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def read(*pieces: bytes) -> ResponseParser:
    """Return a reader that was fed all of these pieces."""
    reader = ResponseParser()
    for piece in pieces:
        assert reader.feed(piece) is None
    return reader


@pytest.mark.parametrize("at", range(1, len(HEAD) + 20, 7))
def test_an_answer_is_the_same_wherever_it_is_cut(at: int) -> None:
    """A read may end at any byte."""
    whole = HEAD + b"Content-Length: 5\r\n\r\nhello"
    reader = read(whole[:at], whole[at:])
    assert reader.head is not None
    assert (reader.head.status, reader.head.length) == (200, 5)
    assert reader.complete
    assert reader.plain
    assert not reader.last
    assert (reader.unread, reader.take(), reader.unread) == (5, b"hello", 0)


def test_what_is_not_framed_ends_once_with_the_connection() -> None:
    """Without a length the body ends when the connection closes, per RFC 9112 section 6.3."""
    reader = read(HEAD + b"\r\n", b"hel", b"lo")
    assert not reader.complete
    assert [reader.end(), reader.end()] == [True, False]
    assert reader.take() == b"hello"


@pytest.mark.parametrize("framing", [b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_what_is_framed_does_not_end_before_its_time(framing: bytes) -> None:
    """If the connection is lost before the body is complete, the answer was cut off."""
    reader = read(HEAD + framing + b"\r\n")
    assert not reader.end()
    assert not reader.complete


def test_a_second_answer_spoils_the_connection_and_not_the_first() -> None:
    """Bytes after the answer are unsolicited, so the connection cannot be kept."""
    reader = read(HEAD + b"Content-Length: 2\r\n\r\nok" + HEAD + b"Content-Length: 2\r\n\r\nno")
    assert reader.spoilt
    assert not reader.plain
    assert reader.take() == b"ok"


def test_interim_answers_are_passed_over() -> None:
    """A 1xx answer is skipped, none of its headers is mixed in, and `plain` is false."""
    hints = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 99\r\nLink: </x>\r\n\r\n"
    reader = read(hints + HEAD + b"\r\n")
    assert reader.head is not None
    assert reader.head.length is None
    assert [name for name, _ in reader.head.headers] == [b"content-type"]
    assert not reader.plain


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP"),
        (b"HTTP/1.1 999 Odd\r\n\r\n", "a status of 999"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", "switch"),
        (HEAD + b"X: " + b"x" * MAX_HEAD_BYTES, "headers without end"),
    ],
)
def test_what_is_no_answer_is_told(data: bytes, said: str) -> None:
    """The error says what was wrong."""
    wrong = ResponseParser().feed(data)
    assert wrong is not None
    assert said in str(wrong)
    assert wrong.__traceback__ is None


def test_a_worker_that_will_close_says_so() -> None:
    """After `Connection: close` the connection is not kept, and `plain` is false."""
    reader = read(HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok")
    assert reader.last
    assert not reader.plain


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize("begun", [b"0\r\nX: ", b"0\r\nX", b"1;"], ids=["value", "name", "chunk"])
def test_what_follows_a_body_must_end_too(begun: bytes) -> None:
    """The parser keeps all of a trailer until it ends, so one without end is refused."""
    reader = read(CHUNKED + begun, b"x" * (MAX_HEAD_BYTES // 2), b"x" * (MAX_HEAD_BYTES // 2))
    wrong = reader.feed(b"x")
    assert wrong is not None
    assert "headers without end" in str(wrong)


def test_an_answer_in_tiny_chunks_may_be_long() -> None:
    """Only what comes without a byte of the body is bounded, not all framing together."""
    tiny = b"1\r\nx\r\n" * 40_000
    assert len(read(CHUNKED, tiny, tiny, tiny).take()) == 5 + 3 * 40_000


def test_one_read_may_bring_more_of_a_body_than_of_framing() -> None:
    """What was read before somebody looked does not count if a byte of it is of the body."""
    body = b"x" * (2 * MAX_HEAD_BYTES)
    assert read(HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body).take() == body
