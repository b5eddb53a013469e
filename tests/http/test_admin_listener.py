"""A separate listener for operators: each path is served on its own listener only."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from router.http.server import PortTaken, bind
from router.settings.types import Address
from tests.authority import Authority
from tests.support import MakeRouter, MakeStub, Router, Stub, error_of, head, read_all, send, until

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}
DOOR, ADMIN = "sk-door-0123456789", "sk-admin-0123456789"
FOR_OPERATORS = [
    *("/workers", "/metrics", "/kv", "/tokenizers", "/docs", "/docs/swagger-ui.css"),
    "/openapi.json",
]
PROBES = ["/health/live", "/health/ready"]
APART = {"listen": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def apart(worker: Stub) -> Iterator[Router]:
    """A router with a separate listener for operators."""
    with ExitStack() as stack:
        made = Router({"workers": [worker.url], "admin": APART, "cors": ["*"]})
        stack.callback(made.stop)
        yield made


@pytest.fixture(scope="module")
def operators(apart: Router) -> Iterator[httpx.Client]:
    """A client of the operators' listener."""
    with httpx.Client(base_url=f"http://127.0.0.1:{apart.admin_port}", timeout=20) as http:
        yield http


def test_operators_paths(apart: Router, operators: httpx.Client) -> None:
    """Operators' paths are served on their listener and not on the main one; probes on both."""
    for path in FOR_OPERATORS:
        assert operators.get(path).status_code == 200
        for method in ("GET", "POST", "OPTIONS"):
            reply = apart.http.request(method, path)
            assert reply.status_code == 404
            assert error_of(reply)["code"] == "unknown_url"
    for path in PROBES:
        assert apart.http.get(path).status_code == operators.get(path).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models/m"])
def test_clients_paths(worker: Stub, apart: Router, operators: httpx.Client, path: str) -> None:
    """Clients' paths are served on the main listener only; the other gives 404 without CORS."""
    before = len(worker.requests)
    for method in ("GET", "POST", "OPTIONS"):
        asking = {"origin": "https://a.example", "access-control-request-method": method}
        reply = operators.request(method, path, headers=asking, json=BODY)
        assert reply.status_code == 404
        assert not any(name.startswith("access-control-") for name in reply.headers)
    assert len(worker.requests) == before
    assert apart.http.options(path, headers=asking).status_code == 204
    method = "GET" if "models" in path else "POST"
    assert apart.http.request(method, path, content=b"x").status_code in {200, 400}


def test_it_is_the_same_router(apart: Router, operators: httpx.Client) -> None:
    """`/workers` and `/metrics` of the operators' listener are about the main one's requests."""
    assert apart.http.post(CHAT, json=BODY).status_code == 200
    (status,) = operators.get("/workers").json()
    assert status["state"] == "ready"
    assert "warmroute_requests_total{" in operators.get("/metrics").text


@pytest.fixture
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables that the settings name."""
    monkeypatch.setenv("DOOR_KEY", DOOR)
    monkeypatch.setenv("ADMIN_KEY", ADMIN)


@pytest.mark.usefixtures("_secrets")
@pytest.mark.parametrize("own", [True, False])
def test_keys_hold_there(stub: MakeStub, route: MakeRouter, own: bool) -> None:
    """The operators' listener needs its own keys, or the clients' if it has none."""
    admin = {**APART, "keys": ["${ADMIN_KEY}"]} if own else APART
    router = route(stub().url, auth={"keys": ["${DOOR_KEY}"]}, admin=admin)
    opens, other = (ADMIN, DOOR) if own else (DOOR, ADMIN)
    with httpx.Client(base_url=f"http://127.0.0.1:{router.admin_port}", timeout=20) as http:
        for path in FOR_OPERATORS:
            for key, status in (("", 401), (other, 401), (opens, 200)):
                assert http.get(path, headers={"x-api-key": key}).status_code == status
            assert router.http.get(path, headers={"x-api-key": opens}).status_code == 404
            assert router.http.get(path).status_code == 401
        for path in (CHAT, "/v1/models", "/nothing"):
            assert http.get(path, headers={"x-api-key": other}).status_code == 401
            assert http.get(path, headers={"x-api-key": opens}).status_code == 404
        assert {http.get(path).status_code for path in PROBES} == {200}


def test_it_speaks_tls_as_the_other_does(stub: MakeStub, route: MakeRouter, tmp_path: Path) -> None:
    """The operators' listener uses the same TLS settings as the main one."""
    ours = Authority(tmp_path / "ours")
    router = route(stub().url, admin=APART, tls=ours.issue())
    where = f"127.0.0.1:{router.admin_port}"
    assert httpx.get(f"https://{where}/workers", verify=ours.client()).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{where}/workers")


def test_a_crowd_does_not_lock_operators_out(stub: MakeStub, route: MakeRouter) -> None:
    """`clients.connections` counts per listener, so a full one does not block the other."""
    router = route(stub().url, admin=APART, clients={"connections": 1})
    for port in (router.port, router.admin_port):
        with send(port, b"") as first:
            until(lambda: len(router.door.everyone) == 1)
            with send(port, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n") as second:
                assert read_all(second).startswith(b"HTTP/1.1 503 ")
            other = router.admin_port + router.port - port
            reply = httpx.get(f"http://127.0.0.1:{other}/health/live")
            assert reply.status_code == 200
            first.close()
        until(lambda: not router.door.everyone)


def test_its_connections_end_with_the_others(stub: MakeStub, route: MakeRouter) -> None:
    """The operators' listener ends idle and slow connections, and itself when the router stops."""
    hasty = route(stub().url, admin=APART, clients={"header": "200ms", "body": "200ms"})
    for slow in (b"GET /workers HTTP/1.1\r\nhost:", head("/explain", 10) + b"{"):
        with send(hasty.admin_port, slow) as client:
            assert read_all(client).startswith(b"HTTP/1.1 408 ")
    router = route(stub().url, admin=APART, clients={"keepalive": "200ms"})
    with httpx.Client(base_url=f"http://127.0.0.1:{router.admin_port}") as http:
        http.get("/workers")
        until(lambda: not router.door.everyone)
        http.get("/workers")
        router.server.stop()
        until(lambda: not router.thread.is_alive())
        with pytest.raises(httpx.TransportError):
            http.get("/workers")


def test_the_second_of_two_servers_hears_of_it() -> None:
    """Binding a port that another server has bound raises PortTaken, before either listens."""
    with bind(Address("127.0.0.1", 0)) as first, pytest.raises(PortTaken, match="in use"):
        bind(Address("127.0.0.1", first.getsockname()[1]))
