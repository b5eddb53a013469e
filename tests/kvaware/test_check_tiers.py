"""`warmroute check --live` finds what a fleet with tiers is often started without."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from router import check_tiers
from router.check_live import check_live
from router.settings import Settings
from router.settings_tiers import LmcacheSettings
from simulator.cache import BlockCache
from simulator.engine import Engine
from simulator.generation import Usage
from simulator.offloading import Offloading
from simulator.request import Request
from simulator.thread import FleetThread
from simulator.worker import Worker
from tests.kvaware.conftest import MakeFleet
from tests.sessions.redis_server import RedisServer

#: What the engines of a sound fleet were told, and the router.
ENGINE: dict[str, Any] = {"names": "engine", "hash": "sha256_cbor", "seed": "0", "chunk": 64}
SERVER: dict[str, Any] = {"names": "server", "chunk": 64}

Look = Callable[..., tuple[list[str], bool]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come is not waited for."""
    monkeypatch.setattr(check_tiers, "EVENTS_S", 0.5)
    monkeypatch.setattr(check_tiers, "STORED_S", 0.5)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """The one that all are to write to."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def look(folder: Path) -> Look:
    """What is said of a fleet."""

    def looked(simulated: FleetThread, **settings: Any) -> tuple[list[str], bool]:
        asked = {"workers": simulated.urls, "strategy": "kvaware", "tokenizer": str(folder)}
        lines, well = asyncio.run(check_live(Settings.model_validate({**asked, **settings})))
        return [line for line in lines if ": worker " in line and ": ready" not in line], well

    return looked


def writes(monkeypatch: pytest.MonkeyPatch, url: str, engines: Sequence[dict[str, Any]]) -> None:
    """What simulated workers compute comes to lie in a Redis, named as LMCache beside each names
    it; by the first token's place among them, as they have no other way to know themselves."""
    added, place = Engine.add, dict[int, int]()

    def add(engine: Engine, request: Request, now: float) -> None:
        added(engine, request, now)
        told = engines[place.setdefault(id(engine), len(place)) % len(engines)]
        naming = LmcacheSettings(redis=url, **told).naming
        with Redis.from_url(url) as client:
            for name in naming.names(request.tokens.tobytes(), ""):
                for key in naming.keys(request.lora_name or "toy", name)[-1]:
                    client.set(key, b"kv")

    monkeypatch.setattr(Engine, "add", add)


def tiers(redis: RedisServer, told: dict[str, Any]) -> dict[str, Any]:
    """The router's settings."""
    return {"l2": {"lmcache": {"redis": redis.url, "deadline": "5s", **told}}}


@pytest.mark.parametrize("told", [ENGINE, SERVER])
def test_all_is_well(
    fleet: MakeFleet,
    look: Look,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, Any],
) -> None:
    """Nothing is said of those that are as they should be."""
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
    """Another seed, chunk size, hash or type: it is that one, and what was expected."""
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
    """With a controller too, which asks no store."""
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
    """Of all workers then."""
    writes(monkeypatch, redis.url, [SERVER])
    lines, well = look(fleet(workers=2), tiers=tiers(redis, {**SERVER, **mistake}))
    assert not well
    assert len([line for line in lines if "not on L2" in line]) == 2


def test_no_adapter_is_asked(
    fleet: MakeFleet, look: Look, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks have other names than the base's, under which it is looked for."""
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
    """Is a mistake where there is to be one, as always with LMCache; one that does is shown."""
    writes(monkeypatch, redis.url, [SERVER])
    asked = tiers(redis, told) if told is SERVER else told
    simulated = fleet(workers=1, host_tokens=8192)
    lines, well = look(simulated, tiers=asked)
    assert well, lines
    assert any(re.search(r"; \d+ blocks \(gpu \d+, l1 \d+\), ", line) for line in lines)
    monkeypatch.setattr(Offloading, "_tell", lambda *_: None)
    lines, well = look(fleet(workers=1, host_tokens=8192), tiers=asked)
    silent = [line for line in lines if "no block on L1" in line]
    expected = told not in ({}, {"l1": {"enabled": False}})
    assert (len(silent), well) == (expected, not expected)
    assert all("LMCACHE_ENABLE_KV_EVENTS" in line for line in silent)


def test_the_wrong_redis(
    fleet: MakeFleet, look: Look, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and nothing comes to lie there."""
    with RedisServer() as other:
        writes(monkeypatch, other.url, [SERVER])
        lines, well = look(fleet(workers=1), tiers=tiers(redis, SERVER))
    assert not well
    assert any(f"see that they write to {redis.url}" in line for line in lines)


@pytest.mark.parametrize(
    ("broken", "flag"),
    [
        ((Usage, "openai", lambda one: {"prompt_tokens": one.prompt}), "prompt-tokens-details"),
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
    """Cached tokens that are not told, or a prompt that is computed twice: what would help."""
    monkeypatch.setattr(*broken)
    lines, well = look(fleet(workers=1))
    assert not well
    assert any(f"start vLLM with --enable-{flag}" in line for line in lines)


def test_events_that_do_not_come(
    fleet: MakeFleet, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody listens there, and is told nothing; or nobody is to be heard at all."""
    monkeypatch.setattr(Worker, "_publish", lambda *_: None)
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
    """It says why."""
    monkeypatch.setattr(check_tiers, "_IDS", range(1 << 30, (1 << 30) + 9))
    lines, well = look(fleet(workers=1))
    assert not well
    assert any("answered 400 to a prompt of token ids" in line for line in lines)
