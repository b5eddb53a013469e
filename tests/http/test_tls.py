"""TLS from clients, with certificates of CAs made for the test."""

import hashlib
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from router.http.tls import door_context
from router.settings.server import TlsSettings
from tests.authority import Authority
from tests.support import (
    MakeRouter,
    Router,
    Stub,
    error_of,
    head,
    read_all,
    until,
)

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def worker(stack: ExitStack) -> Stub:
    """A worker without TLS."""
    made = Stub()
    stack.callback(made.stop)
    return made


@pytest.fixture
def connect(stack: ExitStack) -> Callable[..., ssl.SSLSocket]:
    """Open a TLS connection."""

    def make(router: Router, context: ssl.SSLContext) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", router.port), timeout=10)
        return stack.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1"))

    return make


def browse(router: Router, context: ssl.SSLContext) -> httpx.Client:
    """An HTTP client with this TLS context."""
    return httpx.Client(base_url=router.url, verify=context, timeout=20)


def test_a_stream_over_tls(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """Events arrive as they are sent; if the client disconnects, the worker stops."""
    worker.script = [SSE, b"9\r\ndata: 1\n\n\r\n", "stall"]
    router = route(worker.url, tls=ours.issue())
    with (
        browse(router, ours.client()) as http,
        http.stream("POST", CHAT, json={**BODY, "stream": True}) as reply,
    ):
        assert reply.status_code == 200
        assert next(reply.iter_raw()) == b"data: 1\n\n"
        assert worker.closed_by_peer == 0
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)


def test_bytes_over_tls(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """Megabytes in both directions arrive unchanged, several times over one connection."""
    answer = os.urandom(3 << 20)
    worker.script = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer), answer]
    router = route(worker.url, tls=ours.issue())
    body = b'{"model":"m","x":"%b"}' % os.urandom(2 << 20).hex().encode()
    clients = set()
    with browse(router, ours.client()) as http:
        for _ in range(3):
            reply = http.post(CHAT, content=body)
            assert hashlib.sha256(reply.content).digest() == hashlib.sha256(answer).digest()
            clients |= router.door.clients
    assert len(clients) == 1
    assert all(request.endswith(b"\r\n\r\n" + body) for request in worker.requests)
    assert len(worker.requests) == 3


def test_what_is_spoken(
    ours: Authority, worker: Stub, route: MakeRouter, connect: Callable[..., ssl.SSLSocket]
) -> None:
    """The router speaks HTTP/1.1 over TLS 1.2 and 1.3, without renegotiation."""
    router = route(worker.url, tls=ours.issue())
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ours.client()
        context.set_alpn_protocols(["h2", "http/1.1"])
        context.maximum_version = version
        client = connect(router, context)
        assert client.selected_alpn_protocol() == "http/1.1"
        assert client.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
    certificate = ours.issue()
    settings = TlsSettings(**{name: Path(path) for name, path in certificate.items()})
    shown = door_context(settings)._shown
    assert shown.minimum_version is ssl.TLSVersion.TLSv1_2
    assert shown.options & ssl.OP_NO_RENEGOTIATION  # Python's client cannot ask for one


def test_tls_1_1_is_refused(
    ours: Authority, worker: Stub, route: MakeRouter, connect: Callable[..., ssl.SSLSocket]
) -> None:
    """TLS 1.1, long broken, is refused."""
    router = route(worker.url, tls=ours.issue())
    context = ours.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.deprecated_call():
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.deprecated_call():
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        connect(router, context)


def test_plain_http_at_a_tls_door(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """Plain HTTP at a TLS port gets no HTTP answer, and the router goes on serving."""
    router = route(worker.url, tls=ours.issue())
    for sent in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01", os.urandom(500)):
        with socket.create_connection(("127.0.0.1", router.port), timeout=10) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            try:
                answer = read_all(client)
            except ConnectionResetError:
                answer = b""
        assert b"HTTP/" not in answer
    with browse(router, ours.client()) as http:
        assert http.post(CHAT, json=BODY).status_code == 200


def test_a_handshake_that_does_not_come(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """A handshake that does not come is cut off after `clients.header`."""
    router = route(worker.url, tls=ours.issue(), clients={"header": "200ms"})
    client = socket.create_connection(("127.0.0.1", router.port), timeout=20)
    with client, suppress(ConnectionResetError):
        assert read_all(client) == b""
    assert not router.door.clients


def test_a_client_s_certificate_is_demanded(
    ours: Authority, theirs: Authority, worker: Stub, route: MakeRouter
) -> None:
    """With `client_ca`, only clients with a certificate of that CA are answered."""
    router = route(worker.url, tls={**ours.issue(), "client_ca": ours.roots})
    known, unknown = ours.issue("client.example"), theirs.issue("client.example")
    for context in (ours.client(), ours.client(unknown)):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context.maximum_version = version
            with browse(router, context) as http, pytest.raises(httpx.TransportError):
                http.get("/health/live")
    assert worker.requests == []
    with browse(router, ours.client(known)) as http:
        for _ in range(2):
            assert http.post(CHAT, json=BODY).status_code == 200


@pytest.mark.parametrize("length", [65537, 8 << 20])
def test_a_refusal_is_heard(ours: Authority, worker: Stub, route: MakeRouter, length: int) -> None:
    """A client that sends a large body without waiting reads 413, not a connection error."""
    router = route(worker.url, tls=ours.issue(), limits={"body": "64KiB"})
    with browse(router, ours.client()) as http:
        for _ in range(5):
            reply = http.post(CHAT, content=b"x" * length)
            assert reply.status_code == 413
            error_of(reply)
    until(lambda: not router.door.clients)
    assert worker.requests == []


def test_a_refusal_is_heard_by_who_reads_last(
    ours: Authority, worker: Stub, route: MakeRouter, connect: Callable[..., ssl.SSLSocket]
) -> None:
    """A client that reads only after sending its whole large body still gets the 413."""
    router = route(worker.url, tls=ours.issue(), limits={"body": "64KiB"})
    client = connect(router, ours.client())
    client.sendall(head(CHAT, 2 << 20))
    for _ in range(128):
        client.sendall(b"x" * (16 << 10))
    reply = b""
    while not reply.endswith(b"}}"):
        reply += client.recv(65536)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in reply


def test_who_stays_after_a_refusal_is_sent_away(
    ours: Authority, worker: Stub, route: MakeRouter, connect: Callable[..., ssl.SSLSocket]
) -> None:
    """After a refusal the router closes the connection if the client does not."""
    router = route(worker.url, tls=ours.issue())
    client = connect(router, ours.client())
    client.sendall(head("/nothing", 5))
    assert read_all(client).startswith(b"HTTP/1.1 404 ")
    until(lambda: not router.door.clients)


def test_who_ends_without_a_farewell_and_reads_nothing_has_left(
    ours: Authority, worker: Stub, route: MakeRouter, connect: Callable[..., ssl.SSLSocket]
) -> None:
    """A half-close without close_notify is a disconnect, noticed well before `clients.write`."""
    size = 64 << 20
    worker.script = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, bytes(size)]
    router = route(worker.url, tls=ours.issue(), clients={"write": "1h"})
    client = connect(router, ours.client())
    client.sendall(head(CHAT, 13) + b'{"model":"m"}')
    until(lambda: any(one.write_paused for one in router.door.clients))
    socket.socket.shutdown(client, socket.SHUT_WR)
    until(lambda: worker.closed_by_peer == 1)
    until(lambda: not router.door.clients and router.idle())
