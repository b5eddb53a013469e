"""Without keys, requests by web pages of other origins are refused: browsers send them freely."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from router.api.endpoints import ENDPOINTS
from router.http.access import is_foreign
from tests.support import MakeRouter, Router, Stub, error_of, head, read_all, send

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}
PAGE, EVIL = "https://app.example", "http://evil.example:8080"
KEY = "sk-door-0123456789"


@pytest.mark.parametrize(
    ("origin", "host", "foreign"),
    [
        ("http://evil.example", "127.0.0.1:8080", True),
        ("http://evil.example:8080", "evil.example:8080", True),  # DNS rebinding
        ("https://evil.example", "localhost", True),
        ("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", True),
        ("http://192.0.2.7", "127.0.0.1:8080", True),
        ("http://[2001:db8::1]", "[2001:db8::2]", True),
        ("null", "127.0.0.1:8080", True),
        ("", "127.0.0.1:8080", True),
        ("http://user@127.0.0.1", "127.0.0.1", True),
        ("http://127.0.0.1, app://x", "127.0.0.1", True),
        ("http://evil.example,app://x", "127.0.0.1", True),
        ("http://", "", True),
        ("http://[]:80", "", True),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", False),
        ("http://127.0.0.1:3000", "llm.internal", False),
        ("http://LOCALHOST:3000", "127.0.0.1:8080", False),
        ("https://ui.localhost", "127.0.0.1:8080", False),
        ("http://[::1]:8080", "[::1]:8080", False),
        ("http://192.0.2.7:8080", "192.0.2.7:8080", False),
        ("http://[2001:DB8::1]:8080", "[2001:db8::1]:8080", False),
        ("app://obsidian.md", "127.0.0.1:8080", False),
    ],
)
def test_whose_page_it_is(origin: str, host: str, *, foreign: bool) -> None:
    """Pages of localhost, loopback, the same IP address as Host, or an app are not foreign."""
    assert is_foreign(origin.encode(), host.encode()) == foreign


def asked(router: Router, path: str, origin: str, **headers: str) -> httpx.Response:
    """Send a page's request to a path."""
    told = {"origin": origin, **headers}
    if path in ENDPOINTS or path.startswith("/endpoints/"):
        return router.http.post(path, json=BODY, headers=told)
    return router.http.get(path, headers=told)


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/models", "/workers", "/metrics", "/endpoints/x/invocations"]
)
def test_a_page_of_others_is_kept_out(worker: Stub, door: Router, path: str) -> None:
    """A foreign page gets 403 on every path, even by DNS rebinding; nothing reaches a worker."""
    before = len(worker.requests)
    for headers in ({}, {"host": "evil.example:8080"}):
        reply = asked(door, path, EVIL, **headers)
        assert reply.status_code == 403
        assert "access-control-allow-origin" not in reply.headers
        if not path.startswith("/endpoints"):  # those speak as AWS does
            assert error_of(reply)["code"] == "origin_not_allowed"
            assert "evil.example" in error_of(reply)["message"]
    assert len(worker.requests) == before


def test_it_is_told_before_its_body_is_read(door: Router) -> None:
    """403 comes from the head alone, as with a wrong key."""
    fields = b"origin: " + EVIL.encode(), b"expect: 100-continue"
    with send(door.port, head(CHAT, 1 << 20, *fields)) as client:
        client.settimeout(10)
        assert client.recv(65536).startswith(b"HTTP/1.1 403 ")


def test_those_who_may_come(door: Router) -> None:
    """Allowed: requests without an origin, local pages and apps, and health paths for anyone."""
    assert door.http.post(CHAT, json=BODY).status_code == 200
    for origin in ("http://localhost:3000", f"http://127.0.0.1:{door.port}", "app://x"):
        assert asked(door, CHAT, origin).status_code == 200
        assert asked(door, "/workers", origin).status_code == 200
    assert asked(door, "/health/live", EVIL).status_code == 200


@pytest.fixture(scope="module")
def named(worker: Stub) -> Iterator[Router]:
    """A router open to the pages of one origin."""
    with ExitStack() as stack:
        made = Router({"workers": [worker.url], "cors": [PAGE]})
        stack.callback(made.stop)
        yield made


def test_pages_that_are_let_in(named: Router, route: MakeRouter, worker: Stub) -> None:
    """`cors`, by name or `*`, opens clients' paths to pages, but not operators' paths."""
    assert (
        asked(named, CHAT, PAGE).status_code == asked(named, "/v1/models", PAGE).status_code == 200
    )
    assert asked(named, "/workers", PAGE).status_code == 403
    assert asked(named, CHAT, EVIL).status_code == 403
    everyone = route(workers=[worker.url], cors=["*"])
    assert asked(everyone, CHAT, EVIL).status_code == 200
    assert asked(everyone, "/workers", EVIL).status_code == 403


def test_keys_are_enough(route: MakeRouter, worker: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a valid key any origin is allowed, as foreign pages do not have one."""
    monkeypatch.setenv("DOOR_KEY", KEY)
    router = route(workers=[worker.url], auth={"keys": ["${DOOR_KEY}"]})
    assert asked(router, CHAT, EVIL).status_code == 401
    assert asked(router, CHAT, EVIL, authorization=f"Bearer {KEY}").status_code == 200


def test_two_origins_are_nobody(door: Router) -> None:
    """Requests with two Origin fields are refused."""
    body = json.dumps(BODY).encode()
    for other in (b"http://localhost", b"app://x"):
        fields = b"origin: " + other, b"origin: " + EVIL.encode(), b"connection: close"
        with send(door.port, head(CHAT, len(body), *fields) + body) as client:
            assert read_all(client).startswith(b"HTTP/1.1 403 ")
