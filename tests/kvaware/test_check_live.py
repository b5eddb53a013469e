"""`warmroute check --live` says what is subscribed, what is missing, and how to mend it."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis import Redis

from router.cli import check_live as checks
from router.kv.attach import FLAG
from router.kv.lmcache.names import naming
from router.settings.fleet import LmcacheSettings
from router.settings.model import Settings
from simulator.api.generation import TokenUsage
from simulator.engine.core import Engine
from simulator.engine.request import EngineRequest
from simulator.kv.cache import BlockCache
from simulator.kv.events import ZmqEventPublisher
from simulator.kv.tiers import Offloading
from tests.kvaware.conftest import MakeFleet
from tests.sessions.redis_server import RedisServer
from tests.stores.conftest import Write, redis, write
from tests.support import MakeStub

__all__ = ["redis", "write"]
#: Settings of `tiers.l2.lmcache` that match the engines of a sound fleet, for either way of naming.
ENGINE: dict[str, Any] = {"names": "engine", "hash": "sha256_cbor", "seed": "0", "chunk": 64}
SERVER: dict[str, Any] = {"names": "server", "chunk": 64}

Look = Callable[..., tuple[list[str], bool]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for what does not come."""
    monkeypatch.setattr(checks, "TIER_EVENTS_TIMEOUT_S", 0.5)
    monkeypatch.setattr(checks, "STORED_S", 0.5)


@pytest.fixture
def look(folder: Path) -> Look:
    """Return the lines that the check prints, and whether all is well."""

    def looked(workers: Sequence[Any], *, ask: bool = True, **settings: Any) -> Any:
        told = {"workers": workers, "strategy": "kvaware", "tokenizer": str(folder), **settings}
        return asyncio.run(checks.check_live(Settings.model_validate(told), ask=ask))

    return looked


def having(lines: list[str], part: str) -> list[str]:
    """Return the lines that have this part."""
    return [line for line in lines if part in line]


def writes(monkeypatch: pytest.MonkeyPatch, url: str, engines: Sequence[dict[str, Any]]) -> None:
    """Write what simulated workers compute to a Redis, under the names LMCache gives it.

    Engines take their settings from `engines` in the order of their first requests, as nothing else
    identifies them.
    """
    added, place = Engine.add, dict[int, int]()

    def add(engine: Engine, request: EngineRequest, now: float) -> None:
        added(engine, request, now)
        told = engines[place.setdefault(id(engine), len(place)) % len(engines)]
        chunks = naming(LmcacheSettings(redis=url, **told))
        with Redis.from_url(url) as client:
            for name in chunks.names(request.tokens.tobytes(), ""):
                for key in chunks.keys(request.lora_name or "toy", name)[-1]:
                    client.set(key, b"kv")

    monkeypatch.setattr(Engine, "add", add)


def tiers(redis: RedisServer, told: dict[str, Any]) -> dict[str, Any]:
    """Return the router's settings of tiers."""
    return {"l2": {"lmcache": {"redis": redis.url, "deadline": "5s", **told}}}


@pytest.mark.parametrize(
    ("engines", "told", "wrong"),
    [
        ([SERVER], {**SERVER, "model": "toy"}, 0),
        pytest.param([ENGINE], ENGINE, 0, marks=pytest.mark.long),
        ([ENGINE, {**ENGINE, "seed": "123"}], ENGINE, 1),
        pytest.param([ENGINE, {**ENGINE, "dtype": "half"}], ENGINE, 1, marks=pytest.mark.long),
        ([SERVER], {**SERVER, "chunk": 256}, 2),
        pytest.param([SERVER], ENGINE, 2, marks=pytest.mark.long),
    ],
    ids=["server", "engine", "one seed", "one dtype", "another chunk", "other names"],
)
def test_names_of_chunks(
    fleet: MakeFleet,
    look: Look,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    engines: list[dict[str, Any]],
    told: dict[str, Any],
    wrong: int,
) -> None:
    """Workers whose chunks have other names than expected are reported, and no others. No adapter
    is asked, as its chunks have names of their own."""
    writes(monkeypatch, redis.url, engines)
    simulated = fleet(workers=2, host_tokens=8192, adapters=("a-lora",))
    lines, well = look(simulated.urls, tiers=tiers(redis, told))
    assert well is not bool(wrong), lines
    missing = having(lines, "not on L2")
    assert len(missing) == wrong, lines
    assert all(
        redis.url in line and f"chunk {told['chunk']}, model toy" in line for line in missing
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_an_l1_that_does_not_announce(
    fleet: MakeFleet, look: Look, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    """A silent L1 is an error if it counts; one that announces is shown with its blocks."""
    told = {"l1": {"enabled": enabled}} if not enabled else {"l1": {}}
    lines, well = look(fleet(workers=1, host_tokens=8192).urls, tiers=told)
    assert well, lines
    assert any(re.search(r"; \d+ blocks \(gpu \d+, l1 \d+\), ", line) for line in lines)
    monkeypatch.setattr(Offloading, "drain", lambda _: [])
    lines, well = look(fleet(workers=1, host_tokens=8192).urls, tiers=told)
    silent = having(lines, "no block on L1")
    assert (len(silent), well) == (enabled, not enabled)
    assert all("LMCACHE_ENABLE_KV_EVENTS" in line for line in silent)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            (TokenUsage, "openai", lambda one: {"prompt_tokens": one.prompt}),
            "start vLLM with --enable-prompt-tokens-details",
        ),
        ((BlockCache, "match", lambda *_: []), "start vLLM with --enable-prefix-caching"),
        (
            (ZmqEventPublisher, "publish", lambda *_: None),
            "announced nothing of it: start vLLM with --kv-events-config",
        ),
    ],
)
def test_a_flag_that_is_missing(
    fleet: MakeFleet,
    look: Look,
    monkeypatch: pytest.MonkeyPatch,
    broken: tuple[type, str, Callable[..., Any]],
    said: str,
) -> None:
    """If cached tokens are not reported, a prompt is computed twice, or nothing is announced, the
    line names the vLLM flag to set."""
    monkeypatch.setattr(*broken)
    lines, well = look(fleet(workers=1).urls)
    assert not well
    assert having(lines, said)


@pytest.mark.parametrize("publishing", [True, False])
def test_what_is_subscribed_and_what_is_missing(
    fleet: MakeFleet, look: Look, publishing: bool
) -> None:
    """The line names the vLLM flag to set if events are missing."""
    lines, well = look(fleet(workers=1, kv_events=publishing).urls, ask=False)
    assert well is publishing
    (line,) = having(lines, "KV events")
    assert ("subscribed, no event yet, sequence -1, gaps 0" if publishing else FLAG) in line
    assert "--enable-prompt-tokens-details" not in line
    assert ("cached tokens reported: not known" in line) is publishing
    unheard = "block names: not comparable, none was heard yet"
    assert len(having(lines, unheard)) == publishing


@pytest.mark.parametrize("seeds", [("",), ("", "7")])
def test_block_names_are_compared(fleet: MakeFleet, look: Look, seeds: tuple[str, ...]) -> None:
    """Workers should give the same names to the blocks of a prompt; otherwise a shared store has
    them twice, and the line says how to avoid that. Events of earlier prompts are replayed."""
    simulated = fleet(workers=2, hash_seeds=seeds)
    for number, url in enumerate(simulated.urls):
        told = {"model": "toy", "prompt": f"{number} is another " * 20, "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=told).status_code == 200
    lines, well = look(simulated.urls, ask=False)
    assert len(having(lines, "not comparable with others, no block seen in common")) == 2
    assert len(having(lines, "s ago (replayed), sequence 0, gaps 0")) == 2
    lines, asked_well = look(simulated.urls)
    said = "those of the others, of 1 blocks in common" if len(seeds) == 1 else "PYTHONHASHSEED"
    assert len([line for line in having(lines, "block names") if said in line]) == 2
    assert len(having(lines, "cached tokens are reported")) == 2
    assert len(having(lines, "a repeated prompt: 512 of 520 tokens were cached")) == 2
    assert (well, asked_well) == (True, True), "nothing is shared: no harm is done"


def test_an_engine_that_cannot_be_heard(fleet: MakeFleet, look: Look) -> None:
    """Nothing publishes at the configured address, and without a replay endpoint missed events
    would be lost. A controller that cannot be reached is named."""
    worker = {"url": fleet(workers=1).urls[0], "kv_events": "tcp://127.0.0.1:1"}
    lines, well = look([worker], ask=False)
    (line,) = having(lines, "KV events")
    assert not well
    for part in ("not connected, no event yet", "give vLLM a replay_endpoint", FLAG):
        assert part in line
    lines, well = look([worker], ask=False, controller="http://127.0.0.1:1")
    assert not well
    assert having(lines, "pool default: controller http://127.0.0.1:1: no controller (could not")


@pytest.mark.parametrize(
    ("deadline", "slow", "said"),
    [("300ms", 1, "answers"), ("1ms", 99, "answers, but in ")],
    ids=["the first answer", "every answer"],
)
def test_a_slow_controller_is_no_failure(
    stub: MakeStub, fleet: MakeFleet, look: Look, *, deadline: str, slow: int, said: str
) -> None:
    """A first answer that is slow says nothing of the others; slow ones are told of."""
    controller = stub([])  # (a script of its own, as it is changed in place)
    answer = msgspec.msgpack.encode([{}, {}, [16], {}])
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer)
    pauses = iter((0.5, *[0.02] * (slow - 1)))

    def pause() -> bool:
        controller.script[:] = [next(pauses, 0.0), head + answer, pause]
        return True

    pause()
    told = {"url": controller.url, "deadline": deadline}
    lines, well = look(fleet(workers=1).urls, ask=False, controller=told)
    (line,) = having(lines, " controller ")
    assert line.startswith(f"pool default: controller {controller.url}: {said}")
    assert ("controller.deadline is 1ms" in line) == (slow > 1)
    assert well


def test_a_store_is_looked_at(
    fleet: MakeFleet, look: Look, redis: RedisServer, write: Write
) -> None:
    """One that answers, one with chunks that do not fit the settings, and one that is down."""
    urls, told = fleet(workers=1).urls, tiers(redis, {**SERVER, "model": "toy"})
    lines, _ = look(urls, tiers=told)
    assert "pool default: L2: it answers" in lines
    write(range(64), 64, rank="02000200")
    lines, well = look(urls, tiers=told)
    assert (well, bool(having(lines, "holds chunks of toy with 2 GPUs"))) == (False, True)
    redis.kill()
    lines, well = look(urls, tiers=told)
    said = f"pool default: L2: no Redis answers at {redis.url}"
    assert (well, bool(having(lines, said))) == (False, True)
