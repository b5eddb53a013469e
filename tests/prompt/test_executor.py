"""Long prompts are tokenized in threads, within bounds."""

import asyncio
import json
import threading
from array import array
from collections.abc import Iterator

import pytest

from router.api.endpoints import Endpoint
from router.api.request import Request, parse
from router.prompt.executor import (
    ASKING,
    BUSY,
    ENTRIES_PER_OBJECT,
    FAST_IN_A_ROW,
    MAX_LOOP_OBJECTS,
    MIN_LOOP_BODY_BYTES,
    SLOW,
    PromptExecutor,
)
from router.prompt.prompts import AskedModel, Prompts
from strategies.api import Prompt
from tests.prompt.prompted import COMPLETION, knowing

SHORT = 1000


class Gate:
    """A tokenizer that blocks until it is opened."""

    short = SHORT

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = threading.Semaphore(0)
        self.threads: set[str] = set()

    def ids(self, _endpoint: Endpoint, body: bytes, **_: object) -> bytes:
        """Return one token for each byte, once the gate is open."""
        self.threads.add(threading.current_thread().name)
        self.begun.release()
        assert self.opened.wait(20)
        return array("I", [7] * len(body)).tobytes()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is opened at the end of the test, so that no thread stays blocked."""
    made = Gate()
    yield made
    made.opened.set()


class Clock:
    """A clock that advances by `step` at every look."""

    def __init__(self) -> None:
        self.step = self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += self.step
        return self.now


def request(size: int = SHORT) -> bytes:
    """Return a request whose body is longer than `size`."""
    return json.dumps({"model": "m", "prompt": "x" * size}).encode()


async def make(tokenizing: PromptExecutor, prompts: Prompts, body: bytes | None = None) -> Prompt:
    """Make one prompt in a thread."""
    body = body or request()
    made = await tokenizing.make(prompts, COMPLETION, parse(COMPLETION, body, b""), body)
    return made.prompt


def test_who_is_short(gate: Gate) -> None:
    """Small requests of few objects are short, and so are all that would not be tokenized."""
    tokenizing, long = PromptExecutor(), b"x" * (SHORT + 1)
    asked, other = Request(model="m"), Request(model="other")
    assert tokenizing.is_short(knowing(gate), asked, long[1:])
    assert not tokenizing.is_short(knowing(gate), asked, long)
    assert tokenizing.is_short(knowing(gate), other, long)
    unread = Prompts(keyed=False)
    unread.known = knowing(gate).known
    assert tokenizing.is_short(unread, asked, long)
    gate.short = 100_000
    for one, many in (
        (b'{"role":"user"},', MAX_LOOP_OBJECTS),
        (b'"",', MAX_LOOP_OBJECTS * ENTRIES_PER_OBJECT),
        (b"[" * 10 + b"]" * 10, MAX_LOOP_OBJECTS // 10),
    ):
        assert not tokenizing.is_short(knowing(gate), asked, b"[%b]" % (one * (many + 1)))
        assert tokenizing.is_short(knowing(gate), asked, b"[%b]" % (one * (many // 2)))
    tokenizing.close()


@pytest.mark.parametrize(
    ("took", "shorter", "half"), [(0.009, True, True), (0.02, False, True), (2.0, False, False)]
)
def test_a_slow_template_is_found_out(gate: Gate, took: float, shorter: bool, half: bool) -> None:
    """After a slow prompt on the loop, those of over half its size go to threads; or even all."""
    gate.opened.set()
    clock = Clock()
    clock.step = took
    tokenizing, prompts, body = PromptExecutor(clock=clock), knowing(gate), request(500)
    asked = parse(COMPLETION, body, b"")
    assert tokenizing.is_short(prompts, asked, body)
    assert tokenizing.made(prompts, COMPLETION, asked, body).prompt.tokens == len(body)
    assert tokenizing.is_short(prompts, asked, body) is shorter
    assert tokenizing.is_short(prompts, asked, b"x" * (len(body) // 2)) is half
    tokenizing.close()


def test_one_slow_prompt_is_forgiven(gate: Gate) -> None:
    """After enough quick ones in threads, prompts are made on the loop again, step by step."""
    gate.opened.set()
    clock = Clock()

    async def scene() -> None:
        tokenizing, prompts = PromptExecutor(patience=20.0, clock=clock), knowing(gate)

        async def made(size: int, took: float, times: int = 1) -> None:
            clock.step = took
            body = request(size)
            asked = parse(COMPLETION, body, b"")
            for _ in range(times):
                if tokenizing.is_short(prompts, asked, body):
                    tokenizing.made(prompts, COMPLETION, asked, body)
                else:
                    await make(tokenizing, prompts, body)

        def here(size: int) -> bool:
            return tokenizing.is_short(prompts, Request(model="m"), b"x" * size)

        await made(600, 1.0)
        assert not here(1)
        await made(600, 0.001, FAST_IN_A_ROW - 1)
        await made(MIN_LOOP_BODY_BYTES // 2, 1.0)  # slow though small: counting starts again
        await made(600, 0.001, FAST_IN_A_ROW - 1)
        assert not here(1)
        await made(600, 0.001)
        assert here(MIN_LOOP_BODY_BYTES)
        assert not here(MIN_LOOP_BODY_BYTES + 1)
        await made(MIN_LOOP_BODY_BYTES // 2, 0.001, FAST_IN_A_ROW)  # says nothing about longer ones
        assert not here(MIN_LOOP_BODY_BYTES + 1)
        await made(600, 0.001, FAST_IN_A_ROW)
        assert here(SHORT)
        assert not here(SHORT + 1)
        tokenizing.close()

    asyncio.run(scene())


async def until_begun(gate: Gate) -> None:
    """Let the loop run until a thread tokenizes."""
    while not gate.threads:  # noqa: ASYNC110 - set by a thread
        await asyncio.sleep(0)


def test_the_loop_goes_on(gate: Gate) -> None:
    """The event loop runs on while a thread tokenizes a prompt."""

    async def scene() -> None:
        tokenizing, prompts = PromptExecutor(patience=20.0), knowing(gate)
        waiting = asyncio.ensure_future(make(tokenizing, prompts))
        await until_begun(gate)
        assert tokenizing.pending == 1
        assert not prompts.by_reason
        gate.opened.set()
        prompt = await waiting
        assert (prompt.counted, prompt.tokens) == (True, len(request()))
        assert prompts.by_reason == {"": 1}
        assert threading.current_thread().name not in gate.threads

    asyncio.run(scene())


def test_no_more_than_so_many(gate: Gate) -> None:
    """Beyond the limit, prompts are keyed by their text at once."""

    async def scene() -> None:
        tokenizing, prompts = PromptExecutor(threads=1, most=2, patience=20.0), knowing(gate)
        waiting = [asyncio.ensure_future(make(tokenizing, prompts)) for _ in range(2)]
        await asyncio.sleep(0)
        late = await make(tokenizing, prompts)
        assert not late.counted
        assert late.keys
        gate.opened.set()
        assert all(prompt.counted for prompt in await asyncio.gather(*waiting))
        assert prompts.by_reason == {BUSY: 1, "": 2}
        assert len(gate.threads) == 1

    asyncio.run(scene())


def test_a_client_that_leaves(gate: Gate) -> None:
    """Its prompt counts until its thread has ended; one that no thread has begun is forgotten."""

    async def scene() -> None:
        tokenizing, prompts = PromptExecutor(threads=1, most=2, patience=20.0), knowing(gate)
        first, second = (asyncio.ensure_future(make(tokenizing, prompts)) for _ in range(2))
        await until_begun(gate)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(0)
        assert tokenizing.pending == 1  # threads cannot be stopped
        assert not prompts.by_reason
        gate.opened.set()
        while tokenizing.pending:  # noqa: ASYNC110 - set from a thread
            await asyncio.sleep(0.01)
        assert (await make(tokenizing, prompts)).counted
        begun = 0
        while gate.begun.acquire(blocking=False):
            begun += 1
        assert begun == 2

    asyncio.run(scene())


def test_what_takes_too_long(gate: Gate) -> None:
    """It is keyed by its text, but counts as pending until its thread has ended."""

    async def scene() -> None:
        tokenizing, prompts = PromptExecutor(threads=1, patience=0.01), knowing(gate)
        late = await make(tokenizing, prompts)
        assert not late.counted
        assert late.keys
        assert prompts.by_reason == {SLOW: 1}
        assert tokenizing.pending == 1
        gate.opened.set()
        while tokenizing.pending:  # noqa: ASYNC110 - set from a thread
            await asyncio.sleep(0.01)

    asyncio.run(scene())


def test_workers_that_are_slow_to_tell(gate: Gate) -> None:
    """They do not limit long prompts or other pools, but are limited within their own pool."""

    async def scene() -> None:
        tokenizing, told = PromptExecutor(most=2, patience=20.0), asyncio.Event()

        async def ids(_endpoint: Endpoint, body: bytes) -> bytes:
            await told.wait()
            return array("I", [7] * len(body)).tobytes()

        slow, other = Prompts(), Prompts()
        slow.asked = other.asked = {"m": AskedModel("m", ids)}
        waiting = [asyncio.ensure_future(make(tokenizing, slow)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not (await make(tokenizing, slow)).counted
        assert slow.by_reason == {ASKING: 1}
        waiting.append(asyncio.ensure_future(make(tokenizing, other)))
        gate.opened.set()
        assert (await make(tokenizing, knowing(gate))).counted
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert (slow.asking, other.asking, tokenizing.pending) == (1, 1, 0)
        told.set()
        assert all(prompt.counted for prompt in await asyncio.gather(*waiting[1:]))
        assert (slow.asking, other.asking) == (0, 0)

    asyncio.run(scene())
