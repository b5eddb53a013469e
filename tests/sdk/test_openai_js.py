"""The official JavaScript client with a simulated fleet: every call, whole, streamed and raw."""

import base64
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.sdk.conftest import MODEL, Stage
from tests.sdk.node import Node

pytestmark = pytest.mark.timeout(300)  # the first run installs the client

#: For answers that would take a toy worker many seconds.
ENDLESS = {"max_tokens": 15_000, "ignore_eos": True}


class Case(NamedTuple):
    """A call that can be streamed, and how to get the text out of its results."""

    name: str
    body: dict[str, Any]
    text: Callable[[Any], str]
    piece: Callable[[Any], str]


CASES = [
    Case(
        "chat.completions.create",
        {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 9},
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda chunk: "".join(choice["delta"].get("content", "") for choice in chunk["choices"]),
    ),
    Case(
        "completions.create",
        {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 9},
        lambda answer: answer["choices"][0]["text"],
        lambda chunk: "".join(choice["text"] for choice in chunk["choices"]),
    ),
    Case(
        "responses.create",
        {"model": MODEL, "input": "Hello?", "max_output_tokens": 16},
        lambda answer: answer["output_text"],
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
]

streamable = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@streamable
def test_streamed_or_not_the_words_are_the_same(node: Node, stage: Stage, case: Case) -> None:
    """A simulated model always answers a prompt the same, so nothing may be lost or doubled."""
    whole = node.ask(stage.router.url, case.name, case.body)
    streamed = node.ask(stage.router.url, case.name, {**case.body, "stream": True}, how="events")
    assert streamed.error is None
    assert case.text(whole.result)
    assert "".join(map(case.piece, streamed.seen)) == case.text(whole.result)
    stage.rest()


def test_with_response(node: Node, stage: Stage) -> None:
    """`withResponse` returns the headers with the data, streamed or not."""
    case = CASES[0]
    for stream in (False, True):
        body = {**case.body, "stream": stream}
        raw = node.ask(stage.router.url, case.name, body, how="raw").result
        assert raw["status"] == 200
        assert raw["headers"]["x-request-id"] == raw["request_id"]
        assert raw["headers"]["x-warmroute-worker"]
        assert raw["headers"]["content-type"].startswith(
            "text/event-stream" if stream else "application/json"
        )


def test_as_response(node: Node, stage: Stage) -> None:
    """`asResponse` returns the bytes: one document, or complete events."""
    case = CASES[2]
    raw = node.ask(stage.router.url, case.name, case.body, how="bytes").result
    body = base64.b64decode(raw["body"])
    assert int(raw["headers"]["content-length"]) == len(body)
    assert json.loads(body)["model"] == MODEL
    raw = node.ask(stage.router.url, case.name, {**case.body, "stream": True}, how="bytes").result
    events = base64.b64decode(raw["body"]).decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith(("data: ", "event: ")) for event in events)


def test_the_stream_helpers(node: Node, stage: Stage) -> None:
    """They build up the same answer as the plain call returns."""
    chat, responses = CASES[0], CASES[2]
    whole = chat.text(node.ask(stage.router.url, chat.name, chat.body).result)
    helped = node.ask(stage.router.url, "chat.completions.stream", chat.body, how="helper")
    assert helped.result["choices"][0]["message"]["content"] == whole
    whole = responses.text(node.ask(stage.router.url, responses.name, responses.body).result)
    helped = node.ask(stage.router.url, "responses.stream", responses.body, how="helper")
    assert helped.result["output"][0]["content"][0]["text"] == whole
    assert helped.seen[-1]["type"] == "response.completed"


def test_embeddings(node: Node, stage: Stage) -> None:
    """As base64, which is the client's default, and as floats."""
    body = {"model": MODEL, "input": ["a", "b"]}
    packed = node.ask(stage.router.url, "embeddings.create", body)
    plain = node.ask(stage.router.url, "embeddings.create", {**body, "encoding_format": "float"})
    assert json.loads(packed.sent[0] or "")["encoding_format"] == "base64"
    for one, two in zip(packed.result["data"], plain.result["data"], strict=True):
        assert one["embedding"] == pytest.approx(two["embedding"], abs=1e-6)


def test_models(node: Node, stage: Stage) -> None:
    """As pages; an unknown model is a NotFoundError."""
    listed = node.ask(stage.router.url, "models.list", how="pages")
    assert [model["id"] for model in listed.seen] == [MODEL]
    assert node.ask(stage.router.url, "models.retrieve", MODEL).result == listed.seen[0]
    assert node.ask(stage.router.url, "models.retrieve", "gpt-none").kind == "NotFoundError"


def test_leaving_a_stream(node: Node, stage: Stage) -> None:
    """`break`, the stream's controller and the caller's signal all stop the engine."""
    body = {**CASES[0].body, **ENDLESS, "stream": True}
    for how in ("first", "controller"):
        left = node.ask(stage.router.url, CASES[0].name, body, how=how)
        assert left.error is None
        assert len(left.seen) >= 1
        stage.rest()
    number = node.start(stage.router.url, CASES[0].name, body, how="events")
    node.event(number)
    assert stage.busy == 1
    node.abort(number)
    node.reply(number)
    stage.rest()
