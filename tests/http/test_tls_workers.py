"""TLS to workers, with certificates of CAs made for the test."""

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

from tests.authority import Authority
from tests.http.test_tls import BODY, CHAT, SSE, browse
from tests.support import JSON, Action, MakeRouter, Router, Stub, read_all, until

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


def reason(router: Router, place: int = 0) -> str:
    """The reason why a worker is down."""
    status: dict[str, Any] = router.http.get("/workers").json()[place]
    assert status["state"] == "down"
    text: str = status["reason"]
    return text


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
