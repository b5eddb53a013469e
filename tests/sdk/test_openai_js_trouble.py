"""The official JavaScript client when things fail: error classes, retries, timeouts."""

from typing import Any

import pytest

from tests.sdk.conftest import MODEL
from tests.sdk.documents import (
    DONE,
    STREAM_HEAD,
    chunk,
    delta,
    document,
    event,
    message,
    response_events,
    stream,
)
from tests.sdk.node import Node
from tests.support import MakeRouter, MakeStub, Stub, until

pytestmark = pytest.mark.timeout(300)  # the first run installs the client

CHAT = "chat.completions.create"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Wozu? ☕ \x00"}]}
STREAMED = {**ASKED, "stream": True}
SOON = b"retry-after-ms: 1"
REFUSAL = {"error": {"message": "later", "type": "E", "param": None, "code": None}}

CLASSES = {
    500: "InternalServerError",
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    503: "InternalServerError",
    404: "NotFoundError",
    409: "ConflictError",
    413: "APIError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}


def test_a_workers_error_is_told_as_it_is(node: Node, stub: MakeStub, route: MakeRouter) -> None:
    """Class, status, message, type, param, code, headers and body are the worker's own."""
    worker = stub(model=MODEL)
    router = route(worker.url, limits={"queue": 0})  # it is told of every refusal
    for status, expected in CLASSES.items():
        error = {"message": f"no {status}", "type": "E", "param": "messages", "code": status}
        worker.script = document({"error": error}, status, b"x-worker-says: sorry")
        for body in (ASKED, STREAMED):
            told = node.ask(router.url, CHAT, body).raised
            assert told["classes"][0] == expected
            assert told["status"] == status
            assert told["body"] == error
            assert (told["type"], told["param"], told["code"]) == ("E", "messages", status)
            assert told["headers"]["x-worker-says"] == "sorry"
            assert told["requestID"] == told["headers"]["x-request-id"]


def test_the_routers_own_errors(
    node: Node, stub: MakeStub, route: MakeRouter, dead_url: str
) -> None:
    """An unknown model, a body that cannot be read or is too large, no worker, and no router."""
    router = route(stub(model=MODEL).url, limits={"body": "64KiB"})
    told = node.ask(router.url, CHAT, {**ASKED, "model": "gpt-none"}).raised
    assert (told["classes"][0], told["code"]) == ("NotFoundError", "model_not_found")
    told = node.ask(router.url, CHAT, {**ASKED, "model": 5}).raised
    assert (told["classes"][0], told["param"]) == ("BadRequestError", "model")
    told = node.ask(router.url, CHAT, {**ASKED, "user": "x" * 500_000}).raised
    assert (told["classes"][0], told["status"]) == ("APIError", 413)
    told = node.ask(route(dead_url).url, CHAT, ASKED).raised
    assert (told["classes"][0], told["code"]) == ("InternalServerError", "no_worker")
    assert node.ask(dead_url, CHAT, ASKED).kind == "APIConnectionError"


def test_a_worker_that_fails(node: Node, stub: MakeStub, route: MakeRouter) -> None:
    """Before its answer it is a 502; in mid-stream an APIError after the text that came."""
    worker = stub(["close"], MODEL)
    router = route(worker.url)
    told = node.ask(router.url, CHAT, ASKED).raised
    assert (told["classes"][0], told["status"]) == ("InternalServerError", 502)
    worker.script = [STREAM_HEAD, chunk(event(delta("word"))), "close"]
    reply = node.ask(router.url, CHAT, STREAMED, how="events")
    assert [e["choices"][0]["delta"]["content"] for e in reply.seen] == ["word"]
    assert (reply.kind, reply.raised["code"]) == ("APIError", "worker_failed")
    worker.script = [STREAM_HEAD, *map(chunk, response_events("some ", "words")[:5]), "close"]
    asked = {"model": MODEL, "input": "x", "stream": True}
    reply = node.ask(router.url, "responses.create", asked, how="events")
    assert reply.seen[-1]["type"] == "response.output_text.delta"
    assert (reply.kind, reply.raised["code"]) == ("APIError", "worker_failed")


def test_what_is_tried_again(node: Node, stub: MakeStub, route: MakeRouter) -> None:
    """The client sends the same request twice, then gives up."""
    worker = stub(model=MODEL)
    router = route(worker.url, limits={"queue": 0})
    for status in (500, 408, 502, 409, 503, 429, 504):
        worker.requests.clear()
        worker.script = document(REFUSAL, status, SOON)
        reply = node.ask(router.url, CHAT, ASKED, options={"maxRetries": 1})
        assert reply.raised["status"] == status
        assert reply.sent == reply.sent[:1] * 2
        assert [count(request) for request in worker.requests] == [b"0", b"1"]


def count(request: bytes) -> bytes:
    """Return the retry count in a request's header."""
    return request.lower().partition(b"x-stainless-retry-count: ")[2][:1]


def closes(worker: Stub, clients: int) -> None:
    """Wait until so many connections to the worker have been closed."""
    until(lambda: worker.closed_by_peer == clients)


def test_timeouts(node: Node, stub: MakeStub, route: MakeRouter) -> None:
    """The client raises APIConnectionTimeoutError, and the worker's connection is closed each
    time."""
    worker = stub(["stall"], MODEL)
    router = route(worker.url)
    brief = {"timeout": 500}
    for closed, body in enumerate((ASKED, STREAMED), start=1):
        assert node.ask(router.url, CHAT, body, request=brief).kind == "APIConnectionTimeoutError"
        closes(worker, closed)
    again = node.ask(router.url, CHAT, ASKED, request={**brief, "maxRetries": 1})
    assert again.kind == "APIConnectionTimeoutError"
    closes(worker, 4)
    until(router.idle)


def test_leaving(node: Node, stub: MakeStub, route: MakeRouter) -> None:
    """However the client leaves, before the first byte or in mid-stream, the worker's connection is
    closed."""
    worker = stub([STREAM_HEAD, chunk(event(delta("word"))), "stall"], MODEL)
    router = route(worker.url)
    for closed, how in enumerate(("first", "controller"), start=1):
        assert len(node.ask(router.url, CHAT, STREAMED, how=how).seen) == 1
        closes(worker, closed)
    number = node.start(router.url, CHAT, STREAMED, how="events")
    node.event(number)
    node.abort(number)
    assert len(node.reply(number).seen) == 1
    closes(worker, 3)
    worker.script = ["stall"]
    number = node.start(router.url, CHAT, ASKED)
    until(lambda: len(worker.requests) == 4)
    node.abort(number)
    assert node.reply(number).kind == "APIUserAbortError"
    closes(worker, 4)
    until(router.idle)


def test_parse(node: Node, stub: MakeStub, route: MakeRouter) -> None:
    """A schema reaches the worker; its answer, whole or streamed, becomes an object."""
    schema = {"name": "Meeting", "schema": {"type": "object"}}
    asked = {**ASKED, "response_format": {"type": "json_schema", "json_schema": schema}}
    worker = stub(document(message('{"title": "Kaffee ☕"}')), MODEL)
    router = route(worker.url)
    reply = node.ask(router.url, "chat.completions.parse", asked)
    assert reply.result["choices"][0]["message"]["parsed"] == {"title": "Kaffee ☕"}
    deltas = [delta('{"tit', role="assistant"), delta('le": "Tee"}')]
    worker.script = stream(*map(event, deltas), event(delta(finish="stop")), DONE)
    reply = node.ask(router.url, "chat.completions.stream", asked, how="helper")
    assert reply.error is None
    assert reply.result["choices"][0]["message"]["parsed"] == {"title": "Tee"}
