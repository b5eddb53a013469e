"""Clients that disconnect after sending pipelined requests, or a part of one.

As in nginx, a client that closes its sending side has disconnected, whatever it would still read.
"""

import re
import socket
import threading

import pytest

from router.http.connection import MAX_PIPELINED
from tests.cancel.leaving import (
    CHAT,
    CHUNK,
    EVENT,
    PATIENT,
    SSE,
    Leave,
    assert_gone,
    chat,
    close,
    counted,
    half_close,
    reset,
)
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, head, post, read_all, send, until

ONE = head(CHAT, len(chat(stream=True))) + chat(stream=True)
ways = pytest.mark.parametrize("leave", [close, reset, half_close])


@ways
@pytest.mark.parametrize("script", [["stall"], [SSE + CHUNK, "stall"]], ids=["before", "within"])
@pytest.mark.parametrize("behind", [1, 20])
def test_with_requests_behind_the_one_being_answered(
    stub: MakeStub, route: MakeRouter, script: list[Action], behind: int, leave: Leave
) -> None:
    """The request being answered ends, the ones behind it never begin, and each is counted."""
    worker = stub(script)
    router = route(worker.url, **PATIENT)
    with send(router.port, ONE) as client:
        until(lambda: len(worker.requests) == 1)
        client.sendall(ONE * behind)
        until(lambda: any(len(c.waiting) == behind for c in tuple(router.door.clients)))
        leave(client)
        until(lambda: worker.closed_by_peer == 1)
    until(lambda: counted(router, "requests") == {"499": 1})
    until(lambda: counted(router, "refused_requests") == {"499": behind})
    until(router.idle)
    assert len(worker.requests) == 1
    assert counted(router, "worker_errors") == {}


@pytest.mark.parametrize("leave", [close, half_close])
def test_with_half_a_request_behind(stub: MakeStub, route: MakeRouter, leave: Leave) -> None:
    """A request of which only a part has arrived is counted too."""
    worker = stub(["stall"])
    router = route(worker.url, **PATIENT)
    with send(router.port, ONE) as client:
        until(lambda: len(worker.requests) == 1)
        client.sendall(ONE[:-1])
        leave(client)
        until(lambda: worker.closed_by_peer == 1)
    until(lambda: counted(router, "refused_requests") == {"499": 1})
    until(router.idle)
    assert counted(router, "requests") == {"499": 1}
    assert len(worker.requests) == 1


def test_sending_ahead(stub: MakeStub, route: MakeRouter) -> None:
    """Of pipelined requests only a bounded part is read ahead; all are answered in order."""
    gate: list[bool] = []
    worker = stub([lambda: bool(gate), *OK])
    router = route(worker.url, **PATIENT)
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 100_000)
    requests = [
        head(CHAT, len(body), b"x-request-id: turn-%02d" % turn) + body for turn in range(120)
    ]
    with send(router.port, b"") as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        sender = threading.Thread(target=client.sendall, args=(b"".join(requests),))
        sender.start()
        until(lambda: worker.requests)
        (line,) = router.door.clients
        sizes = [-1]

        def stands_still() -> bool:
            sizes.append(sum(len(exchange.body) for exchange in line.waiting))
            return len(sizes) > 20 and len(set(sizes[-20:])) == 1

        until(stands_still)
        assert sizes[-1] < 2 << 20
        assert sender.is_alive()
        gate.append(True)
        got = b""
        while got.count(JSON) < len(requests):
            got += client.recv(65536)
        sender.join(10)
    turns = re.findall(rb"x-request-id: turn-(\d+)", got)
    assert [int(turn) for turn in turns] == list(range(len(requests)))
    until(router.idle)


def test_too_many_ahead(stub: MakeStub, route: MakeRouter) -> None:
    """Beyond `PIPELINED` waiting requests, even small ones from one read, the next gets 400."""
    gate: list[bool] = []
    router = route(stub([lambda: bool(gate), *OK]).url, **PATIENT)
    with send(
        router.port, ONE + b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * (2 * MAX_PIPELINED)
    ) as client:
        until(lambda: any(c.refusal for c in tuple(router.door.clients)))
        (line,) = router.door.clients
        assert len(line.waiting) == MAX_PIPELINED
        gate.append(True)
        got = read_all(client)
    statuses = re.findall(rb"HTTP/1.1 (\d{3}) ", got)
    assert statuses == [b"200", *[b"404"] * MAX_PIPELINED, b"400"]
    assert b"Too many requests were sent" in got
    until(router.idle)


@pytest.mark.parametrize("begun", [b"", CHUNK], ids=["before", "within"])
def test_half_closing_before_the_end(stub: MakeStub, route: MakeRouter, begun: bytes) -> None:
    """The client gets what was sent so far, but no final chunk that would make it look complete."""
    worker = stub([SSE + begun, "stall"] if begun else ["stall"])
    router = route(worker.url, **PATIENT)
    with post(router.port, CHAT, chat(stream=True)) as client:
        until(lambda: worker.requests)
        got = b""
        while begun and EVENT not in got:
            got += client.recv(65536)
        half_close(client)
        got += read_all(client)
        assert got.endswith(begun) if begun else not got
        assert_gone(router, worker)


def test_half_closing_after_an_answer(stub: MakeStub, route: MakeRouter) -> None:
    """Half-closing after a complete answer is no disconnect; the router closes its side too."""
    worker = stub()
    router = route(worker.url, **PATIENT)
    with post(router.port, CHAT, chat(stream=False)) as client:
        until(lambda: counted(router, "requests") == {"2xx": 1})
        half_close(client)
        assert read_all(client).startswith(b"HTTP/1.1 200 OK")
    until(lambda: not router.door.clients)
    assert counted(router, "requests") == {"2xx": 1}
    assert counted(router, "refused_requests") == {}
