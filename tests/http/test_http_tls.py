"""TLS from clients and to workers, with certificates of CAs made for the test."""

import hashlib
import os
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from router.settings import TlsSettings
from router.tls import door_context
from tests.authority import Authority
from tests.support import (
    JSON,
    Action,
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
SLOW = {"interval": "1h"}


MakeTlsStub = Callable[..., Stub]


@pytest.fixture
def secure(stack: ExitStack) -> MakeTlsStub:
    """Make a worker that speaks TLS."""

    def make(tls: ssl.SSLContext, script: list[Action] | None = None, model: str = "m") -> Stub:
        made = Stub(script, model, tls)
        stack.callback(made.stop)
        return made

    return make


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


# From clients.


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
    """Megabytes in both directions arrive unchanged, several times."""
    answer = os.urandom(3 << 20)
    worker.script = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer), answer]
    router = route(worker.url, tls=ours.issue())
    body = b'{"model":"m","x":"%b"}' % os.urandom(2 << 20).hex().encode()
    with browse(router, ours.client()) as http:
        for _ in range(3):
            reply = http.post(CHAT, content=body)
            assert hashlib.sha256(reply.content).digest() == hashlib.sha256(answer).digest()
    assert all(request.endswith(b"\r\n\r\n" + body) for request in worker.requests)
    assert len(worker.requests) == 3


def test_openai_s_client_over_tls(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """OpenAI's client works with nothing but the CA."""
    router = route(worker.url, tls=ours.issue())
    with (
        openai.DefaultHttpxClient(verify=ours.client()) as http,
        openai.OpenAI(base_url=router.url + "/v1", api_key="x", http_client=http) as client,
    ):
        assert client.completions.create(model="m", prompt="hello").id == "x"


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
    until(lambda: any(one._full for one in router.door.clients))
    socket.socket.shutdown(client, socket.SHUT_WR)
    until(lambda: worker.closed_by_peer == 1)
    until(lambda: not router.door.clients and router.idle())


# To workers.


def reason(router: Router, place: int = 0) -> str:
    """The reason why a worker is down."""
    status: dict[str, Any] = router.http.get("/workers").json()[place]
    assert status["state"] == "down"
    text: str = status["reason"]
    return text


def test_a_worker_with_a_private_authority(
    ours: Authority, secure: MakeTlsStub, route: MakeRouter
) -> None:
    """With `tls.ca`, probes and requests trust that CA, and connections are kept."""
    worker = secure(ours.server())
    router = route({"url": worker.url, "tls": {"ca": ours.roots}}, health=SLOW)
    assert router.worker().ready
    for _ in range(3):
        assert router.http.post(CHAT, json=BODY).content == JSON
    assert len(worker.requests) == 3
    assert worker.connections == 2  # one for probes, one for requests


def test_a_stream_from_a_worker_over_tls(
    ours: Authority, secure: MakeTlsStub, route: MakeRouter
) -> None:
    """With TLS on both sides, the worker stops when the client disconnects."""
    worker = secure(ours.server(), [SSE, b"9\r\ndata: 1\n\n\r\n", "stall"])
    router = route({"url": worker.url, "tls": {"ca": ours.roots}}, tls=ours.issue())
    with (
        browse(router, ours.client()) as http,
        http.stream("POST", CHAT, json={**BODY, "stream": True}) as reply,
    ):
        assert next(reply.iter_raw()) == b"data: 1\n\n"
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)


@pytest.mark.parametrize(("end", "whole"), [("close", True), ("hang up", False)])
def test_an_end_without_a_farewell_is_none(
    ours: Authority, secure: MakeTlsStub, route: MakeRouter, end: str, whole: bool
) -> None:
    """Without close_notify an unframed answer is incomplete (RFC 9112 section 9.8)."""
    script: list[Action] = [b"HTTP/1.1 200 OK\r\n\r\n", b'{"id":1', 0.1, end]
    worker = secure(ours.server(), script)
    router = route({"url": worker.url, "tls": {"ca": ours.roots}})
    if whole:
        assert router.http.post(CHAT, json=BODY).content == b'{"id":1'
    else:
        with pytest.raises(httpx.RemoteProtocolError):
            router.http.post(CHAT, json=BODY)


def test_workers_of_different_authorities(
    ours: Authority, theirs: Authority, secure: MakeTlsStub, route: MakeRouter
) -> None:
    """Each worker's certificate is checked with that worker's own CA only."""
    first, second = secure(ours.server(), model="a"), secure(theirs.server(), model="b")
    router = route(
        {"url": first.url, "tls": {"ca": ours.roots}},
        {"url": second.url, "tls": {"ca": theirs.roots}},
        health=SLOW,
    )
    for model in ("a", "b"):
        assert router.http.post(CHAT, json={**BODY, "model": model}).status_code == 200
    swapped = route(
        {"url": first.url, "tls": {"ca": theirs.roots}},
        {"url": second.url, "tls": {"ca": ours.roots}},
        health=SLOW,
    )
    for place in (0, 1):
        assert "its certificate is refused" in reason(swapped, place)


@pytest.mark.parametrize("named", [True, False])
def test_a_worker_nobody_vouches_for(
    ours: Authority, theirs: Authority, secure: MakeTlsStub, route: MakeRouter, named: bool
) -> None:
    """A worker with an unknown CA is down, with the reason, by `tls.ca` or the system's roots."""
    worker = secure(ours.server())
    settings = {"url": worker.url, **({"tls": {"ca": theirs.roots}} if named else {})}
    router = route(settings, health=SLOW)
    assert reason(router).startswith("/health: could not be reached: its certificate is refused: ")
    assert "local issuer" in reason(router)
    reply = router.http.post(CHAT, json=BODY)
    assert reply.status_code == 503
    assert worker.requests == worker.probes == []


def test_a_worker_by_another_name(ours: Authority, secure: MakeTlsStub, route: MakeRouter) -> None:
    """A certificate must match the name in the worker's URL."""
    worker = secure(ours.server("elsewhere.example"))
    router = route({"url": worker.url, "tls": {"ca": ours.roots}}, health=SLOW)
    assert "its certificate is refused: IP address mismatch" in reason(router)
    assert worker.probes == []


def test_a_worker_by_its_absolute_name(
    ours: Authority, secure: MakeTlsStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trailing dot in the host, which is faster in Kubernetes, is ignored for certificates."""
    look_up = socket.getaddrinfo

    def as_a_resolver_would(host: Any, *args: Any, **more: Any) -> Any:
        return look_up("localhost" if host == "localhost." else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", as_a_resolver_would)
    worker = secure(ours.server("localhost"))
    url = worker.url.replace("127.0.0.1", "localhost.")
    router = route({"url": url, "tls": {"ca": ours.roots}}, health=SLOW)
    assert router.http.post(CHAT, json=BODY).content == JSON


def test_a_worker_that_demands_a_certificate(
    ours: Authority, theirs: Authority, secure: MakeTlsStub, route: MakeRouter
) -> None:
    """The router presents the configured certificate; with none or a wrong one it is down."""
    worker = secure(ours.server(clients=theirs.roots))
    shown = {**theirs.issue("router.example"), "ca": ours.roots}
    router = route({"url": worker.url, "tls": shown}, health=SLOW)
    assert router.http.post(CHAT, json=BODY).status_code == 200
    for wrong in ({"ca": ours.roots}, {**ours.issue("router.example"), "ca": ours.roots}):
        router = route({"url": worker.url, "tls": wrong}, health=SLOW)
        assert "(it may ask for a certificate that it does not get)" in reason(router)
        assert router.http.post(CHAT, json=BODY).status_code == 503
    assert len(worker.requests) == 1


def test_a_certificate_that_a_worker_does_not_accept_any_more(
    ours: Authority, theirs: Authority, stack: ExitStack, secure: MakeTlsStub, route: MakeRouter
) -> None:
    """TLS 1.3 rejects a certificate after the handshake: the unread request goes elsewhere."""
    accepts = ours.server(clients=ours.roots)
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    thread = threading.Thread(target=_accept_once, args=(listener, accepts))
    thread.start()
    stack.callback(thread.join, 10)
    stack.callback(listener.shutdown, socket.SHUT_RDWR)
    other = secure(ours.server())
    tls = {**theirs.issue("router.example"), "ca": ours.roots}
    workers = [{"url": f"https://127.0.0.1:{listener.getsockname()[1]}", "tls": tls}]
    workers.append({"url": other.url, "tls": {"ca": ours.roots}})
    router = route(*workers, strategy="roundrobin", health=SLOW)
    for _ in range(2):
        assert router.http.post(CHAT, json=BODY).content == JSON
    assert reason(router) == "/health: could not be reached: TLS failed: tlsv1 alert unknown ca"
    assert len(other.requests) == 2


def _accept_once(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Accept the first connection without a certificate, and demand one from all others."""
    anyone = True
    with suppress(OSError):  # the listener was closed
        while True:
            connection, _ = listener.accept()
            context.verify_mode = ssl.CERT_NONE if anyone else ssl.CERT_REQUIRED
            anyone = False
            threading.Thread(target=_shake_hands, args=(connection, context)).start()


def _shake_hands(connection: socket.socket, context: ssl.SSLContext) -> None:
    """Shake hands and answer probes; after a failed handshake read until the router closes."""
    rest = connection.dup()
    with (
        suppress(OSError),  # closed without close_notify
        rest,
        context.wrap_socket(connection, True, do_handshake_on_connect=False) as client,
    ):
        try:
            client.do_handshake()
        except ssl.SSLError:
            read_all(rest)
            return
        models = b'{"object":"list","data":[{"id":"m"}]}'
        while client.recv(65536):
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(models) + models)


def test_a_worker_that_does_not_speak_tls(worker: Stub, route: MakeRouter) -> None:
    """A worker that does not speak TLS is down with a reason, whether it is silent or not."""
    url = worker.url.replace("http:", "https:")
    router = route(url, health={"interval": "1h", "timeout": "2s"})
    assert reason(router) == "/health did not answer in time"
    with socket.create_server(("127.0.0.1", 0)) as plain:
        thread = threading.Thread(target=_greet, args=(plain,))
        thread.start()
        router = route(f"https://127.0.0.1:{plain.getsockname()[1]}", health=SLOW)
        thread.join(10)
    assert reason(router).startswith("/health: could not be reached: TLS failed: ")


def _greet(listener: socket.socket) -> None:
    """Send a greeting that is not TLS."""
    client, _ = listener.accept()
    with client:
        client.sendall(b"220 ready\r\n")
        read_all(client)


def test_a_certificate_that_goes_bad(
    ours: Authority, theirs: Authority, secure: MakeTlsStub, route: MakeRouter
) -> None:
    """If a worker's certificate goes bad, no request is sent; it is down with the reason."""
    context = ours.server()
    ending = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    worker = secure(context, [ending, "close"])
    router = route({"url": worker.url, "tls": {"ca": ours.roots}}, health=SLOW)
    assert router.http.post(CHAT, json=BODY).status_code == 200
    bad = theirs.issue()
    context.load_cert_chain(bad["certificate"], bad["key"])
    assert router.http.post(CHAT, json=BODY).status_code == 503
    assert "its certificate is refused" in reason(router)
    until(lambda: router.worker().reason.startswith("/health: "))  # a new connection's probe
    assert "its certificate is refused" in reason(router)
    assert len(worker.requests) == 1
