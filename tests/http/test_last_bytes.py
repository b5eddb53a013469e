"""Before the router closes a connection, all bytes of its last answer are delivered."""

import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from router.http import connection as protocol
from tests.authority import Authority
from tests.support import MakeRouter, MakeStub, Router, head, until

PATH = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
#: Sizes such that, whatever the kernel buffers, some answers stay partly in the router's buffers.
SIZES = range(32 << 10, 512 << 10, 96 << 10)
LINGER_S = 0.2


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time that the router waits for a client after its last answer."""
    monkeypatch.setattr(protocol, "LINGER_S", LINGER_S)


class Asking(NamedTuple):
    """A router, and clients that have sent it requests."""

    router: Router
    clients: list[socket.socket]


Ask = Callable[..., Asking]


@pytest.fixture(params=["plain", "tls"])
def ask(
    request: pytest.FixtureRequest,
    stub: MakeStub,
    route: MakeRouter,
    stack: ExitStack,
    tmp_path: Path,
) -> Ask:
    """Make clients for each size and HTTP version, whose requests have reached a worker."""
    authority = Authority(tmp_path / "ours") if request.param == "tls" else None

    def asking(write: str, *, keep: bool = False) -> Asking:
        workers = []
        for size in SIZES:
            told = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
            workers.append(stub([told + b"x" * size], model=str(size)))
        tls = {"tls": authority.issue()} if authority else {}
        router = route(*(worker.url for worker in workers), clients={"write": write}, **tls)
        clients = []
        for version in ("HTTP/1.1", "HTTP/1.0"):
            for size in SIZES:
                client = stack.enter_context(slow(router.port))
                if authority:
                    context = authority.client()
                    client = context.wrap_socket(client, server_hostname="127.0.0.1")
                    stack.enter_context(client)
                client.sendall(asked(str(size), version, keep=keep))
                clients.append(client)
        until(lambda: sum(len(worker.requests) for worker in workers) == len(clients))
        return Asking(router, clients)

    return asking


def slow(port: int) -> socket.socket:
    """Connect a client with a very small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", port))
    return client


def asked(model: str, version: str, *, keep: bool) -> bytes:
    """A request that asks to keep or to close the connection."""
    body = BODY.replace(b'"m"', b'"%b"' % model.encode())
    told = head(PATH, len(body), b"connection: " + (b"keep-alive" if keep else b"close")) + body
    return told.replace(b"HTTP/1.1", version.encode())


def rest(client: socket.socket) -> bytes:
    """Read everything up to the end, in small pieces."""
    return b"".join(iter(lambda: client.recv(4096), b""))


def say_no_more(client: socket.socket) -> None:
    """Close the sending side; with TLS, by a close_notify."""
    if isinstance(client, ssl.SSLSocket):
        with pytest.raises(ssl.SSLError, match="APPLICATION_DATA_AFTER_CLOSE_NOTIFY"):
            client.unwrap()
    else:
        client.shutdown(socket.SHUT_WR)


def test_clients_that_begin_to_read_late(ask: Ask) -> None:
    """A last answer is delivered complete even if the client begins to read after `LINGER_S`."""
    clients = ask("30s").clients
    time.sleep(5 * LINGER_S)
    with ThreadPoolExecutor(len(clients)) as pool:
        for answer in pool.map(rest, clients):
            said, _, body = answer.partition(b"\r\n\r\n")
            assert b"content-length: %d" % len(body) in said.lower()


def test_clients_that_never_read(ask: Ask) -> None:
    """Connections of clients that never read are not kept beyond `clients.write`."""
    router = ask("1s").router
    until(lambda: not router.door.clients)
    until(router.idle)


def test_clients_that_leave_and_never_read(ask: Ask) -> None:
    """Clients that half-close and never read are cut off after `clients.write` as well."""
    router, clients = ask("1s", keep=True)
    until(
        lambda: (
            not any(client.answering for client in router.door.clients if not client.write_paused)
        )
    )
    for client in clients:
        say_no_more(client)
    until(lambda: not router.door.clients)
