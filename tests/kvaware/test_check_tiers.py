"""`warmroute check --live` finds settings that are often forgotten in fleets with tiers."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from router.cli import check_live as check_tiers
from router.cli.check_live import check_live
from router.kv.lmcache.names import naming
from router.settings.fleet import LmcacheSettings
from router.settings.model import Settings
from simulator.api.generation import TokenUsage
from simulator.engine.core import Engine
from simulator.engine.request import EngineRequest
from simulator.fleet import FleetThread
from simulator.kv.cache import BlockCache
from simulator.kv.events import ZmqEventPublisher
from simulator.kv.tiers import Offloading
from tests.kvaware.conftest import MakeFleet
from tests.sessions.redis_server import RedisServer

#: Settings of `tiers.l2.lmcache` that match the engines of a sound fleet, for either way of naming.
ENGINE: dict[str, Any] = {"names": "engine", "hash": "sha256_cbor", "seed": "0", "chunk": 64}
SERVER: dict[str, Any] = {"names": "server", "chunk": 64}

Look = Callable[..., tuple[list[str], bool]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for what does not come."""
    monkeypatch.setattr(check_tiers, "TIER_EVENTS_TIMEOUT_S", 0.5)
    monkeypatch.setattr(check_tiers, "STORED_S", 0.5)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """The Redis that all engines should write to."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def look(folder: Path) -> Look:
    """Return the lines that the check prints about workers, and whether all is well."""

    def looked(simulated: FleetThread, **settings: Any) -> tuple[list[str], bool]:
        asked = {"workers": simulated.urls, "strategy": "kvaware", "tokenizer": str(folder)}
        lines, well = asyncio.run(check_live(Settings.model_validate({**asked, **settings})))
        return [line for line in lines if ": worker " in line and ": ready" not in line], well

    return looked


def writes(monkeypatch: pytest.MonkeyPatch, url: str, engines: Sequence[dict[str, Any]]) -> None:
    """Write what simulated workers compute to a Redis, under the names LMCache gives it.

    Engines take their settings from `engines` in the order of their first requests, as nothing else
    identifies them.
    """
    added, place = Engine.add, dict[int, int]()

    def add(engine: Engine, request: EngineRequest, now: float) -> None:
        added(engine, request, now)
        told = engines[place.setdefault(id(engine), len(place)) % len(engines)]
        found = naming(LmcacheSettings(redis=url, **told))
        with Redis.from_url(url) as client:
            for name in found.names(request.tokens.tobytes(), ""):
                for key in found.keys(request.lora_name or "toy", name)[-1]:
                    client.set(key, b"kv")

    monkeypatch.setattr(Engine, "add", add)


def tiers(redis: RedisServer, told: dict[str, Any]) -> dict[str, Any]:
    """Return the router's settings of tiers."""
    return {"l2": {"lmcache": {"redis": redis.url, "deadline": "5s", **told}}}


@pytest.mark.parametrize("told", [ENGINE, SERVER])
def test_all_is_well(
    fleet: MakeFleet,
    look: Look,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, Any],
) -> None:
    """Workers that are as they should be are reported with the usual lines only."""
    writes(monkeypatch, redis.url, [told])
    lines, well = look(fleet(workers=2, host_tokens=8192), tiers=tiers(redis, told))
    assert well, lines
    usual = (": KV events: ", ": block names: ", ": a repeated prompt: ")
    assert all(any(words in line for words in usual) for line in lines)


@pytest.mark.parametrize(
    "mistake", [{"seed": "123"}, {"chunk": 128}, {"hash": "sha256"}, {"dtype": "half"}]
)
def test_one_worker_names_chunks_otherwise(
    fleet: MakeFleet,
    look: Look,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    mistake: dict[str, Any],
) -> None:
    """If one worker has another seed, chunk size, hash or type, only that worker is reported, with
    what was expected."""
    simulated = fleet(workers=2)
    writes(monkeypatch, redis.url, [ENGINE, {**ENGINE, **mistake}])
    lines, well = look(simulated, tiers=tiers(redis, ENGINE))
    assert not well
    (line,) = [line for line in lines if "not on L2" in line]
    assert "chunk 64, model toy, gpus 1, hash sha256_cbor, PYTHONHASHSEED 0" in line
    assert redis.url in line


def test_workers_are_asked_whoever_listens_to_them(
    fleet: MakeFleet, look: Look, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores are checked with a remote controller too, which does not ask them; events are not, as
    the controller receives them."""
    writes(monkeypatch, redis.url, [ENGINE, {**ENGINE, "seed": "123"}])
    elsewhere = {"url": "http://127.0.0.1:1"}
    lines, _ = look(fleet(workers=2), tiers=tiers(redis, ENGINE), controller=elsewhere)
    assert len([line for line in lines if "not on L2" in line]) == 1
    assert not any("announce" in line for line in lines)


@pytest.mark.parametrize("mistake", [{"chunk": 256}, {"gpus": 2}, {"model": "other"}, ENGINE])
def test_the_router_expects_other_names(
    fleet: MakeFleet,
    look: Look,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    mistake: dict[str, Any],
) -> None:
    """Then every worker is reported."""
    writes(monkeypatch, redis.url, [SERVER])
    lines, well = look(fleet(workers=2), tiers=tiers(redis, {**SERVER, **mistake}))
    assert not well
    assert len([line for line in lines if "not on L2" in line]) == 2


def test_no_adapter_is_asked(
    fleet: MakeFleet, look: Look, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check does not use an adapter: its chunks have other names than those of the base model,
    which are looked up."""
    writes(monkeypatch, redis.url, [SERVER])
    simulated = fleet(workers=1, host_tokens=8192, adapters=("a-lora",))
    lines, well = look(simulated, tiers=tiers(redis, {**SERVER, "model": "toy"}))
    assert well, lines


@pytest.mark.parametrize("told", [{"l1": {}}, {"l1": {"enabled": False}}, {}, SERVER])
def test_an_l1_that_does_not_announce(
    fleet: MakeFleet,
    look: Look,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, Any],
) -> None:
    """A silent L1 is an error if one is configured, as always with LMCache; an L1 that announces is
    shown with its blocks."""
    writes(monkeypatch, redis.url, [SERVER])
    asked = tiers(redis, told) if told is SERVER else told
    simulated = fleet(workers=1, host_tokens=8192)
    lines, well = look(simulated, tiers=asked)
    assert well, lines
    assert any(re.search(r"; \d+ blocks \(gpu \d+, l1 \d+\), ", line) for line in lines)
    monkeypatch.setattr(Offloading, "drain", lambda _: [])
    lines, well = look(fleet(workers=1, host_tokens=8192), tiers=asked)
    silent = [line for line in lines if "no block on L1" in line]
    expected = told not in ({}, {"l1": {"enabled": False}})
    assert (len(silent), well) == (expected, not expected)
    assert all("LMCACHE_ENABLE_KV_EVENTS" in line for line in silent)


def test_the_wrong_redis(
    fleet: MakeFleet, look: Look, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, but nothing is ever written to it."""
    with RedisServer() as other:
        writes(monkeypatch, other.url, [SERVER])
        lines, well = look(fleet(workers=1), tiers=tiers(redis, SERVER))
    assert not well
    assert any(f"see that they write to {redis.url}" in line for line in lines)


@pytest.mark.parametrize(
    ("broken", "flag"),
    [
        (
            (TokenUsage, "openai", lambda one: {"prompt_tokens": one.prompt}),
            "prompt-tokens-details",
        ),
        ((BlockCache, "match", lambda *_: []), "prefix-caching"),
    ],
)
def test_a_flag_that_is_missing(
    fleet: MakeFleet,
    look: Look,
    monkeypatch: pytest.MonkeyPatch,
    broken: tuple[type, str, Callable[..., Any]],
    flag: str,
) -> None:
    """If cached tokens are not reported, or a prompt is computed twice, the line names the vLLM
    flag to set."""
    monkeypatch.setattr(*broken)
    lines, well = look(fleet(workers=1))
    assert not well
    assert any(f"start vLLM with --enable-{flag}" in line for line in lines)


def test_events_that_do_not_come(
    fleet: MakeFleet, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher is there but announces nothing, or there is no publisher at all."""
    monkeypatch.setattr(ZmqEventPublisher, "publish", lambda *_: None)
    lines, well = look(fleet(workers=1))
    assert not well
    assert any(
        "announced nothing of it: start vLLM with --kv-events-config" in one for one in lines
    )
    lines, well = look(fleet(workers=1, kv_events=False))
    assert not well
    assert any("no KV events: " in line for line in lines)


def test_a_worker_that_refuses_is_not_judged(
    fleet: MakeFleet, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says what the worker answered."""
    monkeypatch.setattr(check_tiers, "_IDS", range(1 << 30, (1 << 30) + 9))
    lines, well = look(fleet(workers=1))
    assert not well
    assert any("answered 400 to a prompt of token ids" in line for line in lines)
