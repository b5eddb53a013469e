"""A worker's redirect would lead clients around the router: it is a failure of the worker."""

import logging
from typing import Any

import pytest

from tests.cancel.leaving import counted
from tests.health.failing import health
from tests.support import Action, MakeRouter, MakeStub, error_of, until

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUIET = {"interval": "1h", "timeout": "10s"}
TARGET = b"http://user:secret@10.1.2.3:8000/v1/chat/completions/?key=hidden"


def redirect(status: int, *fields: bytes) -> list[Action]:
    """An answer that names another place."""
    lines = [b"HTTP/1.1 %d X" % status, b"location: " + TARGET, b"content-length: 2", *fields]
    return [b"\r\n".join([*lines, b"", b"{}"])]


@pytest.mark.parametrize("status", [300, 303, 308])
def test_a_redirect_is_not_passed_on(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """The client gets a 502 that does not say where to, the log says it without secrets."""
    bad, good = stub(redirect(status)), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health=QUIET)
    with caplog.at_level(logging.WARNING, "warmroute.requests"):
        reply = router.http.post(PATH, json=CHAT, follow_redirects=False)
    assert reply.status_code == 502
    assert "location" not in reply.headers
    assert "10.1.2.3" not in reply.text
    error = error_of(reply)
    assert error["code"] == "worker_failed"
    assert f"redirect ({status})" in error["message"]
    assert "10.1.2.3:8000/v1/chat/completions" in caplog.text
    assert "secret" not in caplog.text
    assert "hidden" not in caplog.text
    until(router.idle)
    assert counted(router, "worker_errors") == {"redirect": 1}
    assert not good.requests  # 303 follows a request that was served


def test_redirects_eject_a_worker(stub: MakeStub, route: MakeRouter) -> None:
    """One that answers nothing else is left out like one that fails."""
    bad, good = stub(redirect(307)), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health=health())
    statuses = [router.http.post(PATH, json=CHAT).status_code for _ in range(12)]
    assert statuses.count(502) == 3
    assert statuses[-6:] == [200] * 6


@pytest.mark.parametrize("path", ["/invocations", "/endpoints/e/invocations-response-stream"])
def test_a_redirect_below_an_endpoint(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """SageMaker's clients get it as an error of the model, and nothing of the redirect."""
    router = route(stub(redirect(302)).url, health=QUIET)
    reply = router.http.post(path, json=CHAT, follow_redirects=False)
    assert reply.status_code == 424
    assert "10.1.2.3" not in str(reply.headers) + reply.text


def test_what_is_no_redirect_passes(stub: MakeStub, route: MakeRouter) -> None:
    """A 304 sends nobody elsewhere, nor does a 201 that says where it has put something."""
    for status in (201, 304):
        length = 2 if status == 201 else 0
        told = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, length) + b"{}"[:length]
        router = route(stub([told]).url, health=QUIET)
        assert router.http.post(PATH, json=CHAT).status_code == status
        assert counted(router, "worker_errors") == {}
