"""Objects of a connection are freed by reference counts, without the garbage collector."""

import gc
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from router.http.connection import HttpConnection
from router.http.exchange import Exchange
from router.http.parser import RequestParser
from router.upstream.connection import UpstreamConnection
from tests.support import (
    OK,
    Action,
    MakeRouter,
    MakeStub,
    Router,
    head,
    post,
    read_all,
    send,
    until,
)

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": []}).encode()
STREAM = json.dumps({"model": "m", "messages": [], "stream": True}).encode()
EVENTS: list[Action] = [
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    b'data: {"id":"1"}\n\n',
]
SCRIPTS: dict[str, list[Action]] = {
    "whole": OK,
    "stream": [*EVENTS, b"data: [DONE]\n\n", "close"],
    "cut": [*EVENTS, "reset"],
    "vanishing": ["close"],
    "garbage": [b"hello\r\n\r\n"],
    "silent": ["stall"],
    "full": [b"HTTP/1.1 503 Full\r\ncontent-length: 0\r\n\r\n"],
    "error": [b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}"],
}
KINDS = (HttpConnection, RequestParser, Exchange, UpstreamConnection)
#: Requests by clients that then read to the end of the answer, or disconnect.
SAID = {
    "good": head(CHAT, len(BODY), b"connection: close") + BODY,
    "unknown": b"GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "operators": b"GET /workers HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "nonsense": b"hello\r\n\r\n",
    "smuggled": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n",
    "no-json": head(CHAT, 1, b"connection: close") + b"{",
    "too-large": head(CHAT, 1 << 40),
    "upgrade": b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
}


#: Counts the objects of each kind that were made since the test began.
Alive = Callable[[], Counter[str]]


@pytest.fixture
def alive() -> Iterator[Alive]:
    """Disable the garbage collector; return a function that counts new objects by kind."""
    gc.collect()
    gc.disable()
    before = {id(one): one for one in gc.get_objects() if isinstance(one, KINDS)}  # a failed test's
    yield lambda: Counter(
        type(one).__name__
        for one in gc.get_objects()
        if isinstance(one, KINDS) and id(one) not in before
    )
    gc.enable()


def freed(router: Router, alive: Alive) -> bool:
    """Whether nothing is left but idle connections to workers."""
    pools = [worker.upstream for worker in router.door.fleet.workers]
    kept = sum(pool.idle + pool.control_connections().idle for pool in pools)
    left = alive()
    return left["UpstreamConnection"] <= kept and left.total() == left["UpstreamConnection"]


@pytest.mark.parametrize("said", SAID)
def test_after_an_answer(stub: MakeStub, route: MakeRouter, alive: Alive, said: str) -> None:
    """Nothing is left after an answer, whatever the client sent."""
    router = route(stub().url, health={"interval": "1h"})
    for _ in range(3):
        with send(router.port, SAID[said]) as client:
            read_all(client)
    until(lambda: freed(router, alive))


@pytest.mark.parametrize("at", [0, 5, 60, -10])
def test_after_a_client_has_left(stub: MakeStub, route: MakeRouter, alive: Alive, at: int) -> None:
    """Nothing is left after a client has disconnected in the middle of its request."""
    router = route(stub().url, health={"interval": "1h"})
    for _ in range(3):
        send(router.port, SAID["good"][:at]).close()
    until(lambda: freed(router, alive))


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("body", [BODY, STREAM], ids=["json", "stream"])
def test_after_a_worker_has(
    stub: MakeStub, route: MakeRouter, alive: Alive, body: bytes, script: str
) -> None:
    """Nothing is left after a worker has answered, failed, or kept a client waiting."""
    worker = stub(SCRIPTS[script])
    router = route(
        worker.url, health={"interval": "1h"}, strategy="roundrobin", limits={"queue": 0}
    )
    for number in range(1, 4):
        with post(router.port, CHAT, body, b"connection: close") as client:
            if script == "silent":
                until(lambda: len(worker.requests) == number)  # noqa: B023 - at once
                client.shutdown(socket.SHUT_RDWR)
            else:
                with suppress(ConnectionResetError):
                    read_all(client)
        until(lambda: bool(router.worker().ready))
    until(lambda: freed(router, alive))
