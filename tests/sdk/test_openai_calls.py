"""Every call of the official client, in every form, with a simulated fleet."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import openai
import pytest

from tests.sdk.clients import AsyncCaller, Caller, wrapped
from tests.sdk.conftest import MODEL, Stage


class Case(NamedTuple):
    """A call that can be streamed, and how to get the text out of its results."""

    name: str
    arguments: dict[str, Any]
    text: Callable[[Any], str]
    piece: Callable[[Any], str]


CASES = [
    Case(
        "chat.completions.create",
        {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 9},
        lambda answer: answer.choices[0].message.content,
        lambda chunk: "".join(choice.delta.content or "" for choice in chunk.choices),
    ),
    Case(
        "completions.create",
        {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 9},
        lambda answer: answer.choices[0].text,
        lambda chunk: "".join(choice.text for choice in chunk.choices),
    ),
    Case(
        "responses.create",
        {"model": MODEL, "input": "Hello?", "max_output_tokens": 16},
        lambda answer: answer.output_text,
        lambda event: event.delta if event.type == "response.output_text.delta" else "",
    ),
]

streamable = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@streamable
def test_streamed_or_not_the_words_are_the_same(caller: Caller, case: Case) -> None:
    """A simulated model always answers a prompt the same, so nothing may be lost or doubled."""
    whole = case.text(caller.call(case.name, **case.arguments))
    events = caller.events(case.name, stream=True, **case.arguments)
    assert whole
    assert "".join(map(case.piece, events)) == whole
    assert len(events) > 3


@streamable
def test_with_raw_response(caller: Caller, case: Case) -> None:
    """The raw response has the headers, and parses to the content of its body."""
    raw = caller.call(wrapped(case.name, "with_raw_response"), **case.arguments)
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"] == raw.request_id
    assert raw.headers["x-warmroute-worker"]
    assert raw.retries_taken == 0
    assert raw.parse().to_dict() == json.loads(raw.content)
    assert raw.parse()._request_id == raw.request_id


@streamable
def test_with_raw_response_streamed(caller: Caller, case: Case) -> None:
    """The headers of a stream are there before its first event."""
    raw, events = caller.raw_events(case.name, stream=True, **case.arguments)
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert raw.headers["x-warmroute-decision"]
    assert "".join(map(case.piece, events))


@streamable
def test_with_streaming_response(caller: Caller, case: Case) -> None:
    """Read in pieces and undecoded, the response is one JSON document of the declared length."""
    whole = caller.whole(case.name, **case.arguments)
    assert whole.status == 200
    assert int(whole.headers["content-length"]) == len(whole.body)
    assert json.loads(whole.body)["model"] == MODEL


@streamable
def test_with_streaming_response_streamed(caller: Caller, case: Case) -> None:
    """The same for a stream: complete events, the last of which is the end."""
    whole = caller.whole(case.name, stream=True, **case.arguments)
    assert "content-length" not in whole.headers
    events = whole.body.decode().split("\n\n")
    assert events.pop() == ""
    assert all(line.startswith(("data: ", "event: ")) for e in events for line in e.split("\n"))
    assert events[-1] == "data: [DONE]" or "response.completed" in events[-1]


@streamable
def test_usage_of_a_stream(caller: Caller, case: Case) -> None:
    """The last event has the usage; for completions and chats only on request."""
    asked = {"stream_options": {"include_usage": True}}
    more = {} if case.name.startswith("responses") else asked
    last = caller.events(case.name, stream=True, **case.arguments, **more)[-1]
    usage = last.usage if more else last.response.usage
    assert usage.total_tokens > (usage.completion_tokens if more else usage.output_tokens) > 0


def test_many_choices(caller: Caller) -> None:
    """`n` answers are distinguished by their index, whole and streamed."""
    chat: dict[str, Any] = {**CASES[0].arguments, "n": 3}
    answer = caller.call(CASES[0].name, **chat)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    events = caller.events(CASES[0].name, stream=True, **chat)
    for choice in answer.choices:
        pieces = [
            c.delta.content or "" for e in events for c in e.choices if c.index == choice.index
        ]
        assert "".join(pieces) == choice.message.content


def test_embeddings(caller: Caller) -> None:
    """As base64, which is the client's default, as floats, and raw."""
    name, asked = "embeddings.create", {"model": MODEL, "input": ["a", "b"]}
    packed = caller.call(name, **asked)
    plain = caller.call(name, **asked, encoding_format="float")
    raw = caller.call("embeddings.with_raw_response.create", **asked).parse()
    for one, two, three in zip(packed.data, plain.data, raw.data, strict=True):
        assert one.embedding == pytest.approx(two.embedding, abs=1e-6)
        assert one.embedding == three.embedding
    whole = caller.whole(name, **asked)
    assert json.loads(whole.body)["usage"]["prompt_tokens"] == packed.usage.prompt_tokens


def test_models(stage: Stage, caller: Caller) -> None:
    """As pages, raw, and as bytes; an unknown model is a NotFoundError."""
    assert [model.id for model in caller.events("models.list")] == [MODEL]
    raw = caller.call("models.with_raw_response.list")
    assert [model.id for model in raw.parse().data] == [MODEL]
    assert json.loads(caller.whole("models.list").body)["object"] == "list"
    assert caller.call("models.retrieve", model=MODEL) == caller.events("models.list")[0]
    with pytest.raises(openai.NotFoundError, match="'gpt-none' does not exist"):
        caller.call("models.retrieve", model="gpt-none")


UNSERVED: list[tuple[str, dict[str, Any], type[openai.APIStatusError]]] = [
    ("images.generate", {"prompt": "a cat"}, openai.NotFoundError),
    ("files.list", {}, openai.NotFoundError),
    ("moderations.create", {"input": "x"}, openai.NotFoundError),
    ("chat.completions.delete", {"completion_id": "x"}, openai.NotFoundError),
    ("chat.completions.list", {}, openai.APIStatusError),
    ("chat.completions.retrieve", {"completion_id": "x"}, openai.NotFoundError),
    ("chat.completions.update", {"completion_id": "x", "metadata": {}}, openai.NotFoundError),
    ("chat.completions.messages.list", {"completion_id": "x"}, openai.NotFoundError),
    ("responses.retrieve", {"response_id": "x"}, openai.NotFoundError),
    ("responses.cancel", {"response_id": "x"}, openai.NotFoundError),
    ("responses.delete", {"response_id": "x"}, openai.NotFoundError),
    ("responses.input_items.list", {"response_id": "x"}, openai.NotFoundError),
    ("responses.input_tokens.count", {"input": "x"}, openai.NotFoundError),
    ("responses.compact", {"model": MODEL, "input": "x"}, openai.NotFoundError),
    ("models.delete", {"model": "x"}, openai.APIStatusError),
]


@pytest.mark.parametrize(
    ("name", "arguments", "error"), UNSERVED, ids=lambda value: str(value)[:20]
)
def test_calls_that_no_worker_serves(
    caller: Caller, name: str, arguments: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    """They raise the client's own error with a message, not an HTML page."""
    with pytest.raises(error) as caught:
        caller.events(name, **arguments)
    assert caught.value.status_code in (404, 405)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


def test_the_async_client_keeps_its_connection(stage: Stage) -> None:
    """A stream read to its end leaves the connection open for the next request."""
    name, arguments, *_ = CASES[0]
    with AsyncCaller(stage.router.url) as caller:
        for _ in range(4):
            caller.events(name, stream=True, **arguments)
        (connection,) = caller.client._client._transport._pool.connections
        assert connection.info().endswith("Request Count: 4")
