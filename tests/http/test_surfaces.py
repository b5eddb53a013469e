"""The router's own errors have the shape of the surface that the client uses."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from tests.support import (
    Action,
    MakeRouter,
    MakeStub,
    Router,
    Stub,
    error_of,
    post,
    read_all,
    send,
    until,
)

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
CHAT = "/v1/chat/completions"
KEY = "sk-door-0123456789"
BODY = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
SMALL = b'{"model":"m","messages":[]}'
SSE: Action = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def anthropic(status: int, headers: Any, body: bytes) -> tuple[int, str]:
    """Status and type of an error, which must have Anthropic's shape."""
    told = json.loads(body)
    assert set(told) == {"type", "error", "request_id"}
    assert told["type"] == "error"
    assert told["error"]["message"]
    assert told["request_id"] == headers["request-id"] == headers["x-request-id"]
    assert headers["content-type"] == "application/json"
    return status, told["error"]["type"]


def of(reply: httpx.Response) -> tuple[int, str]:
    """The same of a reply."""
    return anthropic(reply.status_code, reply.headers, reply.content)


def of_raw(data: bytes) -> tuple[int, str]:
    """The same of the bytes of one answer."""
    start, _, body = data.partition(b"\r\n\r\n")
    line, *fields = start.decode().split("\r\n")
    headers = httpx.Headers(dict(field.split(": ", 1) for field in fields))
    return anthropic(int(line.split()[1]), headers, body)


@contextmanager
def limited(**settings: Any) -> Iterator[Router]:
    """Start a router with a key and tight limits."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOOR_KEY", KEY)
        worker = Stub()
        stack.callback(worker.stop)
        made = Router(
            {
                "workers": [worker.url],
                "auth": {"keys": ["${DOOR_KEY}"]},
                "limits": {"body": "1KiB", "url": "200B", "headers": "1KiB", "max_tokens": 100},
                **settings,
            }
        )
        stack.callback(made.stop)
        yield made


@pytest.fixture(scope="module")
def strict() -> Iterator[Router]:
    """A router with a key and tight limits."""
    with limited() as made:
        yield made


@pytest.fixture(scope="module")
def impatient() -> Iterator[Router]:
    """The same, with little patience."""
    with limited(clients={"header": "500ms", "body": "500ms"}) as made:
        yield made


AUTH = b"x-api-key: " + KEY.encode()
LINE = b"POST %b HTTP/1.1\r\nhost: x\r\n" + AUTH + b"\r\n"
REFUSED: dict[str, tuple[bytes, tuple[int, str]]] = {
    "no-key": (
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
        (401, "authentication_error"),
    ),
    "length": (LINE + b"content-length: 2000\r\n\r\n", (413, "request_too_large")),
    "url": (b"POST %b?" + b"x" * 300 + b" HTTP/1.1\r\n", (414, "invalid_request_error")),
    "coding": (
        LINE + b"transfer-encoding: gzip, chunked\r\n\r\n",
        (501, "invalid_request_error"),
    ),
    "slow-body": (LINE + b"content-length: 9\r\n\r\n{", (408, "timeout_error")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_head_or_a_body_that_is_refused(strict: Router, impatient: Router, case: str) -> None:
    """As soon as the path is known, an Anthropic client gets Anthropic's shape and type."""
    sent, expected = REFUSED[case]
    router = impatient if expected[0] == 408 else strict
    with send(router.port, sent.replace(b"%b", MESSAGES.encode(), 1)) as client:
        assert of_raw(read_all(client)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", (400, "invalid_request_error")),
        (b"", (400, "invalid_request_error")),
        (b'{"model": 5}', (400, "invalid_request_error")),
        (json.dumps({**BODY, "max_tokens": 101}).encode(), (400, "invalid_request_error")),
        (json.dumps({**BODY, "model": "other"}).encode(), (404, "not_found_error")),
    ],
)
def test_a_request_that_is_refused(strict: Router, body: bytes, expected: tuple[int, str]) -> None:
    """A body that cannot be read, asks for too much, or names no model that is served."""
    for path in (MESSAGES, COUNT):
        assert of(strict.http.post(path, content=body, headers={"x-api-key": KEY})) == expected
    reply = strict.http.post(CHAT, content=body, headers={"x-api-key": KEY})
    assert (reply.status_code, error_of(reply)["type"]) == (expected[0], "invalid_request_error")
    assert "request-id" not in reply.headers


def test_paths_that_are_not_served(door: Router) -> None:
    """A wrong base URL, or a part of Anthropic's API that is not here; pages of others neither."""
    for path in ("/messages", "/v1/v1/messages", "/v1/messages/", "/v1/messages/batches"):
        assert of(door.http.post(path, json=BODY)) == (404, "not_found_error")
    page = door.http.post(MESSAGES, json=BODY, headers={"origin": "http://evil.example"})
    assert of(page) == (403, "permission_error")
    other = door.http.post("/v1/threads/t/messages", json=BODY)
    assert error_of(other)["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (["close"], (502, "api_error")),
        ([b"HTTP/1.1 200 OK\r\ncontent-le", "reset"], (502, "api_error")),
        (["stall"], (504, "timeout_error")),
    ],
)
def test_a_worker_that_fails(
    stub: MakeStub, route: MakeRouter, script: list[Action], expected: tuple[int, str]
) -> None:
    """Whatever it does before its answer begins."""
    router = route(stub(script).url, timeouts={"first_byte": "300ms"})
    for path in (MESSAGES, COUNT):
        assert of(router.http.post(path, json=BODY)) == expected


def test_nobody_there(route: MakeRouter, dead_url: str) -> None:
    """503 is what Anthropic calls overloaded; when to try again is said too."""
    reply = route(dead_url).http.post(MESSAGES, json=BODY)
    assert of(reply) == (503, "overloaded_error")
    assert int(reply.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [
        ({}, (429, "rate_limit_error")),
        ({"overflow": {"status": 503, "body": "hyperpod"}}, (503, "overloaded_error")),
    ],
)
def test_a_full_queue(
    stub: MakeStub, route: MakeRouter, overflow: dict[str, Any], expected: tuple[int, str]
) -> None:
    """HyperPod's body is for those that know it; Anthropic's clients get their own."""
    router = route(stub(["stall"]).url, limits={"in_flight": 1, "queue": 1, **overflow})
    with post(router.port, CHAT, SMALL), post(router.port, CHAT, SMALL):
        until(lambda: router.metric("warmroute_queue_length") == 1)
        assert of(router.http.post(MESSAGES, json=BODY)) == expected
        other = router.http.post(CHAT, json=BODY)
        assert other.status_code == expected[0]
        assert isinstance(other.json()["error"], str) is bool(overflow)


def last_event(data: bytes) -> dict[str, Any]:
    """The last event of a stream, which must be Anthropic's error."""
    event = data.removesuffix(b"\n\n").rsplit(b"\n\n", 1)[-1]
    name, _, said = event.partition(b"\n")
    assert name == b"event: error"
    told: dict[str, Any] = json.loads(said.removeprefix(b"data: "))
    assert set(told) == {"type", "error", "request_id"}
    return told


def test_a_stream_that_breaks(stub: MakeStub, route: MakeRouter) -> None:
    """The error event has the type and the id that an answer would have."""
    router = route(stub([SSE, chunk(PING), 0.05, "reset"]).url)
    reply = router.http.post(MESSAGES, json={**BODY, "stream": True})
    told = last_event(reply.content)
    assert (told["type"], told["error"]["type"]) == ("error", "api_error")
    assert told["request_id"] == reply.headers["x-request-id"]


def test_below_the_path_of_a_sagemaker_endpoint(door: Router) -> None:
    """Its `/openai/v1` has the surfaces of `/v1`; invocations have AWS's errors."""
    body = {**BODY, "model": "other"}
    path = "/endpoints/e/openai"
    assert of(door.http.post(path + MESSAGES, json=body)) == (404, "not_found_error")
    assert error_of(door.http.post(path + CHAT, json=body))["code"] == "model_not_found"
    for invoked in ("/endpoints/e/invocations", "/invocations"):
        reply = door.http.post(invoked, json=body)
        assert reply.headers["x-amzn-errortype"] == "ValidationError"


def test_other_apis(door: Router) -> None:
    """Cohere's and Ollama's errors; where vLLM answers in OpenAI's shape, so does the router."""
    body = {**BODY, "model": "other"}
    cohere = door.http.post("/cohere/v2/chat", json=body)
    assert cohere.json() == {
        "message": cohere.json()["message"],
        "id": cohere.headers["x-request-id"],
    }
    ollama = door.http.post("/api/chat", json=body)
    assert list(ollama.json()) == ["error"]
    assert "'other'" in ollama.json()["error"]
    for path in ("/v2/rerank", "/v2/embed", "/generate", "/inference/v1/generate"):
        assert error_of(door.http.post(path, json=body))["code"] == "model_not_found"


def test_a_stream_of_cohere_s_that_breaks(stub: MakeStub, route: MakeRouter) -> None:
    """It ends as vLLM ends it: with the message's end, whose reason is an error."""
    started = b'data: {"type":"message-start"}\n\n'
    router = route(stub([SSE, chunk(started), 0.05, "reset"]).url)
    data = router.http.post("/cohere/v2/chat", json={**BODY, "stream": True}).content
    ended = json.loads(data.removeprefix(started).removeprefix(b"data: "))
    assert (ended["type"], ended["delta"]["finish_reason"]) == ("message-end", "ERROR")
