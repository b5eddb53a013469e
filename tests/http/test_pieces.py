"""Requests that share a read with others, ignored upgrades, and odd codings of answers."""

import socket

import pytest

from tests.support import MakeRouter, MakeStub, read_all, send, until

PATH = b"/v1/chat/completions"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"


def request(size: int, *, chunked: bool = False, fields: bytes = b"", last: bool = False) -> bytes:
    """A chat request whose message has that many bytes."""
    text = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * size)
    close = b"connection: close\r\n" if last else b""
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%b%b" % (PATH, close, fields)
    if not chunked:
        return head + b"content-length: %d\r\n\r\n%b" % (len(text), text)
    return head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)


def statuses(client: socket.socket) -> list[int]:
    """Read until the connection is closed; return the statuses of all answers."""
    with client:
        return [int(one[:3]) for one in read_all(client).split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("size", [100, 120_000])
@pytest.mark.parametrize("cut", [1, 30, 60])
def test_a_head_that_begins_in_the_read_of_a_body(
    stub: MakeStub, route: MakeRouter, size: int, cut: int
) -> None:
    """A head is parsed correctly if its first bytes come in one read with the previous body."""
    worker = stub()
    router = route(worker.url)
    second = request(10, last=True)
    client = send(router.port, request(size) + second[:cut])
    until(lambda: len(worker.requests) == 1)
    client.sendall(second[cut:])
    assert statuses(client) == [200, 200]


def test_requests_behind_a_large_one(stub: MakeStub, route: MakeRouter) -> None:
    """Its bytes do not count towards the limits of those behind it: framing and fields."""
    router = route(stub().url)
    data = request(100_000) + request(10, chunked=True) + request(10, chunked=True)
    large = request(10, fields=b"x-large: %b\r\n" % (b"y" * 60_000), last=True)
    assert statuses(send(router.port, data + large)) == [200, 200, 200, 431]


@pytest.mark.parametrize("size", [100, 30_000, 70_000, 150_000])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_wish_to_upgrade(stub: MakeStub, route: MakeRouter, size: int, chunked: bool) -> None:
    """An upgrade request is ignored, however long its body is (RFC 9110 section 7.8)."""
    worker = stub()
    router = route(worker.url)
    client = send(router.port, request(size, chunked=chunked, fields=H2C))
    assert statuses(client) == [200]
    assert len(worker.requests) == 1


def test_a_wish_to_upgrade_with_more_than_is_allowed(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """With `Upgrade` too, a body that is too large gets 413, without an error in the router."""
    router = route(stub().url)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (71_680, b"a" * 71_680)
    head = b"GET /health/live HTTP/1.1\r\nhost: x\r\n" + H2C + b"transfer-encoding: chunked\r\n\r\n"
    assert statuses(send(router.port, head + body)) == [413]
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip", b"identity", b"chunked, chunked"])
def test_an_answer_in_another_coding(stub: MakeStub, route: MakeRouter, coding: bytes) -> None:
    """An answer in a transfer coding that the router did not ask for is 502 (RFC 9112, 6.1)."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: %b\r\n\r\n" % coding
    router = route(stub([head + b"2\r\nok\r\n0\r\n\r\n", "close"]).url)
    assert statuses(send(router.port, request(10, last=True))) == [502]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (b"content-type: Text/Event-Stream; charset=utf-8\r\n", True),
        (b"content-type: text/event-stream\r\ncontent-encoding: identity\r\n", True),
        (b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n", False),
    ],
)
def test_what_is_a_stream_of_events(
    stub: MakeStub, route: MakeRouter, fields: bytes, told: bool
) -> None:
    """A broken event stream ends with an error event, unless it is compressed."""
    head = b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n" % fields
    router = route(stub([head + b"9\r\ndata: 1\n\n\r\n", 0.05, "close"]).url)
    with send(router.port, request(10, last=True)) as client:
        answer = read_all(client)
    assert (b"worker_failed" in answer) is told
    assert answer.endswith(b"0\r\n\r\n") is told


def test_events_that_cannot_be_told_apart_pass_at_once(stub: MakeStub, route: MakeRouter) -> None:
    """Pieces of a compressed stream are relayed at once, without waiting for an event to end."""
    fields = b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
    head = b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n" % fields
    router = route(stub([head + b"4\r\n\x1f\x8b\x08\x00\r\n", "stall"]).url)
    with send(router.port, request(10)) as client:
        client.settimeout(10)
        got = b""
        while b"\x1f\x8b\x08\x00" not in got:
            got += client.recv(65536)
