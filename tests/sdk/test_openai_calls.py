"""The calls of OpenAI's client, whole, streamed and raw, with a simulated fleet."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import openai
import pytest

from tests.sdk.clients import AsyncCaller, SyncCaller, options, wrapped
from tests.sdk.conftest import MODEL, Stage
from tests.support import until

HELLO: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
CHAT = "chat.completions.create"
ASKED: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 9}


class Case(NamedTuple):
    """A call that can be streamed, and how to get the text out of its results."""

    name: str
    arguments: dict[str, Any]
    text: Callable[[Any], str]
    piece: Callable[[Any], str]


CASES = [
    Case(
        CHAT,
        ASKED,
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
def test_streamed_or_not_the_words_are_the_same(caller: SyncCaller, case: Case) -> None:
    """A simulated model always answers a prompt the same, so nothing may be lost or doubled."""
    whole = case.text(caller.call(case.name, **case.arguments))
    raw, events = caller.raw_events(case.name, stream=True, **case.arguments)
    assert whole
    assert "".join(map(case.piece, events)) == whole
    assert len(events) > 3
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert raw.headers["x-warmroute-decision"]


@streamable
def test_raw_and_in_pieces(caller: SyncCaller, case: Case) -> None:
    """A raw response has the headers; read in pieces, it is one document, or complete events."""
    raw = caller.call(wrapped(case.name, "with_raw_response"), **case.arguments)
    assert raw.headers["x-request-id"] == raw.request_id
    assert raw.headers["x-warmroute-worker"]
    assert raw.parse().to_dict() == json.loads(raw.content)
    whole = caller.whole(case.name, **case.arguments)
    assert int(whole.headers["content-length"]) == len(whole.body)
    assert json.loads(whole.body)["model"] == MODEL
    streamed = caller.whole(case.name, stream=True, **case.arguments)
    assert "content-length" not in streamed.headers
    events = streamed.body.decode().split("\n\n")
    assert events.pop() == ""
    assert all(line.startswith(("data: ", "event: ")) for e in events for line in e.split("\n"))
    assert events[-1] == "data: [DONE]" or "response.completed" in events[-1]


def test_embeddings(caller: SyncCaller) -> None:
    """As base64, which is the client's default, and as floats."""
    name, asked = "embeddings.create", {"model": MODEL, "input": ["a", "b"]}
    packed = caller.call(name, **asked)
    plain = caller.call(name, **asked, encoding_format="float")
    for one, two in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(two.embedding, abs=1e-6)
    assert packed.data[0].embedding != packed.data[1].embedding


def test_models(caller: SyncCaller) -> None:
    """The fleet's model is listed once; an unknown one is a NotFoundError."""
    (model,) = caller.events("models.list")
    assert model.id == MODEL
    assert caller.call("models.retrieve", model=MODEL) == model
    with pytest.raises(openai.NotFoundError, match="'gpt-none' does not exist"):
        caller.call("models.retrieve", model="gpt-none")


def test_transcription(caller: SyncCaller) -> None:
    """An upload whose form has a model field is routed and transcribed."""
    file = ("speech.wav", bytes(range(256)) * 400)
    assert caller.call("audio.transcriptions.create", model=MODEL, file=file).text


UNSERVED: list[tuple[str, dict[str, Any], type[openai.APIStatusError]]] = [
    ("images.generate", {"prompt": "a cat"}, openai.NotFoundError),
    ("chat.completions.list", {}, openai.APIStatusError),
    ("models.delete", {"model": "x"}, openai.APIStatusError),
]


@pytest.mark.parametrize(("name", "arguments", "error"), UNSERVED)
def test_calls_that_no_worker_serves(
    caller: SyncCaller, name: str, arguments: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    """They raise the client's own error with a message, not an HTML page."""
    with pytest.raises(error) as caught:
        caller.events(name, **arguments)
    assert caught.value.status_code in (404, 405)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


def test_a_body_that_only_the_worker_can_check(caller: SyncCaller) -> None:
    """It comes back as the worker's own BadRequestError."""
    with pytest.raises(openai.BadRequestError) as caught:
        caller.call(CHAT, model=MODEL, messages=[])
    assert "x-warmroute-worker" in caught.value.response.headers


def test_the_second_turn_finds_the_first_in_the_cache(stage: Stage, caller: SyncCaller) -> None:
    """Each later turn goes to the first turn's worker and hits its cache."""
    for number in range(4):
        said = f"Number {number} of {type(caller)}. " + "All the king's horses. " * 150
        talk = [{"role": "system", "content": said}, *HELLO]
        workers = set()
        for turn in range(3):
            raw = caller.call(
                wrapped(CHAT, "with_raw_response"), model=MODEL, messages=talk, max_tokens=20
            )
            answer = raw.parse()
            details = answer.usage.prompt_tokens_details
            cached = (details.cached_tokens if details else 0) or 0
            assert (cached > answer.usage.prompt_tokens / 2) is (turn > 0)
            workers.add(raw.headers["x-warmroute-worker"])
            talk.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
            talk.append({"role": "user", "content": "And then?"})
        assert len(workers) == 1


def test_many_at_once_over_one_client(stage: Stage) -> None:
    """Twenty chats of the asynchronous client, streamed or not, and its connections are kept."""
    seen: list[Any] = []

    async def main(caller: AsyncCaller) -> None:
        asked = {**ASKED, "stream": True}
        whole = [caller.made(CHAT, **ASKED) for _ in range(10)]
        streamed = [caller.read(CHAT, seen.append, **asked) for _ in range(10)]
        answers = await asyncio.gather(*whole, *streamed)
        assert all(answer.choices[0].message.content for answer in answers[:10])

    with AsyncCaller(stage.router.url) as caller:
        caller.runner.run(main(caller))
        addresses = set()
        caller.hook("response", lambda reply: addresses.add(address_of(reply)))
        for _ in range(4):
            caller.events(CHAT, stream=True, **ASKED)
        assert len(addresses) == 1
    assert len(seen) > 10
    stage.rest()


def address_of(reply: Any) -> Any:
    """Return the client's end of the connection that a response came on."""
    return reply.extensions["network_stream"].get_extra_info("client_addr")


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_task_stops_the_engine(stage: Stage, stream: bool) -> None:
    """Cancelling the client's tasks frees every engine that they kept busy."""
    endless: dict[str, Any] = {"max_tokens": 15_000, "extra_body": {"ignore_eos": True}}

    async def ask(client: openai.AsyncOpenAI) -> None:
        answer: Any = await client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=stream, **endless
        )
        async for _ in answer:
            pass

    async def main() -> None:
        async with openai.AsyncOpenAI(**options(stage.router.url)) as client:
            tasks = [asyncio.create_task(ask(client)) for _ in range(6)]
            await asyncio.to_thread(until, lambda: stage.busy == 6)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)

    asyncio.run(main())
    stage.rest()
