"""A table of raw requests, sent in one piece, byte by byte, and cut anywhere.

HTTP/1.0 clients get only what they understand, and can tell where an answer ends.
"""

import socket
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.raw.answers import Answer, Answers
from tests.http.raw.judge import complaints, says_close
from tests.http.raw.play import Cut, bytewise, play, serves, whole
from tests.http.raw.request import BODY, HOST, LENGTH, OLD_LINE, head
from tests.http.raw.row import Row
from tests.http.raw.table import ROWS
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, Router, Stub, until

#: Rows with more bytes than this are sent in one piece only.
SMALL = 1000

SMALL_ROWS = [row for row in ROWS if row.size <= SMALL]
#: Without rows about values that the router checks only once the head is complete.
BYTEWISE_ROWS = [
    row for row in SMALL_ROWS if not row.name.startswith(("host/", "target/", "passing/"))
]


def check(door: Router, worker: Stub, row: Row, cut: Cut) -> None:
    """Play a row; check that the outcome is allowed and that the router goes on serving."""
    worker.requests.clear()
    seen = play(door.port, row, cut)
    assert serves(door.port)
    after = [request for request in worker.requests if b"\r\nx-request-id: after" in request]
    found = complaints(row, seen, [request for request in worker.requests if request not in after])
    assert not found, f"{row.name}: {'; '.join(found)}"
    assert len(after) == 1
    until(door.idle)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_in_one_piece(door: Router, worker: Stub, row: Row) -> None:
    """The outcome is one that the row allows, and no refused request reaches a worker."""
    check(door, worker, row, whole)


@pytest.mark.parametrize("row", BYTEWISE_ROWS, ids=lambda row: row.name)
def test_byte_by_byte(door: Router, worker: Stub, row: Row) -> None:
    """Sending byte by byte makes no difference."""
    check(door, worker, row, bytewise)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(row=st.sampled_from(SMALL_ROWS), places=st.lists(st.integers(0, SMALL), max_size=6))
def test_cut_anywhere(door: Router, worker: Stub, row: Row, places: list[int]) -> None:
    """Cutting a request in any few places makes no difference."""

    def cut(data: bytes) -> list[bytes]:
        cuts = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
        return [data[start:end] for start, end in pairwise(cuts)]

    check(door, worker, row, cut)


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
        client.sendall(head(OLD_LINE, HOST, LENGTH, *fields) + BODY)
        answers.read_until(1)
        client.sendall(head(OLD_LINE, HOST, LENGTH, *fields) + BODY)
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


def test_what_is_cut_off_is_reset(stub: MakeStub, route: MakeRouter) -> None:
    """An answer cut off by its worker ends with a reset, as a normal close would look complete."""
    half: list[Action] = [CHUNKED[0], b"4\r\n" + JSON[:4] + b"\r\n", 0.05, "close"]
    router = route(stub(half).url)
    with socket.create_connection(("127.0.0.1", router.port), timeout=30) as client:
        client.sendall(head(OLD_LINE, HOST, LENGTH) + BODY)
        said: list[bytes] = []
        with pytest.raises(ConnectionResetError):
            said.extend(iter(lambda: client.recv(65536), b""))
        assert b"".join(said).endswith(JSON[:4])
