"""Failed TLS handshakes of clients are counted by reason."""

import logging
import os
import socket
import ssl
import warnings
from collections.abc import Callable

import pytest

from router.http.tls import Why
from tests.authority import Authority
from tests.support import MakeRouter, MakeStub, Router, send, until

FAILED = "warmroute_tls_failed_handshakes_total"


def failed(router: Router) -> dict[str, float]:
    """The numbers of failed handshakes by reason, without zeros."""
    counts = {why.value: router.metric(FAILED, reason=why.value) for why in Why}
    return {why: count for why, count in counts.items() if count}


def shakes(port: int, context: ssl.SSLContext) -> None:
    """Try a handshake, and ignore its outcome."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as client:
                client.recv(1)  # in TLS 1.3 the server may refuse only now
        except OSError:
            pass


def old(context: ssl.SSLContext) -> None:
    """Allow only the obsolete TLS 1.1."""
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1


def foreign(context: ssl.SSLContext) -> None:
    """Allow only RSA ciphers; the router's key is not RSA."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aRSA")


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"\n" * 500]
)
def test_what_is_no_tls(ours: Authority, stub: MakeStub, route: MakeRouter, sent: bytes) -> None:
    """Bytes that are not TLS, such as plain HTTP, count as `not_tls`."""
    router = route(stub().url, tls=ours.issue())
    with send(router.port, sent):
        until(lambda: failed(router) == {"not_tls": 1})


@pytest.mark.parametrize("limited", [old, foreign])
def test_nothing_in_common(
    ours: Authority,
    stub: MakeStub,
    route: MakeRouter,
    limited: Callable[[ssl.SSLContext], None],
) -> None:
    """A client without a common version or cipher counts as `nothing_in_common`."""
    router, context = route(stub().url, tls=ours.issue()), ours.client()
    limited(context)
    shakes(router.port, context)
    until(lambda: failed(router) == {"nothing_in_common": 1})


def test_certificates_that_are_not_accepted(
    ours: Authority, theirs: Authority, stub: MakeStub, route: MakeRouter
) -> None:
    """A wrong or missing client certificate and a router's certificate refused by the client."""
    router = route(stub().url, tls={**ours.issue(), "client_ca": ours.roots})
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for context in (ours.client(), ours.client(theirs.issue("x")), theirs.client()):
            context.maximum_version = version
            shakes(router.port, context)
    until(lambda: failed(router) == {"client_certificate": 4, "refused": 2})
    with ours.client(ours.issue("x")).wrap_socket(
        socket.create_connection(("127.0.0.1", router.port), timeout=10),
        server_hostname="127.0.0.1",
    ):
        pass
    until(lambda: not router.door.clients)
    assert sum(failed(router).values()) == 6


def test_who_does_not_go_on(ours: Authority, stub: MakeStub, route: MakeRouter) -> None:
    """Connections closed before, or stuck within, a handshake count as `unfinished`."""
    router = route(stub().url, tls=ours.issue(), clients={"header": "300ms"})
    send(router.port, b"").close()
    send(router.port, b"\x16\x03\x01").close()
    until(lambda: failed(router) == {"unfinished": 2})
    with send(router.port, b"\x16\x03\x01"):
        until(lambda: failed(router) == {"unfinished": 3})


def test_the_log_is_not_flooded(
    ours: Authority, stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed handshake is logged at debug level only."""
    router = route(stub().url, tls=ours.issue())
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 1)):
        with caplog.at_level(level, "warmroute.tls"):
            before = sum(failed(router).values())
            with send(router.port, b"GET / HTTP/1.1\r\n\r\n"):
                until(lambda: sum(failed(router).values()) > before)  # noqa: B023 - at once
        found = [record for record in caplog.records if record.name == "warmroute.tls"]
        assert len(found) == lines


def test_random_bytes_never_make_a_series(
    ours: Authority, stub: MakeStub, route: MakeRouter
) -> None:
    """Random bytes are all counted under the known reasons."""
    router = route(stub().url, tls=ours.issue())
    for _ in range(50):
        send(router.port, os.urandom(300)).close()
    until(lambda: sum(failed(router).values()) == 50)
