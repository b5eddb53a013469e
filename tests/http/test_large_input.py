"""Bodies that are too large get a clear error, and the router goes on serving."""

import json

import pytest

from tests.support import (
    Router,
    Stub,
    error_of,
    head,
    read_all,
    send,
)

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.usefixtures("still_open")
LIMIT = 65536


def answer_to(door: Router, sent: bytes) -> bytes:
    """Send bytes; return all that the router answers before it closes the connection."""
    with send(door.port, sent) as client:
        return read_all(client)


@pytest.mark.parametrize("fields", [[], [b"expect: 100-continue"]], ids=["plain", "expect"])
def test_a_body_declared_too_large(worker: Stub, door: Router, fields: list[bytes]) -> None:
    """A declared length over the limit gets 413 from the head alone, without a 100 Continue."""
    reply = answer_to(door, head(CHAT, LIMIT + 1, *fields))
    assert reply.startswith(b"HTTP/1.1 413 ")
    error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert str(LIMIT) in error["message"]
    assert worker.requests == []


def test_expect_is_answered_for_a_body_that_fits(door: Router) -> None:
    """`Expect` is answered with 100 Continue before the body is sent."""
    body = b'{"model":"m"}'
    with send(door.port, head(CHAT, len(body), b"expect: 100-continue")) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 100 Continue")
        client.sendall(body)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_grows_too_large(worker: Stub, door: Router) -> None:
    """A chunked body gets 413 once it exceeds the limit."""
    start = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
    piece = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    reply = answer_to(door, start + piece * 16 + b"1\r\nx\r\n")
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert worker.requests == []


def test_the_limit_itself_fits(worker: Stub, door: Router) -> None:
    """A body of exactly the limit passes, with a length or in chunks; one byte more does not."""
    body = b'{"model":"m","x":"%b"}' % (b"x" * (LIMIT - 20))
    assert len(body) == LIMIT
    assert door.http.post(CHAT, content=body).status_code == 200
    assert door.http.post(CHAT, content=iter([body[:1000], body[1000:]])).status_code == 200
    assert len(worker.requests) == 2
    assert door.http.post(CHAT, content=body + b" ").status_code == 413
    assert door.http.post(CHAT, content=iter([body, b" "])).status_code == 413


def test_an_upload_too_large_hears_why(door: Router) -> None:
    """A client that sends a too large body without waiting reads 413, not a connection error."""
    reply = door.http.post(CHAT, content=b"x" * (4 << 20))
    assert reply.status_code == 413
    error_of(reply)
