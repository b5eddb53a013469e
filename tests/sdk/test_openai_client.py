"""The official client through the router, with simulated workers."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.sdk.conftest import MODEL, Stage
from tests.support import until

HELLO: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
#: For answers that would take a toy worker many seconds.
ENDLESS: dict[str, Any] = {"max_tokens": 15_000, "extra_body": {"ignore_eos": True}}
_fresh = itertools.count()


def long_prompt() -> str:
    """Return a prompt of several thousand bytes that no test has sent before."""
    return f"Number {next(_fresh)}. " + "All the king's horses and all the king's men. " * 100


@asynccontextmanager
async def async_client(stage: Stage) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous client."""
    async with openai.AsyncOpenAI(
        base_url=f"{stage.router.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


def test_chat(stage: Stage) -> None:
    """A plain chat is answered with a message and its usage."""
    answer = stage.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=8)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0
    assert 0 < answer.usage.completion_tokens <= 8
    stage.rest()


def test_chat_stream_with_usage(stage: Stage) -> None:
    """With include_usage, the last chunk has the usage and no choices."""
    stream = stage.client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    last = list(stream)[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8


PROMPTS: list[Any] = ["Once upon a time", ["First text", "Second text"], [101, 102, 103, 104]]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "texts", "ids"])
def test_completions(stage: Stage, prompt: Any) -> None:
    """A text, a list of texts, or token ids; each text gets its own choice."""
    answer = stage.client.completions.create(model=MODEL, prompt=prompt, max_tokens=4)
    wanted = 2 if prompt == PROMPTS[1] else 1
    assert [choice.index for choice in answer.choices] == list(range(wanted))
    assert all(choice.text for choice in answer.choices)
    assert answer.usage is not None
    if prompt == PROMPTS[2]:
        assert answer.usage.prompt_tokens == 4


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "texts", "ids"])
def test_completions_stream(stage: Stage, prompt: Any) -> None:
    """The same, streamed: every choice gets text and an end."""
    stream = stage.client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=4, stream=True, extra_body={"ignore_eos": True}
    )
    choices = [choice for chunk in stream for choice in chunk.choices]
    wanted = {0, 1} if prompt == PROMPTS[1] else {0}
    assert {choice.index for choice in choices if choice.text} == wanted
    ends: list[Any] = [(choice.index, choice.finish_reason) for choice in choices]
    assert {index for index, reason in ends if reason} == wanted


def test_embeddings(stage: Stage) -> None:
    """The client's default (base64) and floats give the same vectors."""
    packed = stage.client.embeddings.create(model=MODEL, input=["a", "b"])
    plain = stage.client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    assert len(packed.data) == 2
    assert len(packed.data[0].embedding) > 1
    for ours, theirs in zip(packed.data, plain.data, strict=True):
        assert ours.embedding == pytest.approx(theirs.embedding, abs=1e-6)
    assert packed.data[0].embedding != packed.data[1].embedding


def test_models(stage: Stage) -> None:
    """The fleet's model is listed once, however many workers serve it."""
    assert [model.id for model in stage.client.models.list()] == [MODEL]


def test_responses(stage: Stage) -> None:
    """The Responses API answers, streamed and not."""
    answer = stage.client.responses.create(model=MODEL, input="Hello?", max_output_tokens=16)
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.input_tokens > 0
    stream = stage.client.responses.create(
        model=MODEL, input="Hello?", max_output_tokens=16, stream=True
    )
    kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds


def test_transcription(stage: Stage) -> None:
    """An upload whose form has a model field is routed and transcribed."""
    answer = stage.client.audio.transcriptions.create(
        model=MODEL, file=("speech.wav", bytes(range(256)) * 400)
    )
    assert answer.text


def test_unknown_model(stage: Stage) -> None:
    """A model that no worker serves is a NotFoundError with field and code."""
    with pytest.raises(openai.NotFoundError) as caught:
        stage.client.chat.completions.create(model="gpt-none", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "gpt-none" in str(caught.value)
    assert caught.value.request_id


def test_bad_body_is_refused_by_the_router(stage: Stage) -> None:
    """A body the router cannot read is a BadRequestError, counted as refused."""
    before = stage.router.metric("warmroute_refused_requests_total", status="400")
    with pytest.raises(openai.BadRequestError) as caught:
        stage.client.chat.completions.create(model=5, messages=HELLO)  # type: ignore[call-overload]
    assert caught.value.param == "model"
    after = stage.router.metric("warmroute_refused_requests_total", status="400")
    assert after == before + 1


def test_bad_body_is_refused_by_the_worker(stage: Stage) -> None:
    """What only the worker can check comes back as its own BadRequestError."""
    with pytest.raises(openai.BadRequestError) as caught:
        stage.client.chat.completions.create(model=MODEL, messages=[])
    assert "x-warmroute-worker" in caught.value.response.headers


def test_the_second_turn_finds_the_first_in_the_cache(stage: Stage) -> None:
    """Each later turn goes to the first turn's worker and hits its cache."""
    for _ in range(4):
        talk = [{"role": "system", "content": long_prompt()}, *HELLO]
        workers = set()
        for turn in range(3):
            raw = stage.client.chat.completions.with_raw_response.create(
                model=MODEL, messages=talk, max_tokens=20
            )
            answer = raw.parse()
            assert answer.usage is not None
            details = answer.usage.prompt_tokens_details
            cached = (details.cached_tokens if details else 0) or 0
            assert (cached > answer.usage.prompt_tokens / 2) is (turn > 0)
            workers.add(raw.headers["x-warmroute-worker"])
            talk = [
                *talk,
                {"role": "assistant", "content": answer.choices[0].message.content or ""},
                {"role": "user", "content": "And then?"},
            ]
        assert len(workers) == 1


def test_raw_headers(stage: Stage) -> None:
    """The raw response has the router's headers, and the client's request id if it sent one."""
    raw = stage.client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=2, extra_headers={"x-request-id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    names = {worker.name for worker in stage.router.door.fleet.workers}
    assert raw.headers["x-warmroute-worker"] in names
    assert "; held=" in raw.headers["x-warmroute-decision"]
    answer = stage.client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
    assert answer._request_id


def test_async_client(stage: Stage) -> None:
    """Twenty chats at once, streamed or not; embeddings, models and completions."""

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        messages: list[Any] = [{"role": "user", "content": f"{number}"}]
        if number % 2:
            answer = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=5
            )
            return answer.choices[0].message.content or ""
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=5, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> None:
        async with async_client(stage) as client:
            assert all(await asyncio.gather(*(one(client, number) for number in range(20))))
            embedded = await client.embeddings.create(model=MODEL, input="x")
            assert embedded.data[0].embedding
            assert [model.id async for model in client.models.list()] == [MODEL]
            completed = await client.completions.create(model=MODEL, prompt="x", max_tokens=3)
            assert completed.choices[0].text
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="none", messages=HELLO)

    asyncio.run(main())
    stage.rest()


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_task_stops_the_engine(stage: Stage, stream: bool) -> None:
    """Cancelling the client's tasks frees every engine that they kept busy."""

    async def ask(client: openai.AsyncOpenAI) -> None:
        answer: Any = await client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=stream, **ENDLESS
        )
        if stream:
            async for _ in answer:
                pass

    async def main() -> None:
        async with async_client(stage) as client:
            tasks = [asyncio.create_task(ask(client)) for _ in range(6)]
            await asyncio.to_thread(until, lambda: stage.busy == 6)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)

    asyncio.run(main())
    stage.rest()
