"""API keys: what they give access to, and that they are neither forwarded nor logged."""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.error_shapes import Surface, surface_of
from tests.support import MakeRouter, MakeStub, Router, Stub, error_of, head, read_all, send

DOOR, ADMIN, BOTH = "sk-door-0123456789", "sk-admin-0123456789", "sk-both-0123456789"
WRONG, WORKER = "sk-wrong-0123456789", "sk-worker-0123456789"
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
FOR_CLIENTS = [*ENDPOINTS, "/v1/models", "/v1/models/m"]
FOR_OPERATORS = ["/workers", "/tokenizers", "/metrics", "/docs", "/openapi.json"]
FOR_OPERATORS += [f"/docs/{file}" for file in ("swagger-ui-bundle.js", "favicon.png")]
NOWHERE = ["/", "/nothing", "/v1/files", CHAT + "/", "/healthy", "/health/live/"]


@pytest.fixture(scope="module", autouse=True)
def _secrets() -> Iterator[None]:
    """Set the environment variables that the settings name."""
    with pytest.MonkeyPatch.context() as patch:
        for name, key in (("DOOR", DOOR), ("ADMIN", ADMIN), ("BOTH", BOTH), ("WORKER", WORKER)):
            patch.setenv(f"{name}_KEY", key)
        yield


AUTH = {"keys": [{"name": "chat", "key": "${DOOR_KEY}"}, {"name": "both", "key": "${BOTH_KEY}"}]}
OPERATORS = {
    "keys": [{"name": "ops", "key": "${ADMIN_KEY}"}, {"name": "both", "key": "${BOTH_KEY}"}]
}


@pytest.fixture(scope="module")
def keyed(worker: Stub) -> Iterator[Router]:
    """A router with keys for clients and others for operators."""
    with ExitStack() as stack:
        workers = [{"url": worker.url, "name": "gpu-1"}]
        made = Router({"workers": workers, "auth": AUTH, "admin": OPERATORS})
        stack.callback(made.stop)
        yield made
        assert made.idle()


def bearer(key: str) -> dict[str, str]:
    """The header field with a key."""
    return {"authorization": f"Bearer {key}"}


def asked(router: Router, path: str, headers: dict[str, str] | None = None) -> int:
    """Send a valid request to a path; return the status."""
    endpoint = ENDPOINTS.get(path.partition("?")[0])
    if endpoint is None:
        return router.http.get(path, headers=headers).status_code
    if endpoint.form:
        form, file = {"model": "m"}, {"file": b"sound"}
        return router.http.post(path, headers=headers, data=form, files=file).status_code
    return router.http.post(path, headers=headers, json=BODY).status_code


#: Type and code of the error, where it has any.
TOLD = {
    Surface.OPENAI: ("invalid_request_error", "invalid_api_key"),
    Surface.ANTHROPIC: ("authentication_error", "invalid_api_key"),
}


@pytest.mark.parametrize("path", FOR_CLIENTS + FOR_OPERATORS + NOWHERE)
def test_without_the_right_key(worker: Stub, keyed: Router, path: str) -> None:
    """Without a right key every path gives 401 in its own format, and nothing reaches a worker."""
    before = len(worker.requests)
    two = bearer(DOOR) | {"x-api-key": WRONG}
    for method, headers in (("GET", bearer(WRONG)), ("POST", {}), ("POST", two)):
        reply = keyed.http.request(method, path, headers=headers)
        assert reply.status_code == 401
        error = error_of(reply)
        assert (error["type"], error["code"]) == TOLD.get(surface_of(path), (None, None))
        assert "API key" in error["message"]
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.headers["x-request-id"]
    assert len(worker.requests) == before


def test_probes_need_no_key(keyed: Router) -> None:
    """Health paths need no key, and a wrong key does no harm."""
    for path in ("/health", "/health/live", "/health/ready"):
        assert asked(keyed, path) == asked(keyed, path, bearer(WRONG)) == 200


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        *((path, {DOOR, BOTH}) for path in FOR_CLIENTS),
        *((path, {ADMIN, BOTH}) for path in FOR_OPERATORS),
    ],
)
def test_which_key_opens_what(keyed: Router, path: str, keys: set[str]) -> None:
    """Client keys open clients' paths, operators' theirs, as every client sends them."""
    for key in (DOOR, ADMIN, BOTH):
        assert asked(keyed, path, bearer(key)) == (200 if key in keys else 401)
    for field in ("x-api-key", "api-key"):
        assert asked(keyed, path + "?api-version=1", {field: BOTH}) == 200


@pytest.mark.parametrize("path", NOWHERE)
def test_any_key_is_told_what_is_not_there(keyed: Router, path: str) -> None:
    """With any valid key an unknown path gives 404, which does not suggest a wrong key."""
    for key in (DOOR, ADMIN, BOTH):
        reply = keyed.http.get(path, headers=bearer(key))
        assert (reply.status_code, error_of(reply)["code"]) == (404, "unknown_url")


def test_where_only_one_side_has_keys(stub: MakeStub, route: MakeRouter) -> None:
    """Keys of `auth` alone open all paths; with `admin.keys` alone inference needs none."""
    clients, operators = route(stub().url, auth=AUTH), route(stub().url, admin=OPERATORS)
    for path in FOR_CLIENTS + FOR_OPERATORS:
        assert (asked(clients, path), asked(clients, path, bearer(DOOR))) == (401, 200)
        assert asked(operators, path, bearer(ADMIN)) == 200
        assert asked(operators, path) == (200 if path in FOR_CLIENTS else 401)
    assert asked(operators, "/nothing") == 404


def status_of(router: Router, raw: bytes) -> int:
    """Send bytes on a new connection; return the status of the first answer."""
    with send(router.port, raw) as client:
        return int(read_all(client).split(b" ", 2)[1])


@pytest.mark.parametrize(
    "fields", [[], [b"expect: 100-continue"], [b"authorization: Bearer x"]], ids=str
)
def test_refused_on_the_head_alone(keyed: Router, fields: list[bytes]) -> None:
    """401 comes from the head alone, without a 100 Continue or waiting for the body."""
    for length in (10, 10**9):
        with send(keyed.port, head(CHAT, length, *fields)) as client:
            assert read_all(client).startswith(b"HTTP/1.1 401 ")


def test_every_request_of_a_connection_is_judged(keyed: Router) -> None:
    """Every request on a connection needs its own key."""
    body = json.dumps(BODY).encode()
    key = b"authorization: Bearer " + DOOR.encode()
    with send(keyed.port, head(CHAT, len(body), key) + body + head(CHAT, len(body)) + body) as it:
        answers = read_all(it)
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert answers.count(b"HTTP/1.1 401 ") == 1
    assert answers.count(b"HTTP/1.1 ") == 2


#: Spellings that other readers may take for `/workers`.
TARGETS = [
    *(b"/workers", b"/%77orkers", b"/workers%0a", b"/workers%00", b"/workers/", b"/workers/."),
    *(b"//workers", b"///workers", b"/./workers", b"/health/live/../workers", b"/WORKERS"),
    *(b"/health/live/../../workers", b"/health/live%2f..%2f..%2fworkers", b"/%2577orkers"),
    *(b"/health/live;/../workers", b"/health/live?/../workers", b"/health/live/workers"),
    *(b"/workers?/health/live", b"/workers?x=/health/live&y", b"/workers;/health/live"),
    *(b"/v1/models/../../workers", b"/v1/models/%2e%2e/%2e%2e/workers", b"http://a/workers"),
    *(b"http://health/live/workers", b"http://a//workers", b"HTTP://a/workers?/health/live"),
    *(b"https://a/workers", b"http://a?/health/live", b"http://a@b/health/live/../workers"),
    *(b"/\\workers", b"/health/live#/workers", b"workers"),
]
HOSTS = [b"a", b"a/?", b"a#", b"a@b", b"a/health/live?", b"/health/live", b"a, b", b"", b"a:80#"]


@pytest.mark.parametrize("key", [None, DOOR], ids=["no-key", "door-key"])
@pytest.mark.parametrize("target", TARGETS)
def test_no_way_of_writing_a_path_goes_round_the_key(
    keyed: Router, target: bytes, key: str | None
) -> None:
    """However a path or host is written, nobody without an operator key sees `/workers`."""
    fields = b"authorization: Bearer %b\r\n" % key.encode() if key else b""
    for method in (b"GET", b"HEAD", b"POST", b"OPTIONS"):
        for host in HOSTS:
            line = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, host)
            raw = line + fields + b"connection: close\r\ncontent-length: 0\r\n\r\n"
            with send(keyed.port, raw) as client:
                answer = read_all(client)
            assert answer.startswith(b"HTTP/1.1 ")
            assert b"gpu-1" not in answer
            status = int(answer.split(b" ", 2)[1])
            if target.startswith((b"/health/live?", b"http://health/live/")):
                continue  # these are other paths, which need no key
            assert status in {400, 401, 404, 405}


@pytest.mark.parametrize(
    "target",
    [
        *(CHAT.encode(), b"/v1/%63hat/completions", b"/v1/chat%2fcompletions"),
        *(b"//v1/chat/completions", b"/v1/chat/completions/", b"/v1/chat/completions%0a"),
        *(b"/v1/chat/completions?/health/live", b"/health/live/../../v1/chat/completions"),
        *(b"http://a/v1/chat/completions", b"http://a?@b/v1/chat/completions"),
    ],
)
def test_no_way_of_writing_a_path_reaches_a_worker(
    worker: Stub, keyed: Router, target: bytes
) -> None:
    """Without a key no spelling of a path or host gets a request to a worker."""
    before = len(worker.requests)
    body = json.dumps(BODY).encode()
    for host in HOSTS:
        start = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n\r\n"
        assert status_of(keyed, start % (target, host, len(body)) + body) in {400, 401}
    assert len(worker.requests) == before


@pytest.mark.parametrize("brought", [bearer(DOOR), {"x-api-key": DOOR}, {"api-key": DOOR}])
def test_a_worker_never_sees_a_key_of_the_door(
    stub: MakeStub, route: MakeRouter, brought: dict[str, str]
) -> None:
    """A worker gets its own key or none, but never a client's, in requests and probes."""
    plain, owned = stub(model="a"), stub(model="b")
    router = route(plain.url, {"url": owned.url, "api_key": "${WORKER_KEY}"}, auth=AUTH)
    for model in ("a", "b"):
        reply = router.http.post(CHAT, json={**BODY, "model": model}, headers=brought)
        assert reply.status_code == 200
    for seen in (*plain.requests, *owned.requests, *plain.probes, *owned.probes):
        assert DOOR.encode() not in seen
    assert not any(b"\r\n%b:" % name in plain.requests[0].lower() for name in KEY_FIELDS)
    assert b"\r\nauthorization: Bearer %b\r\n" % WORKER.encode() in owned.requests[0]


KEY_FIELDS = [b"authorization", b"x-api-key", b"api-key"]


def test_without_keys_a_client_s_own_passes(stub: MakeStub, route: MakeRouter) -> None:
    """If the router has no keys, a client's own key is passed to the worker."""
    worker = stub()
    route(worker.url).http.post(CHAT, json=BODY, headers=bearer("anything"))
    assert b"\r\nauthorization: Bearer anything\r\n" in worker.requests[0]


def test_no_key_is_ever_logged(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """No key, right or wrong, appears in debug logs, request logs, metrics or `/workers`."""
    caplog.set_level(logging.DEBUG)
    worker = {"url": stub().url, "api_key": "${WORKER_KEY}"}
    logs = {"requests": True, "level": "debug"}
    router = route(worker, auth=AUTH, admin=OPERATORS, logs=logs)
    for key in (DOOR, ADMIN, BOTH, WRONG):
        for path in (CHAT, "/v1/models", "/workers", "/metrics", "/nothing"):
            for headers in (bearer(key), {"x-api-key": key}, {"authorization": key}):
                asked(router, path, headers)
        two = b"x-api-key: %b\r\nauthorization: Bearer %b\r\n" % (key.encode(), WRONG.encode())
        for broken in (b"\x00", b"host: a\r\n" + two, two + b" folded\r\n", two + b"no colon\r\n"):
            start = b"GET /workers HTTP/1.1\r\nconnection: close\r\n"
            status_of(router, start + broken + b"\r\n")
    seen = router.http.get("/metrics", headers=bearer(ADMIN)).text
    seen += router.http.get("/workers", headers=bearer(ADMIN)).text
    assert "status=401" in caplog.text
    assert "status=200" in caplog.text
    for key in (DOOR, ADMIN, BOTH, WRONG, WORKER):
        assert key not in caplog.text + seen


@pytest.mark.parametrize(("key", "name"), [(DOOR, "chat"), (ADMIN, "ops"), (BOTH, "both-1")])
def test_the_log_names_keys_on_every_path(
    worker: Stub, route: MakeRouter, caplog: pytest.LogCaptureFixture, key: str, name: str
) -> None:
    """A request for a path that does not exist is logged with the name of its key, too."""
    caplog.set_level(logging.INFO)
    auth = {"keys": [AUTH["keys"][0], {"name": "both-1", "key": "${BOTH_KEY}"}]}
    router = route(worker.url, auth=auth, admin=OPERATORS, logs={"requests": True})
    assert asked(router, "/nothing", bearer(key)) == 404
    assert f"path=/nothing key={name} status=404" in caplog.text
