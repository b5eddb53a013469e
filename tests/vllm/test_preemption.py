"""Clients that leave a real vLLM during prefill: a short prompt is next, and what was computed is
found when the long prompt is sent again."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from socket import socket
from typing import Any, NamedTuple

import pytest

from tests.support import MakeRouter, Router, post, read_all, until
from tests.vllm.conftest import StartEngine
from tests.vllm.engine import BLOCK, MODEL, Engine, make_model
from tests.vllm.publishing import CHAT, PATIENCE, words
from tests.vllm.tiered import counters

#: Tokens per step, and blocks in the cache: enough for all prompts of this module.
STEP, BLOCKS = 256, 4096
FLAGS = ("--max-num-batched-tokens", str(STEP), "--num-gpu-blocks-override", str(BLOCKS))
#: Layers: a step takes about a tenth of a second.
LAYERS = 24
#: Words of a long prompt, which takes about fifty steps, and of one that fits into a step.
LONG, SHORT = 4000, 20


@pytest.fixture(scope="module")
def engine(vllm: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An engine that takes seconds for a long prompt."""
    folder = make_model(tmp_path_factory.mktemp("models") / "slow")
    path = folder / "config.json"
    path.write_text(json.dumps({**_read(path), "num_hidden_layers": LAYERS}), encoding="utf-8")
    return vllm(folder, *FLAGS)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


class State(NamedTuple):
    """What an engine reports of itself."""

    running: int
    waiting: int
    #: Tokens in blocks that requests use.
    used: int
    #: Tokens of the prompts whose prefill has ended.
    prefilled: int
    #: Tokens found in the prefix cache, also by requests that have not ended.
    hits: int


def state(engine: Engine) -> State:
    """Return the engine's present state."""
    names = (
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        *("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total"),
    )
    found = counters(f"{engine.url}/metrics", names)
    running, waiting, usage, prefilled, hits = (found[name, ""] for name in names)
    used = round(usage * (BLOCKS - 1)) * BLOCK  # one block is never used
    return State(int(running), int(waiting), used, int(prefilled), int(hits))


def _through(router: Router, text: str) -> bytes:
    """Send a streamed chat through the router; return all of the answer."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(chat | usage).encode()
    fields = (b"content-type: application/json", b"connection: close")
    client = post(router.port, CHAT, body, *fields)
    client.settimeout(PATIENCE)
    with client:
        return read_all(client)


def is_idle(engine: Engine) -> bool:
    """Return whether the engine has no requests."""
    now = state(engine)
    return (now.running, now.waiting, now.used) == (0, 0, 0)


class Asked:
    """A chat that was sent, until its answer is read or its connection is closed."""

    def __init__(self, engine: Engine, text: str, *, stream: bool = True) -> None:
        chat: dict[str, Any] = {
            "model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1
        }  # fmt: skip
        if stream:
            chat |= {"stream": True, "stream_options": {"include_usage": True}}
        fields = (b"content-type: application/json", b"connection: close")
        self._stream = stream
        self._client: socket = post(engine.port, CHAT, json.dumps(chat).encode(), *fields)

    def is_unanswered(self) -> bool:
        """Return whether nothing has arrived so far, or of a stream its head alone, which comes
        before the prefill."""
        head, _, body = self._arrived().partition(b"\r\n\r\n")
        return not body and head.startswith(b"HTTP/1.1 200 OK") == self._stream

    def usage(self) -> tuple[int, int]:
        """Read the answer; return the tokens of the prompt, and how many of them were cached."""
        self._client.settimeout(PATIENCE)
        answer = read_all(self._client)
        self.close()
        objects = [line.removeprefix(b"data: ") for line in answer.split(b"\n")]
        usages = [json.loads(one)["usage"] for one in objects if b'"usage":{' in one]
        return usages[-1]["prompt_tokens"], usages[-1]["prompt_tokens_details"]["cached_tokens"]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _arrived(self) -> bytes:
        """Return what has arrived by now."""
        self._client.setblocking(False)
        with suppress(BlockingIOError):
            return self._client.recv(65536)
        return b""


@contextmanager
def prefilling(
    engine: Engine, text: str, *, stream: bool = True, tokens: int = 1
) -> Iterator[tuple[Asked, State]]:
    """Send a long prompt to the idle engine, and wait until it uses this many tokens' blocks; yield
    it, and the state at that time. Its connection is closed in the end."""
    until(lambda: is_idle(engine), PATIENCE)
    before = state(engine)
    asked, now = Asked(engine, text, stream=stream), before

    def computes() -> bool:
        nonlocal now
        now = state(engine)
        assert now.prefilled == before.prefilled, "the prefill ended unseen"
        return now.used >= tokens

    try:
        until(computes, PATIENCE)
        assert now.running == 1
        yield asked, now
    finally:
        asked.close()


def check_found(engine: Engine, text: str, seen: State, *, stream: bool = True) -> None:
    """Send a prompt again that was left: all tokens that were seen to be computed are found."""
    prompt, cached = Asked(engine, text, stream=stream).usage()
    assert 0 < seen.used <= cached < prompt - STEP
    assert cached % BLOCK == 0
    assert (cached - seen.used) % STEP == 0, "whole steps"


@pytest.mark.parametrize("stream", [True, False])
def test_what_was_computed_is_found_again(engine: Engine, stream: bool) -> None:
    """The request leaves the engine, and its blocks stay in the cache."""
    text = words(Random(f"found {stream}"), LONG)
    with prefilling(engine, text, stream=stream) as (long, seen):
        assert long.is_unanswered()
    until(lambda: is_idle(engine), PATIENCE)
    assert state(engine).prefilled == seen.prefilled, "it was not computed to its end"
    check_found(engine, text, seen, stream=stream)


@pytest.mark.parametrize("sent", ["before", "after"])
def test_a_short_prompt_is_next(engine: Engine, sent: str) -> None:
    """It is sent before the long prompt's connection is closed and waits, or right after that."""
    text, few = (words(Random(f"next {sent}"), number) for number in (LONG, SHORT))
    with prefilling(engine, text) as (long, seen):
        if sent == "before":
            short = Asked(engine, few)
            until(lambda: state(engine).waiting, PATIENCE)
            assert short.is_unanswered()
        assert long.is_unanswered()
    if sent == "after":
        short = Asked(engine, few)
    prompt, _ = short.usage()
    now = state(engine)
    assert (now.running, now.waiting) == (0, 0)
    assert now.prefilled - seen.prefilled == prompt, "the short prompt's alone"
    check_found(engine, text, seen)


def test_through_the_router(engine: Engine, route: MakeRouter) -> None:
    """A long prompt gives way to a short one, and then goes on; its client gets a whole answer.

    The first prompt teaches the router how slow the engine is.
    """
    router = route(engine.url)
    until(lambda: router.worker().keeps, PATIENCE)
    until(lambda: is_idle(engine), PATIENCE)
    taught = _through(router, words(Random("taught"), LONG))
    assert b"x-warmroute-preempted" not in taught
    text = words(Random("through"), LONG)
    with ThreadPoolExecutor(1) as crowd:
        long = crowd.submit(_through, router, text)
        until(lambda: state(engine).used, PATIENCE)
        short = _through(router, words(Random("short"), SHORT))
        assert b"x-warmroute-preempted" not in short
        answer = long.result()
    assert b"\r\nx-warmroute-preempted: 1\r\n" in answer
    assert b"data: [DONE]" in answer
    assert router.metric("warmroute_preempted_requests_total") == 1
    until(router.idle)
