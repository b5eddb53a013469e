"""The last bytes of an answer after which the connection is closed: all of them arrive."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from router import protocol
from tests.support import MakeRouter, MakeStub, Router, head, until

PATH = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
#: Whatever the kernel's buffers hold, of some of these a part is left in the router's.
SIZES = range(32 << 10, 512 << 10, 32 << 10)
LINGER_S = 0.2


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closes is not waited for long."""
    monkeypatch.setattr(protocol, "LINGER_S", LINGER_S)


class Asking(NamedTuple):
    """Clients that have asked, and whom."""

    router: Router
    clients: list[socket.socket]


def slow(port: int, model: str, version: str) -> socket.socket:
    """A client with hardly any room of its own, which has asked and reads nothing yet."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", port))
    body = BODY.replace(b'"m"', b'"%b"' % model.encode())
    asked = head(PATH, len(body)).replace(b"HTTP/1.1", version.encode())
    client.sendall(asked.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + body)
    return client


def rest(client: socket.socket) -> bytes:
    """Everything up to the end, a piece at a time."""
    return b"".join(iter(lambda: client.recv(4096), b""))


def asking(stub: MakeStub, route: MakeRouter, stack: ExitStack, write: str) -> Asking:
    """One for each size, whose worker has answered."""
    workers = []
    for size in SIZES:
        told = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
        workers.append(stub([told + b"x" * size], model=str(size)))
    router = route(*(worker.url for worker in workers), clients={"write": write})
    clients = [
        stack.enter_context(slow(router.port, str(size), version))
        for version in ("HTTP/1.1", "HTTP/1.0")
        for size in SIZES
    ]
    until(lambda: sum(len(worker.requests) for worker in workers) == len(clients))
    return Asking(router, clients)


def test_clients_that_begin_to_read_late(
    stub: MakeStub, route: MakeRouter, stack: ExitStack
) -> None:
    """They have as long as anybody who reads slowly, though it is the last answer."""
    clients = asking(stub, route, stack, "30s").clients
    time.sleep(5 * LINGER_S)
    with ThreadPoolExecutor(len(clients)) as pool:
        for answer in pool.map(rest, clients):
            said, _, body = answer.partition(b"\r\n\r\n")
            assert b"content-length: %d" % len(body) in said.lower()


def test_clients_that_never_read(stub: MakeStub, route: MakeRouter, stack: ExitStack) -> None:
    """They are let go when `clients.write` is over."""
    router, clients = asking(stub, route, stack, "1s")
    until(lambda: not any(client._closing for client in router.door.clients))
    assert len(clients) > 20
