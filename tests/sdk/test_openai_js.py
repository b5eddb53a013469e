"""The official JavaScript client: calls whole, streamed and raw; errors, retries, and leaving."""

import base64
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.sdk.conftest import MODEL, Stage
from tests.sdk.documents import (
    STREAM_HEAD,
    chunk,
    delta,
    document,
    event,
    response_events,
)
from tests.sdk.node import Node
from tests.support import MakeRouter, MakeStub, until

pytestmark = pytest.mark.timeout(300)  # the first run installs the client

CHAT = "chat.completions.create"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Wozu? ☕ \x00"}]}
STREAMED = {**ASKED, "stream": True}


class Case(NamedTuple):
    """A call that can be streamed, and how to get the text out of its results."""

    name: str
    body: dict[str, Any]
    text: Callable[[Any], str]
    piece: Callable[[Any], str]


CASES = [
    Case(
        CHAT,
        {**ASKED, "max_tokens": 9},
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda chunk: "".join(choice["delta"].get("content", "") for choice in chunk["choices"]),
    ),
    Case(
        "responses.create",
        {"model": MODEL, "input": "Hello?", "max_output_tokens": 16},
        lambda answer: answer["output_text"],
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_streamed_or_not_the_words_are_the_same(node: Node, stage: Stage, case: Case) -> None:
    """A simulated model always answers a prompt the same, also through the helpers."""
    url = stage.router.url
    whole = case.text(node.ask(url, case.name, case.body).result)
    streamed = node.ask(url, case.name, {**case.body, "stream": True}, how="events")
    assert streamed.error is None
    assert whole
    assert "".join(map(case.piece, streamed.seen)) == whole
    helped = node.ask(url, case.name.replace("create", "stream"), case.body, how="helper").result
    if case.name == CHAT:
        assert case.text(helped) == whole
    else:
        assert helped["output"][0]["content"][0]["text"] == whole
    stage.rest()


def test_raw_responses(node: Node, stage: Stage) -> None:
    """`withResponse` returns the headers with the data, `asResponse` the bytes."""
    case = CASES[1]
    for streams, kind in ((False, "application/json"), (True, "text/event-stream")):
        body = {**case.body, "stream": streams}
        raw = node.ask(stage.router.url, case.name, body, how="raw").result
        assert raw["headers"]["x-request-id"] == raw["request_id"]
        assert raw["headers"]["x-warmroute-worker"]
        assert raw["headers"]["content-type"].startswith(kind)
        data = base64.b64decode(
            node.ask(stage.router.url, case.name, body, how="bytes").result["body"]
        )
        if streams:
            assert all(part.startswith(b"event: ") for part in data.split(b"\n\n")[:-1])
        else:
            assert json.loads(data)["model"] == MODEL


CLASSES = {
    500: "InternalServerError",
    400: "BadRequestError",
    401: "AuthenticationError",
    503: "InternalServerError",
    404: "NotFoundError",
    413: "APIError",
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
            assert (told["classes"][0], told["status"]) == (expected, status)
            assert told["body"] == error
            assert told["headers"]["x-worker-says"] == "sorry"
            assert told["requestID"] == told["headers"]["x-request-id"]


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


def test_leaving(node: Node, stub: MakeStub, route: MakeRouter) -> None:
    """However the client leaves, before the first byte or in mid-stream, the worker's connection is
    closed."""
    worker = stub([STREAM_HEAD, chunk(event(delta("word"))), "stall"], MODEL)
    router = route(worker.url)
    for closed, how in enumerate(("first", "controller"), start=1):
        assert len(node.ask(router.url, CHAT, STREAMED, how=how).seen) == 1
        until(lambda clients=closed: worker.closed_by_peer == clients)  # type: ignore[misc]
    number = node.start(router.url, CHAT, STREAMED, how="events")
    node.event(number)
    node.abort(number)
    assert len(node.reply(number).seen) == 1
    until(lambda: worker.closed_by_peer == 3)
    worker.script = ["stall"]
    number = node.start(router.url, CHAT, ASKED)
    until(lambda: len(worker.requests) == 4)
    node.abort(number)
    assert node.reply(number).kind == "APIUserAbortError"
    until(lambda: worker.closed_by_peer == 4)
    timed_out = node.ask(router.url, CHAT, ASKED, request={"timeout": 500})
    assert timed_out.kind == "APIConnectionTimeoutError"
    until(lambda: worker.closed_by_peer == 5)
    until(router.idle)
