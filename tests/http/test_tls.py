"""TLS from clients, with certificates of CAs made for the test; and how long those are valid."""

import hashlib
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from router.http.tls import Validity, complaint, door_context, validity
from router.settings.server import TlsSettings
from tests.authority import Authority
from tests.pems import write_pems
from tests.support import (
    MakeRouter,
    Router,
    Stub,
    head,
    read_all,
    send,
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


def test_what_is_spoken(
    ours: Authority, worker: Stub, route: MakeRouter, connect: Callable[..., ssl.SSLSocket]
) -> None:
    """HTTP/1.1 over TLS 1.2 and 1.3, without renegotiation."""
    certificate = ours.issue()
    router = route(worker.url, tls=certificate)
    for version in ("TLSv1.2", "TLSv1.3"):
        context = ours.client()
        context.set_alpn_protocols(["h2", "http/1.1"])
        context.maximum_version = ssl.TLSVersion[version.replace(".", "_")]
        client = connect(router, context)
        assert (client.selected_alpn_protocol(), client.version()) == ("http/1.1", version)
    accepting = door_context(TlsSettings.model_validate(certificate))
    shown = accepting.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True).context
    assert shown.minimum_version is ssl.TLSVersion.TLSv1_2
    assert shown.options & ssl.OP_NO_RENEGOTIATION  # Python's client cannot ask for one


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


def failed(router: Router) -> float:
    """The number of failed handshakes."""
    return router.metric("warmroute_tls_failed_handshakes_total")


def shakes(router: Router, context: ssl.SSLContext) -> bool:
    """Try a handshake; return whether the router went on after it."""
    with socket.create_connection(("127.0.0.1", router.port), timeout=10) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as client:
                client.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
                return client.recv(4) == b"HTTP"  # in TLS 1.3 the server may refuse only now
        except OSError:
            return False


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"\n" * 500]
)
def test_what_is_no_tls(
    ours: Authority,
    worker: Stub,
    route: MakeRouter,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
) -> None:
    """It gets no HTTP answer and is counted; at level `debug` the log has OpenSSL's words."""
    router = route(worker.url, tls=ours.issue())
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 1)):
        with caplog.at_level(level, "warmroute.tls"):
            with send(router.port, sent) as client, suppress(ConnectionResetError):
                assert b"HTTP/" not in read_all(client)
            until(lambda: failed(router) == 1 + lines)  # noqa: B023 - at once
        assert [record.name for record in caplog.records].count("warmroute.tls") == lines
    assert shakes(router, ours.client())


def test_nothing_in_common(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """A client with TLS 1.1, long broken, or without a common cipher is refused and counted."""
    router = route(worker.url, tls=ours.issue())
    old, foreign = ours.client(), ours.client()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.deprecated_call():
        old.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.deprecated_call():
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    foreign.maximum_version = ssl.TLSVersion.TLSv1_2
    foreign.set_ciphers("aRSA")  # the router's key is not RSA
    assert not shakes(router, old)
    assert not shakes(router, foreign)
    until(lambda: failed(router) == 2)


def test_a_client_s_certificate_is_demanded(
    ours: Authority, theirs: Authority, worker: Stub, route: MakeRouter
) -> None:
    """With `client_ca`, only clients with a certificate of that CA are answered."""
    router = route(worker.url, tls={**ours.issue(), "client_ca": ours.roots})
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for context in (ours.client(), ours.client(theirs.issue("x")), theirs.client()):
            context.maximum_version = version
            assert not shakes(router, context)
    until(lambda: failed(router) == 6)
    assert shakes(router, ours.client(ours.issue("client.example")))
    assert failed(router) == 6
    assert worker.requests == []


def test_a_handshake_that_does_not_come(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """A handshake that does not come is cut off after `clients.header`."""
    router = route(worker.url, tls=ours.issue(), clients={"header": "200ms"})
    client = socket.create_connection(("127.0.0.1", router.port), timeout=20)
    with client, suppress(ConnectionResetError):
        assert read_all(client) == b""
    assert not router.door.clients


def test_a_refusal_is_heard(ours: Authority, worker: Stub, route: MakeRouter) -> None:
    """A client that sends a large body without waiting reads 413, not a connection error."""
    router = route(worker.url, tls=ours.issue(), limits={"body": "64KiB"})
    with browse(router, ours.client()) as http:
        for length in (65537, 8 << 20) * 3:
            assert http.post(CHAT, content=b"x" * length).status_code == 413
    until(lambda: not router.door.clients)
    assert worker.requests == []


def test_who_stays_after_a_refusal_is_sent_away(
    ours: Authority, worker: Stub, route: MakeRouter, connect: Callable[..., ssl.SSLSocket]
) -> None:
    """After a refusal the router closes the connection if the client does not."""
    router = route(worker.url, tls=ours.issue())
    client = connect(router, ours.client())
    client.sendall(head("/nothing", 5))
    assert read_all(client).startswith(b"HTTP/1.1 404 ")
    until(lambda: not router.door.clients)


BEGINS = datetime(2020, 2, 29, 1, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize("year", [2049, 2050, 9999])
def test_both_ends(tmp_path: Path, year: int) -> None:
    """Exact to the second; years before 2050 are encoded with two digits, later ones with four."""
    ends = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    path = Path(Authority(tmp_path / "ours").issue(begins=BEGINS, ends=ends)["certificate"])
    assert validity(path) == (BEGINS.timestamp(), ends.timestamp())


def test_the_first_certificate_counts(tmp_path: Path) -> None:
    """The file's first certificate is read, whatever precedes it: a private key or plain text."""
    write_pems(tmp_path)
    alone = validity(tmp_path / "one.pem")
    assert alone is not None
    texts = [(tmp_path / name).read_text() for name in ("one.key", "one.pem", "two.pem")]
    (tmp_path / "all.pem").write_text("Subject: CN = one\n" + "".join(texts))
    assert validity(tmp_path / "all.pem") == alone


@pytest.mark.parametrize("cut", [0, 40])
def test_what_is_no_certificate(tmp_path: Path, cut: int) -> None:
    """A file that holds no readable certificate yields None and raises nothing."""
    write_pems(tmp_path)
    lines = (tmp_path / "one.pem").read_text().splitlines()
    text = "".join(lines[1:-1])[:cut]
    (tmp_path / "cut.pem").write_text("\n".join([lines[0], text, lines[-1]]))
    assert validity(tmp_path / "cut.pem") is None
    assert validity(tmp_path / "one.key") is None
    assert validity(tmp_path / "none.pem") is None
    assert complaint(tmp_path / "none.pem", 0.0) == ""


def test_in_words() -> None:
    """From its first second to its last there is no complaint."""
    period = Validity(86400.0, 172800.0)
    assert [period.complaint(now) for now in (86400.0, 172800.0)] == ["", ""]
    assert period.complaint(86399.0) == "is not valid before 1970-01-02 00:00:00 UTC"
    assert period.complaint(172801.0) == "expired on 1970-01-03 00:00:00 UTC"
