"""What a router keeps of a controller's answers, and how it uses them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from controller.kv_memory import KvMemory
from controller.service.server import create_app
from router.kv.answers import Answers
from router.kv.remote import RemoteMemory
from strategies.api import Outcome, Prompt
from strategies.cost.prefill import Held
from strategies.prefix.block_keys import even_chain, even_root
from tests.support import MakeStub

#: Computed in full: its worker must have announced new blocks.
COMPUTED = Outcome(ok=True, prompt_tokens=9000, cached_tokens=0)
#: Nothing is held, no worker is doubted, and blocks have 16 tokens.
WELL: list[Any] = [{}, {}, [16], {}]
#: Given a question, the body of its answer; None: the controller fails.
Answer = Callable[[bytes], Awaitable[bytes | None]]


@asynccontextmanager
async def remote(answer: Answer, deadline: float = 20.0) -> AsyncIterator[RemoteMemory]:
    """A router's memory in front of a controller that gives these answers."""

    serving = set[asyncio.Task[Any] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await answer(await reader.readexactly(length))
                status = b"500 No" if body is None else b"200 OK"
                body = body or b""
                writer.write(
                    b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
                )
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    memory = RemoteMemory(f"http://127.0.0.1:{port}", "", deadline)
    try:
        yield memory
    finally:
        await memory.close()
        server.close()
        await asyncio.gather(*filter(None, serving))


def one_by_one(*answers: list[Any] | None) -> Answer:
    """Give these answers one after the other, then the last again and again."""
    left = list(answers)

    async def answer(_: bytes) -> bytes | None:
        given = left.pop(0) if len(left) > 1 else left[0]
        return None if given is None else msgspec.msgpack.encode(given)

    return answer


async def ask(memory: RemoteMemory) -> Prompt:
    """Ask about a prompt on one worker."""
    prompt = Prompt("m", 16, blocks={16: [1]})
    await memory.ask(prompt, ["a"])
    return prompt


def test_workers_that_have_left_are_forgotten() -> None:
    """Also those whose last answers end after that."""

    async def play() -> None:
        async with remote(one_by_one(WELL)) as memory:
            for name in "abc":
                memory.observe(name, 16, COMPUTED, 7)
            memory.tidy(["a", "c"])
            assert set(memory.track_records) == {"a", "c"}

    asyncio.run(play())


def test_a_silent_worker_is_found_by_the_events_that_the_controller_counts() -> None:
    """Each computed prompt is judged by the event count of a later answer; any new event ends the
    doubt."""

    async def play() -> None:
        answers = [[{}, {}, [16], {"a": events}] for events in (5, 6, 6, 7)]
        async with remote(one_by_one(*answers)) as memory:
            await ask(memory)
            before = memory.heard("a")
            for _ in range(9):
                memory.observe("a", None, COMPUTED, before)
            assert memory.doubt("a") == "", "nobody has said yet whether something came"
            assert memory.doubt("a", await ask(memory)) == ""
            for _ in range(4):
                memory.observe("a", None, COMPUTED, memory.heard("a"))
            assert memory.doubt("a", await ask(memory)) == memory.doubt("a") == "silent"
            assert memory.doubt("a", await ask(memory)) == memory.doubt("a") == ""

    asyncio.run(play())


def test_a_controller_is_told_which_tiers_count() -> None:
    """L1 may be disabled for this router and count for another; older routers do not say."""
    keys = even_chain(even_root("", ""), bytes(128), 16)
    index, prompt = KvMemory(1 << 24), Prompt("m", 33, blocks={16: keys})
    source = index.join("a")
    for medium in ("CPU", "STORAGE"):
        ids, size = [0] * 32, {"block_size": 16, "medium": medium}
        block = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": ids, **size}
        source.push(msgspec.msgpack.encode([0.0, [block], 0]), 0.0)
    with TestClient(create_app(index, _nothing, _nothing, {})) as http:

        async def answer(question: bytes) -> bytes:
            return await asyncio.to_thread(lambda: http.post("/held", content=question).content)

        async def play() -> None:
            async with remote(answer) as memory:
                for l1, held in ((True, Held(0, 32)), (False, Held(0, 0, 32))):
                    memory.l1 = l1
                    await memory.ask(prompt, ["a"])
                    assert memory.held(prompt, ["a"]) == {"a": held}

        asyncio.run(play())
        older = {"tokens": 33, "keys": dict(prompt.blocks), "workers": ["a"]}
        reply = http.post("/held", content=msgspec.msgpack.encode(older)).content
        assert msgspec.msgpack.decode(reply)[0] == {"a": [0, 32, 0]}


async def _nothing(*_: object) -> None:
    """Follow no engine."""


def test_one_request_alone_waits_for_a_controller_that_is_gone() -> None:
    """The others are decided at once; once the controller answers, all ask again."""
    questions: list[asyncio.Future[bytes | None]] = []

    async def answer(_: bytes) -> bytes | None:
        questions.append(asyncio.get_running_loop().create_future())
        if len(questions) <= 3:
            return None
        return await questions[-1]

    async def arrived(number: int) -> None:
        async with asyncio.timeout(10):
            while len(questions) < number:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)

    async def play() -> None:
        well = msgspec.msgpack.encode(WELL)
        async with remote(answer, 60.0) as memory:
            for _ in range(3):
                await ask(memory)
            waiting = asyncio.create_task(ask(memory))
            await arrived(4)
            for _ in range(2):
                assert memory.doubt("a", await ask(memory)) == "controller slow"
            assert len(questions) == 4
            questions[3].set_result(well)
            assert memory.doubt("a", await waiting) == ""
            together = [asyncio.create_task(ask(memory)) for _ in range(3)]
            await arrived(7)
            for question in questions[4:]:
                question.set_result(well)
            await asyncio.gather(*together)

    asyncio.run(play())


def test_the_reason_is_the_true_one() -> None:
    """A prompt without tokens is not the controller's fault; for a worker in general, the last
    answer counts."""

    async def play() -> None:
        async with remote(one_by_one([{}, {"a": "gap"}, [16]], None)) as memory:
            assert memory.doubt("a", Prompt("m", 16)) == ""
            assert memory.doubt("a", Prompt("m", 16, blocks={16: [1]})) == "no controller"
            assert memory.doubt("a", await ask(memory)) == memory.doubt("a") == "gap"
            assert memory.doubt("a", await ask(memory)) == memory.doubt("a") == "no controller"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, "it answered 401: controller.key is none of its auth.keys"), (500, "it answered 500")],
)
def test_the_log_is_told_why(
    stub: MakeStub, caplog: pytest.LogCaptureFixture, status: int, why: str
) -> None:
    """A controller that answers with an error is there, and what is wrong is something else."""
    worker = stub([b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % status])

    async def play() -> None:
        memory = RemoteMemory(worker.url, "some key", 20)
        for _ in range(3):
            await ask(memory)
        await memory.close()

    asyncio.run(play())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"controller {worker.url}: no controller ({why}): routing by what was sent"


def test_the_log_is_told_when_it_goes_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has one line each when it goes and comes back, and none for a single failure."""
    caplog.set_level(logging.INFO, "warmroute.controller")

    async def play() -> None:
        answers = (None, WELL, *[None] * 5, WELL, WELL)
        async with remote(one_by_one(*answers)) as memory:
            for _ in answers:
                await ask(memory)

    asyncio.run(play())
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "routing by what was sent",
        "answers again",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        [{"a": [16, 0, 0]}, {}, [16, 0], {}],
        [{"a": [-5, 0, 0]}, {}, [16], {}],
        [{"a": [16, 16, 0]}, {}, [16], {}],
        [{}, {}, [16], {"a": -1}],
    ],
)
def test_what_cannot_be_is_no_answer(wrong: list[Any]) -> None:
    """Another program or another release is at its address, so the question counts as failed."""

    async def play() -> None:
        async with remote(one_by_one(wrong, [{"a": [16, 0, 0]}, {}, [32], {}])) as memory:
            prompt = await ask(memory)
            assert (memory.held(prompt, ["a"]), memory.doubt("a", prompt)) == ({}, "no controller")
            assert list(memory.sizes()) == [16]
            prompt = await ask(memory)
            assert (memory.held(prompt, ["a"])["a"].gpu, memory.doubt("a", prompt)) == (16, "")
            assert list(memory.sizes()) == [32]

    asyncio.run(play())


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [([1] * 5, [2, 3, 4]), ([4, 4, 4], [1, 2]), ([1, 1, 99], [2]), ([1, 1, 9], [1, 2])],
    ids=["number", "size", "the latest always", "both"],
)
def test_answers_that_are_kept_are_bounded(sizes: list[int], kept: list[int]) -> None:
    """By number and by size, as clients choose the length of prompts and salts; oldest go first."""
    answers = Answers[int](3, 10)
    prompts = [Prompt("m", 16) for _ in sizes]
    for number, size in enumerate(sizes):
        for _ in range(2):  # asked about again, a prompt counts once
            answers.keep(prompts[number], number, size)
    found = [answers.get(prompt) for prompt in prompts]
    assert [number for number in found if number is not None] == kept
    assert answers.get(Prompt("m", 16)) is None, "equal, but another"


def test_a_salt_counts_by_its_length() -> None:
    """Of many prompts with long salts only some answers are kept."""

    async def play() -> None:
        async with remote(one_by_one(WELL)) as memory:
            salted = [Prompt("m", 16, blocks={16: [1]}, salt="s" * 1_000_000) for _ in range(30)]
            for prompt in salted:
                await memory.ask(prompt, ["a"])
            assert memory.doubt("a", salted[0]) == "no controller"
            assert memory.doubt("a", salted[-1]) == ""

    asyncio.run(play())
