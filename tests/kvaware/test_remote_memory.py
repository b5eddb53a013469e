"""What a router keeps of a controller's answers, and how it uses them."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from controller.kv_memory import KvMemory
from controller.service.server import create_app
from router import remote_memory
from router.remote_memory import RemoteMemory
from strategies.api import Outcome, Prompt
from strategies.cost.tiers import Held
from strategies.prefix.block_keys import even_chain, even_root
from tests.support import MakeStub


def test_what_is_kept_of_long_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are bounded by their keys as well as by their number; the latest is always kept."""
    monkeypatch.setattr(remote_memory, "KEPT_WORDS", 1000)
    monkeypatch.setattr(remote_memory, "KEPT", 20)
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    keys = list(range(300))
    prompts = [Prompt("m", 4800, blocks={16: keys}) for _ in range(10)]
    prompts += [Prompt("m", 48000, blocks={16: keys * 10})]
    small = [Prompt("m", 16, blocks={16: [1]}) for _ in range(30)]

    async def play() -> None:
        for prompt in prompts[:-1]:
            await remote.ask(prompt, ["a"])
        await remote.ask(prompts[9], ["a"])
        assert [id(prompt) for prompt in prompts[7:10]] == list(remote._said)
        await remote.ask(prompts[-1], ["a"])
        assert list(remote._said) == [id(prompts[-1])]
        for prompt in small:
            await remote.ask(prompt, ["a"])
        assert [id(prompt) for prompt in small[-20:]] == list(remote._said)
        assert remote._words == 20
        await remote.close()

    asyncio.run(play())


def test_workers_that_have_left_are_forgotten() -> None:
    """Also those whose last answers end after that."""
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    for name in "abc":
        remote.observe(name, 16, Outcome(ok=True, prompt_tokens=4096, cached_tokens=0), 7)
    remote.tidy(["a", "c"])
    assert set(remote.track_records) == set(remote._computed) == {"a", "c"}
    asyncio.run(remote.close())


def test_what_is_kept_of_long_salts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients decide how long salts are, so these count too."""
    monkeypatch.setattr(remote_memory, "KEPT_WORDS", 1000)
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    prompts = [Prompt("m", 16, blocks={16: [1]}, salt=f"{n}" * 20_000) for n in range(9)]

    async def play() -> None:
        for prompt in prompts:
            await remote.ask(prompt, ["a"])
        assert [id(prompt) for prompt in prompts[-2:]] == list(remote._said)
        await remote.close()

    asyncio.run(play())


def answering(remote: RemoteMemory, *answers: list[Any] | None) -> None:
    """Let a controller give these answers one after the other; None fails."""
    left = list(answers)

    async def post(_: bytes) -> bytes:
        answer = left.pop(0)
        if answer is None:
            raise ConnectionError
        return msgspec.msgpack.encode(answer)

    remote._post = post  # type: ignore[method-assign,assignment]


def ask(remote: RemoteMemory) -> Prompt:
    """Ask about a prompt on one worker."""
    prompt = Prompt("m", 16, blocks={16: [1]})
    asyncio.run(remote.ask(prompt, ["a"]))
    return prompt


def test_a_silent_worker_is_found_by_the_events_that_the_controller_counts() -> None:
    """Each computed prompt is judged by the event count of a later answer; any new event ends the
    doubt."""
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    answering(remote, *([{}, {}, [16], {"a": events}] for events in (5, 6, 6, 7)))
    answer = Outcome(ok=True, prompt_tokens=9000, cached_tokens=0)
    ask(remote)
    before = remote.heard("a")
    for _ in range(9):
        remote.observe("a", None, answer, before)
    assert remote.doubt("a") == "", "nobody has said yet whether something came"
    assert remote.doubt("a", ask(remote)) == ""
    for _ in range(4):
        remote.observe("a", None, answer, remote.heard("a"))
    assert remote.doubt("a", ask(remote)) == remote.doubt("a") == "silent"
    assert remote.doubt("a", ask(remote)) == remote.doubt("a") == ""


def test_an_older_controller_counts_no_events() -> None:
    """Then silence cannot be noticed."""
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    answering(remote, *([{"a": [16, 0, 0]}, {}, [16]] for _ in range(2)))
    ask(remote)
    for _ in range(9):
        remote.observe("a", None, Outcome(ok=True, prompt_tokens=9000, cached_tokens=0), 0)
    prompt = ask(remote)
    assert (remote.held(prompt, ["a"])["a"].gpu, remote.doubt("a", prompt)) == (16, "")


def test_a_controller_is_told_which_tiers_count() -> None:
    """L1 may be disabled for this router and count for another; older routers do not say."""
    keys = even_chain(even_root("", ""), bytes(128), 16)
    memory, prompt = KvMemory(1 << 24), Prompt("m", 33, blocks={16: keys})
    source = memory.join("a")
    for medium in ("CPU", "STORAGE"):
        ids, size = [0] * 32, {"block_size": 16, "medium": medium}
        block = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": ids, **size}
        source.push(msgspec.msgpack.encode([0.0, [block], 0]), 0.0)
    with TestClient(create_app(memory, _nothing, _nothing, {})) as http:

        async def post(question: bytes) -> bytes:
            return http.post("/held", content=question).content

        for l1, held in ((True, Held(0, 32)), (False, Held(0, 0, 32))):
            remote = RemoteMemory("http://127.0.0.1:9", "", 5)
            remote._post, remote.l1 = post, l1  # type: ignore[method-assign]
            asyncio.run(remote.ask(prompt, ["a"]))
            assert remote.held(prompt, ["a"]) == {"a": held}
        older = {"tokens": 33, "keys": dict(prompt.blocks), "workers": ["a"]}
        answer = http.post("/held", content=msgspec.msgpack.encode(older)).content
        assert msgspec.msgpack.decode(answer)[0] == {"a": [0, 32, 0]}


async def _nothing(*_: object) -> None:
    """Follow no engine."""


def test_one_request_alone_waits_for_a_controller_that_is_gone() -> None:
    """The others are decided at once; once the controller answers, all ask again."""
    remote = RemoteMemory("http://127.0.0.1:9", "", 60)
    answering(remote, None, None, None)
    for _ in range(3):
        ask(remote)
    asked: list[asyncio.Future[bytes]] = []

    async def post(_: bytes) -> bytes:
        asked.append(asyncio.get_running_loop().create_future())
        return await asked[-1]

    remote._post = post  # type: ignore[method-assign,assignment]
    prompts = [Prompt("m", 16, blocks={16: [1]}) for _ in range(6)]

    async def play() -> None:
        waiting = asyncio.create_task(remote.ask(prompts[0], ["a"]))
        await asyncio.sleep(0)
        for prompt in prompts[1:3]:
            await remote.ask(prompt, ["a"])
            assert remote.doubt("a", prompt) == "controller slow"
        assert len(asked) == 1
        asked[0].set_result(msgspec.msgpack.encode([{}, {}, [16], {}]))
        await waiting
        assert remote.doubt("a", prompts[0]) == ""
        together = [asyncio.create_task(remote.ask(prompt, ["a"])) for prompt in prompts[3:]]
        await asyncio.sleep(0)
        assert len(asked) == 4
        for one in asked[1:]:
            one.set_result(msgspec.msgpack.encode([{}, {}, [16], {}]))
        await asyncio.gather(*together)
        await remote.close()

    asyncio.run(play())


def test_the_reason_is_the_true_one() -> None:
    """A prompt without tokens is not the controller's fault; for a worker in general, the last
    answer counts."""
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    answering(remote, [{}, {"a": "gap"}, [16]], None)
    assert remote.doubt("a", Prompt("m", 16)) == ""
    assert remote.doubt("a", Prompt("m", 16, blocks={16: [1]})) == "no controller"
    assert remote.doubt("a", ask(remote)) == remote.doubt("a") == "gap"
    assert remote.doubt("a", ask(remote)) == remote.doubt("a") == "no controller"


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, "it answered 401: controller.key is none of its auth.keys"), (500, "it answered 500")],
)
def test_the_log_is_told_why(
    stub: MakeStub, caplog: pytest.LogCaptureFixture, status: int, why: str
) -> None:
    """A controller that answers with an error is there, and what is wrong is something else."""
    worker = stub([b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % status])
    remote = RemoteMemory(worker.url, "some key", 20)

    async def play() -> None:
        for _ in range(3):
            await remote.ask(Prompt("m", 16, blocks={16: [1]}), ["a"])
        await remote.close()

    asyncio.run(play())
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == f"controller {worker.url}: no controller ({why}): routing by what was sent"


def test_the_log_is_told_when_it_goes_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has one line each when it goes and comes back, and none for a single failure."""
    caplog.set_level(logging.INFO, "warmroute.controller")
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    well: list[Any] = [{}, {}, [16]]
    answering(remote, None, well, None, None, None, None, None, well, well)
    for _ in range(9):
        ask(remote)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "no controller: routing by what was sent",
        "answers again",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        [{"a": [16, 0, 0]}, {}, [16, 0], {}],
        [{"a": [16, 0, 0]}, {}, [-1], {}],
        [{"a": [16, 0, 0]}, {}, [1 << 30], {}],
        [{"a": [-5, 0, 0]}, {}, [16], {}],
        [{"a": [16, 16, 0]}, {}, [16], {}],
        [{"a": [1 << 40, 0, 0]}, {}, [16], {}],
        [{}, {}, [16], {"a": -1}],
    ],
)
def test_what_cannot_be_is_no_answer(wrong: list[Any]) -> None:
    """Another program or another release is at its address, so the question counts as failed."""
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    answering(remote, wrong, [{"a": [16, 0, 0]}, {}, [32], {}])
    prompt = ask(remote)
    assert (remote.held(prompt, ["a"]), remote.doubt("a", prompt)) == ({}, "no controller")
    assert list(remote.sizes()) == [16]
    prompt = ask(remote)
    assert (remote.held(prompt, ["a"])["a"].gpu, remote.doubt("a", prompt)) == (16, "")
    assert list(remote.sizes()) == [32]
