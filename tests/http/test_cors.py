"""CORS: web pages of the origins named in `cors` get access, all others get no CORS fields."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from router.api.endpoints import ENDPOINTS
from tests.support import JSON, MakeRouter, MakeStub, Router, Stub, read_all, send

CHAT = "/v1/chat/completions"
PAGE, OTHER = "https://app.example", "http://localhost:3000"
KEY = "sk-door-0123456789"
BODY = {"model": "m", "messages": []}
FOR_PAGES = [*ENDPOINTS, "/v1/models", "/v1/models/m"]
ASKING = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def shared(worker: Stub) -> Iterator[Router]:
    """A router with a key, open to the pages of two origins."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOOR_KEY", KEY)
        auth = {"keys": ["${DOOR_KEY}"]}
        made = Router({"workers": [worker.url], "auth": auth, "cors": [PAGE, OTHER]})
        stack.callback(made.stop)
        yield made


def from_page(origin: str = PAGE, key: str = KEY) -> dict[str, str]:
    """The header fields of a page's request."""
    return {"origin": origin, "authorization": f"Bearer {key}"}


def of_cors(reply: httpx.Response) -> dict[str, str]:
    """The CORS fields and `Vary` of an answer."""
    return {
        name: value
        for name, value in reply.headers.items()
        if name.startswith("access-control-") or name == "vary"
    }


@pytest.mark.parametrize("path", [*FOR_PAGES, "/workers", "/health/live", "/nothing"])
def test_off_by_default(door: Router, path: str) -> None:
    """Without `cors` no answer has CORS fields, and OPTIONS is not handled as a preflight."""
    reply = door.http.options(path, headers=ASKING)
    assert reply.status_code == {"/nothing": 404, "/workers": 403}.get(path, 405)
    assert of_cors(reply) == {}
    method = "POST" if path in ENDPOINTS else "GET"
    assert of_cors(door.http.request(method, path, headers=from_page())) == {}


@pytest.mark.parametrize("path", FOR_PAGES)
@pytest.mark.parametrize("origin", [PAGE, OTHER])
def test_a_browser_asks_first(shared: Router, path: str, origin: str) -> None:
    """A preflight needs no key, gets all permissions it asks for, and keeps its connection."""
    reply = shared.http.options(path, headers={**ASKING, "origin": origin})
    assert (reply.status_code, reply.content) == (204, b"")
    assert of_cors(reply) == {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "POST" if path in ENDPOINTS else "GET",
        "access-control-allow-headers": ASKING["access-control-request-headers"],
        "access-control-max-age": "600",
        "vary": "origin",
    }
    assert "content-length" not in reply.headers
    assert "connection" not in reply.headers
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("odd", [b"a\xffb", b'a"b', b"a" * 5000, b""])
def test_odd_names_are_not_sent_back(shared: Router, odd: bytes) -> None:
    """If the requested headers are not a valid list of names, none is sent back."""
    lines = [
        f"OPTIONS {CHAT} HTTP/1.1\r\nhost: x\r\norigin: {PAGE}\r\nconnection: close".encode(),
        b"access-control-request-method: POST",
        b"access-control-request-headers: " + odd,
    ]
    with send(shared.port, b"\r\n".join([*lines, b"", b""])) as client:
        reply = read_all(client)
    assert reply.startswith(b"HTTP/1.1 204 ")
    assert b"allow-headers" not in reply


@pytest.mark.parametrize(
    "headers",
    [
        *({}, {"origin": PAGE}, {"access-control-request-method": "POST"}),
        *(
            {**ASKING, "origin": origin}
            for origin in (PAGE + ".evil.example", PAGE.upper(), PAGE + "/", "null")
        ),
    ],
    ids=["nothing", "no-method", "no-origin", "suffix", "upper", "slash", "null"],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
def test_others_get_no_permission(shared: Router, path: str, headers: dict[str, str]) -> None:
    """Other OPTIONS requests are treated like any request: 401 without a key, 405 with one."""
    for key, status in (("", 401), (KEY, 405)):
        brought = {"authorization": f"Bearer {key}"} if key else {}
        reply = shared.http.options(path, headers={**headers, **brought})
        assert reply.status_code == status
        if headers.get("origin") != PAGE:
            assert of_cors(reply) == {"vary": "origin"}


def readable_by(reply: httpx.Response, origin: str) -> bool:
    """Whether a browser shows the answer and its useful fields to a page of that origin."""
    fields = of_cors(reply)
    exposed = set(fields.get("access-control-expose-headers", "").split(", "))
    allowed = fields.get("access-control-allow-origin")
    return allowed in {origin, "*"} and {"x-request-id", "x-warmroute-worker"} < exposed


def test_answers_are_readable(worker: Stub, shared: Router) -> None:
    """A page can read all answers: workers', the router's own, and errors; other origins none."""
    post, get = shared.http.post, shared.http.get
    large = b"x" * (17 << 20)
    replies = {
        200: post(CHAT, json=BODY, headers=from_page()),
        400: post(CHAT, content=b"{", headers=from_page()),
        401: post(CHAT, json=BODY, headers=from_page(key="sk-wrong-0123456789")),
        404: post(CHAT, json={"model": "none"}, headers=from_page()),
        405: get(CHAT, headers=from_page()),
        413: post(CHAT, content=large, headers=from_page()),
    }
    for status, reply in replies.items():
        assert reply.status_code == status
        assert readable_by(reply, PAGE)
        assert of_cors(reply)["vary"] == "origin"
    assert readable_by(get("/v1/models", headers=from_page(OTHER)), OTHER)
    for headers in (from_page("https://evil.example"), {"authorization": f"Bearer {KEY}"}):
        reply = get("/v1/models", headers=headers)
        assert (reply.status_code, of_cors(reply)) == (200, {"vary": "origin"})


@pytest.mark.parametrize("path", ["/workers", "/metrics", "/docs", "/openapi.json"])
def test_operators_paths_are_for_no_page(shared: Router, path: str) -> None:
    """Operators' paths have no CORS fields and answer no preflight."""
    assert of_cors(shared.http.get(path, headers=from_page())) == {}
    reply = shared.http.options(path, headers=ASKING)
    assert reply.status_code == 401
    assert of_cors(reply) == {}


def test_all_origins(stub: MakeStub, route: MakeRouter) -> None:
    """With `cors: ['*']` every origin gets `*`, without credentials."""
    router = route(stub().url, cors=["*"])
    for origin in (PAGE, "null", "https://any.example"):
        asked = router.http.options(CHAT, headers={**ASKING, "origin": origin})
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == "*"
        reply = router.http.post(CHAT, json=BODY, headers={"origin": origin})
        assert readable_by(reply, "null")
        assert reply.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in reply.headers


VLLM = (
    b"HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\naccess-control-allow-credentials: true"
)
VLLM += b"\r\naccess-control-expose-headers: *\r\ncontent-length: %d\r\n\r\n" % len(JSON) + JSON


def test_a_worker_has_no_say(stub: MakeStub, route: MakeRouter) -> None:
    """A worker's CORS fields are removed: vLLM allows every origin, and browsers reject two."""
    worker = stub([VLLM])
    silent = route(worker.url).http.post(CHAT, json=BODY, headers={"origin": OTHER})
    assert silent.json() == json.loads(JSON)
    assert of_cors(silent) == {}
    told = route(worker.url, cors=[PAGE]).http.post(CHAT, json=BODY, headers={"origin": PAGE})
    assert told.headers.get_list("access-control-allow-origin") == [PAGE]
    assert readable_by(told, PAGE)
