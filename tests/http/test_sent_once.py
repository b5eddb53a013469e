"""A request that may have begun is never sent twice; one that surely did not is not given up."""

import asyncio
import socket
import ssl
import sys
import threading
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.authority import Authority
from tests.chaos.looped import Looped
from tests.health.failing import start, status
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, Stub, until

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LONG: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "word " * 2000}]}
BUSY: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]
QUIET = {"interval": "1h"}


def test_death_during_the_work_is_not_taken_for_an_idle_close(
    stub: MakeStub, route: MakeRouter
) -> None:
    """If a worker dies during the work on a kept connection, the request is not sent again."""
    workers = [stub() for _ in range(3)]
    router = route(*(w.url for w in workers), strategy="roundrobin", health=QUIET)
    for _ in workers:  # now each has a kept connection
        assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    for worker in workers:
        worker.script = [0.5, "close"]
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 502
    assert sum(len(worker.requests) for worker in workers) == 3 + 1
    until(router.idle)


def test_a_worker_that_closes_and_is_gone(stub: MakeStub, route: MakeRouter) -> None:
    """If a kept connection closes unanswered and the worker is gone, another worker is asked."""
    first, second = stub(), stub()
    router = route(first.url, second.url, strategy="roundrobin", health=QUIET)
    for _ in range(2):
        assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    first.stop_listening()
    first.close_next = True
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert len(second.requests) == 2


def test_workers_that_close_on_many_at_once(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many kept connections close at once: all requests are sent again; no exception lingers."""
    monkeypatch.setattr(
        "router.upstream.connection.STALE_CHECKS", 1000
    )  # more time for a busy machine
    answers, closes = threading.Event(), threading.Event()
    worker = stub([answers.is_set, *OK])
    router = route(worker.url, strategy="roundrobin", health=QUIET)
    first = [start(router) for _ in range(6)]
    until(lambda: len(worker.requests) == 6)
    worker.script = [closes.is_set, "close"]
    answers.set()
    assert [status(client) for client in first] == [200] * 6
    until(lambda: router.worker().upstream.idle == 6)
    second = [start(router) for _ in range(6)]
    until(lambda: len(worker.requests) == 12)
    worker.script = OK
    closes.set()
    assert [status(client) for client in second] == [200] * 6
    assert len(worker.requests) == 18
    seen: list[object] = []
    router.call(lambda: seen.append(sys.exc_info()))
    assert seen == [(None, None, None)]


def test_a_request_that_kills_workers_kills_two_at_most(stub: MakeStub, route: MakeRouter) -> None:
    """If two workers in a row vanish, the request may be the cause: no third is asked."""
    workers = [stub() for _ in range(4)]
    router = route(*(w.url for w in workers), strategy="roundrobin", health=QUIET)
    for _ in workers:
        assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    for worker in workers:
        worker.stop_listening()
        worker.close_next = True
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 502
    assert sum(len(worker.requests) for worker in workers) == 4 + 2
    until(router.idle)


@pytest.mark.parametrize("end", ["close", "reset", "stall"])
def test_a_full_worker_may_break_its_refusal(stub: MakeStub, route: MakeRouter, end: str) -> None:
    """The status 503 is enough to ask the next worker; its body is not waited for."""
    half: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 100\r\n\r\nhalf", end]
    full, free = stub(half), stub()
    router = route(full.url, free.url, strategy="roundrobin", health=QUIET)
    replies = [router.http.post("/v1/chat/completions", json=CHAT) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 200]
    until(router.idle)


def test_what_was_not_taken_on_is_not_believed_to_be_held(
    stub: MakeStub, route: MakeRouter
) -> None:
    """A worker that rejected a request is not believed to hold its prefix, but what it had."""
    worker = stub([b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\n{}"])
    refuses, router = worker.script, route(worker.url, health=QUIET)
    longer = {**CHAT, "messages": [*LONG["messages"], {"role": "user", "content": "x" * 3000}]}

    def decision(body: dict[str, Any]) -> str:
        reply = router.http.post("/v1/chat/completions", json=body)
        until(router.idle)
        return reply.headers["x-warmroute-decision"].partition(";")[0]

    assert [decision(LONG) for _ in range(2)] == ["cold", "cold"]
    worker.script = OK
    assert [decision(LONG) for _ in range(2)] == ["cold", "prefix"]
    worker.script = refuses
    decision(longer)
    worker.script = OK
    assert decision(LONG) == "prefix"


def test_idle_connections_are_closed_in_time(stub: MakeStub, route: MakeRouter) -> None:
    """Idle connections are closed after `timeouts.keepalive` even if no request comes."""
    worker = stub()
    settings = {"timeouts": {"keepalive": "50ms"}, "health": {"interval": "20ms"}}
    router = route(worker.url, **settings)
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    until(lambda: router.worker().upstream.idle == 0)


def test_bytes_nobody_asked_for_spoil_the_connection(stub: MakeStub, route: MakeRouter) -> None:
    """If a worker sends bytes on an idle connection, the connection is not used again."""
    worker = stub([*OK, 0.05, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"])
    router = route(worker.url, health=QUIET)
    for _ in range(3):
        assert router.http.post("/v1/chat/completions", json=CHAT).content == JSON
        until(lambda: not any(c.usable for c in router.worker().upstream.kept))


@pytest.mark.parametrize(
    "junk",
    [b"HTTP/1.1 500 Evil\r\ncontent-type: text/evil\r\ncontent-length: 1\r\n\r\nx", b"HTTP/1.1 2"],
    ids=["whole", "half"],
)
def test_a_second_answer_in_one_breath_is_dropped(
    stub: MakeStub, route: MakeRouter, junk: bytes
) -> None:
    """Surplus bytes after an answer change neither it nor the next one."""
    assert isinstance(OK[0], bytes)
    router = route(stub([OK[0] + junk]).url, health=QUIET)
    for _ in range(3):
        reply = router.http.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.content) == (200, JSON)
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("how", ["length", "chunks"])
def test_a_real_client_hears_that_its_body_is_too_large(
    stub: MakeStub, route: MakeRouter, how: str
) -> None:
    """A client that is still sending when refused gets the 413 rather than a reset."""
    worker = stub()
    router = route(worker.url, limits={"body": "1MiB"})
    body = b" " * (8 << 20)
    pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
    content = body if how == "length" else pieces
    reply = httpx.post(f"{router.url}/v1/chat/completions", content=content, timeout=20)
    assert reply.status_code == 413
    assert "1048576" in reply.json()["error"]["message"]
    assert worker.requests == []


def test_a_large_refusal_does_not_leave_its_connection_asleep(
    stub: MakeStub, route: MakeRouter
) -> None:
    """A connection with an unread 503 body is closed rather than kept paused."""
    body = b"x" * (1 << 20)
    full = stub([b"HTTP/1.1 503 Full\r\ncontent-length: %d\r\n\r\n" % len(body) + body])
    router = route(full.url, stub().url, strategy="roundrobin", health=QUIET)
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert all(c.finished and not c.paused for c in router.worker(0).upstream.kept)
    full.script = OK
    for _ in range(3):
        assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200


class Hasty(Looped):
    """A worker that answers its first request from the head alone and never reads its body."""

    def __init__(self, tls: ssl.SSLContext | None = None, status: int = 200) -> None:
        self.asked = 0
        self.status = status
        super().__init__(tls)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = writer.get_extra_info("socket")  # so that the system takes little that nobody reads
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        while True:
            start = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = b'{"data":[{"id":"m"}]}'
            status = 200
            if start.startswith(b"post"):
                self.asked += 1
                body = b"hasty %d" % self.asked
                status = self.status if self.asked == 1 else 200
            told = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
            writer.write(told + body)
            if self.asked == 1 and start.startswith(b"post"):
                await asyncio.Event().wait()
            length = start.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))


#: Bytes of requests: more than any buffer holds; what the router's system takes at once.
MORE, LESS = 15 << 20, 1 << 20


@pytest.mark.parametrize("answer", [(200, MORE), (400, LESS), (413, 100 << 10)])
@pytest.mark.parametrize("secure", [False, True])
def test_an_answer_before_the_request_was_taken(
    route: MakeRouter, stack: ExitStack, ours: Authority, secure: bool, answer: tuple[int, int]
) -> None:
    """If an answer ends before its request was taken, the connection is not used again."""
    status, size = answer
    worker = Hasty(ours.server() if secure else None, status)
    stack.callback(worker.stop)
    router = route(
        {"url": worker.url, **({"tls": {"ca": ours.roots}} if secure else {})}, health=QUIET
    )
    large = {**CHAT, "messages": [{"role": "user", "content": "x" * size}]}
    for number, chat in enumerate((large, CHAT), start=1):
        reply = router.http.post("/v1/chat/completions", json=chat)
        assert reply.content == b"hasty %d" % number
    until(router.idle)


@pytest.mark.parametrize("secure", [False, True])
def test_a_large_request_that_was_taken(
    route: MakeRouter, stack: ExitStack, ours: Authority, secure: bool
) -> None:
    """After an answer to all of a request, however large, the connection is used again."""
    worker = Stub(tls=ours.server() if secure else None)
    stack.callback(worker.stop)
    router = route(
        {"url": worker.url, **({"tls": {"ca": ours.roots}} if secure else {})}, health=QUIET
    )
    before = worker.connections
    for size in (10, 40 << 10, 200 << 10, 10):
        chat = {**CHAT, "messages": [{"role": "user", "content": "x" * size}]}
        assert router.http.post("/v1/chat/completions", json=chat).content == JSON
    assert worker.connections == before + 1


def test_a_fault_of_ours_is_told_in_the_clients_shape(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in the router gives a 500 error object, and the booking is released."""
    router = route(stub().url, strategy="leastload")  # pure Python, so that it can be patched
    (pool,) = router.door.fleet.pools
    monkeypatch.setattr(pool.strategy, "settled", None)
    body = b'{"model":"m","prompt":"x"}'
    assert router.http.post("/v1/completions", content=body).status_code == 200  # it had begun
    monkeypatch.setattr(pool.strategy, "rank", None)
    reply = router.http.post("/v1/completions", content=body)
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        500,
        "Internal error in the router.",
    )
    until(router.idle)
