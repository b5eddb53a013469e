"""Clients that leave, in every way the official one can: the worker's connection is closed."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.sdk.clients import AsyncCaller
from tests.sdk.conftest import MODEL, MakeScripted, Scripted
from tests.sdk.documents import (
    DONE,
    STREAM_END,
    STREAM_HEAD,
    chunk,
    delta,
    event,
    message,
    response_events,
)
from tests.support import Action, MakeRouter, MakeStub, post, until

CHAT = "chat.completions.create"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]}
STREAMED: dict[str, Any] = {**ASKED, "stream": True}
WORD = chunk(event(delta("word")))
#: Read timeout; by then the worker must have received the request.
BRIEF = openai.Timeout(20, read=0.5)
BEGUN: list[Action] = [STREAM_HEAD, WORD, "stall"]
SILENT: list[Action] = ["stall"]


def told(scene: Scripted, clients: int = 1) -> None:
    """Check that the worker saw so many connections close, and nothing is booked on it any more."""
    until(lambda: scene.worker.closed_by_peer == clients)
    until(scene.router.idle)
    worker = scene.router.worker().name
    name, labels = "warmroute_requests_total", {"pool": "default", "worker": worker}
    until(lambda: scene.router.metric(name, **labels, status="499") == clients)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_timeout_before_the_first_byte(scripted: MakeScripted, streamed: bool) -> None:
    """The client raises APITimeoutError, and the worker's connection is closed."""
    scene = scripted(SILENT, timeout=BRIEF)
    with pytest.raises(openai.APITimeoutError):
        scene.caller.call(CHAT, stream=streamed, **ASKED)
    told(scene)


def test_a_timeout_in_mid_stream(scripted: MakeScripted) -> None:
    """The text that came is delivered before the error."""
    scene = scripted(BEGUN, timeout=BRIEF)
    seen: list[Any] = []
    with pytest.raises(openai.APITimeoutError):
        scene.caller.each(CHAT, seen.append, **STREAMED)
    assert [e.choices[0].delta.content for e in seen] == ["word"]
    told(scene)


@pytest.mark.long
def test_a_timeout_is_tried_again(scripted: MakeScripted) -> None:
    """The client retries once by itself; both requests are stopped."""
    scene = scripted(SILENT, timeout=BRIEF, max_retries=1)
    with pytest.raises(openai.APITimeoutError):
        scene.caller.call(CHAT, **ASKED)
    told(scene, clients=2)


@pytest.mark.parametrize("name", [CHAT, "chat.completions.stream"])
def test_breaking_out_of_a_stream(scripted: MakeScripted, name: str) -> None:
    """The stream, the helper's too, is closed after its first event, by leaving `with`."""
    scene = scripted(BEGUN)
    seen: list[Any] = []

    def use(found: Any) -> None:
        seen.append(found)
        raise LookupError

    with pytest.raises(LookupError):
        scene.caller.each(name, use, **(STREAMED if name == CHAT else ASKED))
    assert len(seen) == 1
    told(scene)


def test_closing_the_client(scripted: MakeScripted) -> None:
    """Closing a client closes its open streams."""
    scene = scripted(BEGUN)
    stream = scene.caller.call(CHAT, **STREAMED)
    assert stream.response.status_code == 200
    scene.caller.call("close")
    told(scene)


def test_the_end_that_clients_do_not_wait_for(scripted: MakeScripted) -> None:
    """Clients close at `[DONE]`, before the HTTP body ends; that does not count as an abort."""
    usage = event({**delta(finish="stop"), "usage": message("")["usage"]})
    scene = scripted([STREAM_HEAD, WORD, chunk(usage), chunk(DONE), "stall"])
    events = scene.caller.events(CHAT, **STREAMED)
    assert events[-1].usage.prompt_tokens == 21
    answered(scene, tokens=21)


def test_the_end_of_a_response(scripted: MakeScripted) -> None:
    """The same for the Responses API, whose last event repeats the whole answer."""
    *events, last = response_events("a" * 100_000)
    pieces = [chunk(piece) for piece in (*events, last[:-100], last[-100:])]
    scene = scripted([STREAM_HEAD, *pieces, "stall"])

    def use(found: Any) -> None:
        if found.type == "response.completed":
            raise LookupError

    with pytest.raises(LookupError):
        scene.caller.each("responses.create", use, model=MODEL, input="Why?", stream=True)
    answered(scene, tokens=9)


def test_within_the_end_of_a_response(stub: MakeStub, route: MakeRouter) -> None:
    """Whoever leaves in the middle of that event has left."""
    *_, last = response_events("a" * 100_000)
    worker = stub([STREAM_HEAD, chunk(last[:90_000]), "stall"], MODEL)
    router = route(worker.url)
    asked = {"model": MODEL, "input": "Why?", "stream": True}
    with post(router.port, "/v1/responses", json.dumps(asked).encode()) as client:
        seen = 0
        while seen < 85_000:
            seen += len(client.recv(1 << 16))
    labels = {"pool": "default", "worker": router.worker().name, "status": "499"}
    until(lambda: router.metric("warmroute_requests_total", **labels) == 1)


def answered(scene: Scripted, tokens: int) -> None:
    """Check that one request counts as answered, with so many tokens of its prompt."""
    until(scene.router.idle)
    metric, worker = scene.router.metric, scene.router.worker().name
    labels = {"pool": "default", "worker": worker}
    assert metric("warmroute_requests_total", **labels, status="499") == 0
    assert metric("warmroute_requests_total", **labels, status="2xx") == 1
    assert metric("warmroute_prompt_tokens_total", pool="default") == tokens


@pytest.mark.parametrize("script", [SILENT, BEGUN], ids=["before the first byte", "in mid-stream"])
def test_tasks_that_end(stub: MakeStub, route: MakeRouter, script: list[Action]) -> None:
    """If a task of the asynchronous client is cancelled, the worker's connection is closed."""
    worker = stub(script, MODEL)
    router = route(worker.url)
    seen: list[Any] = []

    async def main(caller: AsyncCaller) -> None:
        task = asyncio.create_task(caller.read(CHAT, seen.append, **STREAMED))
        ready: Callable[[], object] = (lambda: seen) if script is BEGUN else lambda: worker.requests
        await asyncio.to_thread(until, ready)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with AsyncCaller(router.url) as caller:
        caller.runner.run(main(caller))
        told(Scripted(worker, router, caller))
    assert len(seen) == (script is BEGUN)


def test_some_of_many(stub: MakeStub, route: MakeRouter) -> None:
    """If some requests of a client are cancelled, its others go on."""
    slow = stub(BEGUN, "slow")
    good = stub([STREAM_HEAD, WORD, chunk(DONE), STREAM_END], MODEL)
    router = route(slow.url, good.url)

    async def main(caller: AsyncCaller) -> None:
        lost: list[Any] = []
        asked = {**STREAMED, "model": "slow"}
        tasks = [asyncio.create_task(caller.read(CHAT, lost.append, **asked)) for _ in range(4)]
        await asyncio.to_thread(until, lambda: len(lost) == 4)
        kept: list[Any] = []
        others = [asyncio.create_task(caller.read(CHAT, kept.append, **STREAMED)) for _ in range(4)]
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        await asyncio.gather(*others)
        assert len(kept) == 4

    with AsyncCaller(router.url) as caller:
        caller.runner.run(main(caller))
    until(lambda: slow.closed_by_peer == 4)
    until(router.idle)
