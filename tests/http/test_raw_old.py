"""HTTP/1.0 clients get only what they understand, and can tell where an answer ends."""

import socket

import pytest

from tests.http.raw.answers import Answer, Answers
from tests.http.raw.judge import says_close
from tests.http.raw.request import BODY, HOST, LENGTH, head
from tests.support import JSON, OK, Action, MakeRouter, MakeStub

_LINE = b"POST /v1/completions HTTP/1.0"
_TYPE = b"content-type: application/json\r\n"

#: The same answer with its end marked by chunks, or by the close of the connection.
CHUNKED: list[Action] = [
    b"HTTP/1.1 200 OK\r\n" + _TYPE + b"transfer-encoding: chunked\r\n\r\n",
    b"%x\r\n%b\r\n" % (len(JSON[:9]), JSON[:9]),
    b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON[9:]), JSON[9:]),
]
UNFRAMED: list[Action] = [b"HTTP/1.1 200 OK\r\n" + _TYPE + b"\r\n", JSON[:9], JSON[9:], "close"]


def asked(port: int, *fields: bytes) -> tuple[Answer, bool]:
    """Send a request twice; return the first answer, and whether the connection was kept."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        answers = Answers(client, head=False)
        client.sendall(head(_LINE, HOST, LENGTH, *fields) + BODY)
        answers.read_until(1)
        client.sendall(head(_LINE, HOST, LENGTH, *fields) + BODY)
        answers.read_until(2)
    assert answers.broken is None
    assert all(answer.whole for answer in answers.final)
    return answers.final[0], len(answers.final) == 2


@pytest.mark.parametrize("script", [CHUNKED, UNFRAMED], ids=["chunks", "unframed"])
@pytest.mark.parametrize("fields", [(), (b"connection: keep-alive",)], ids=["plain", "keep-alive"])
def test_a_stream_ends_with_its_connection(
    stub: MakeStub, route: MakeRouter, script: list[Action], fields: tuple[bytes, ...]
) -> None:
    """Without a transfer coding (RFC 9112 section 6.1) the close ends it, even with keep-alive."""
    answer, kept = asked(route(stub(script).url).port, *fields)
    assert answer.body == JSON
    assert not answer.values(b"transfer-encoding")
    assert says_close(answer)
    assert not kept


def test_a_length_lets_the_connection_live(stub: MakeStub, route: MakeRouter) -> None:
    """The connection is kept only if the answer says so (RFC 9112 section 9.3)."""
    answer, kept = asked(route(stub(OK).url).port, b"connection: keep-alive")
    assert answer.body == JSON
    assert answer.values(b"content-length") == [b"%d" % len(JSON)]
    assert kept == (b"keep-alive" in b",".join(answer.values(b"connection")).lower())


def test_without_a_word_it_is_closed(stub: MakeStub, route: MakeRouter) -> None:
    """Without keep-alive the connection is closed (RFC 9112 section 9.3)."""
    answer, kept = asked(route(stub(OK).url).port)
    assert answer.body == JSON
    assert not kept


def test_what_is_cut_off_is_reset(stub: MakeStub, route: MakeRouter) -> None:
    """An answer cut off by its worker ends with a reset, as a normal close would look complete."""
    half: list[Action] = [CHUNKED[0], b"4\r\n" + JSON[:4] + b"\r\n", 0.05, "close"]
    router = route(stub(half).url)
    with socket.create_connection(("127.0.0.1", router.port), timeout=30) as client:
        client.sendall(head(_LINE, HOST, LENGTH) + BODY)
        said: list[bytes] = []
        with pytest.raises(ConnectionResetError):
            said.extend(iter(lambda: client.recv(65536), b""))
        assert b"".join(said).endswith(JSON[:4])
