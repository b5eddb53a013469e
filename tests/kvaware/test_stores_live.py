"""Chunks that LMCache keeps in a real Redis count for all workers; losing Redis is survived."""

import asyncio
import sys
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.fleet.build import CannotBuild
from router.kv.attach import refuse_lost_stores
from router.reload import idle
from router.settings.model import Settings
from strategies.api import Prompt
from tests.commands import run
from tests.kvaware.asking import EXACT, TEXT, ask, credited, predicted
from tests.kvaware.conftest import MakeFleet, MakeKvAware
from tests.reload.changing import change
from tests.sessions.redis_server import RedisServer
from tests.stores.conftest import Write, redis, write
from tests.support import Router, until

__all__ = ["redis", "write"]
CHAT = [{"role": "user", "content": TEXT}]


def stored(redis: RedisServer) -> dict[str, object]:
    """Return the settings of tiers with this store."""
    return {"l2": {"lmcache": {"redis": redis.url, "chunk": 64, "deadline": "5s"}}}


def tokens_of(router: Router) -> list[int]:
    """Return the prompt's token ids according to the worker."""
    worker = router.worker()
    asked = {"model": "toy", "messages": CHAT}
    answer = httpx.post(f"{worker.url}/tokenize", json=asked)
    return list(answer.json()["tokens"])


def ready(router: Router) -> str:
    """Return the status of the readiness check."""
    return str(router.http.get("/health/ready").json()["status"])


def test_what_lmcache_wrote_counts_for_all(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer, write: Write
) -> None:
    """Whole chunks in the store are predicted on every worker, with the reason `l2`."""
    simulated = fleet(workers=2)
    router = kvaware(*simulated.urls, strategy=EXACT, tiers=stored(redis))
    assert ask(router, "before it").headers["x-warmroute-decision"].startswith("cold")
    ids = tokens_of(router)
    write(ids, 64)
    whole = len(ids) // 64 * 64
    assert list(credited(router, TEXT).values()) == [whole, whole]
    answer = ask(router, TEXT)
    assert answer.headers["x-warmroute-decision"].startswith("l2;")
    assert predicted(answer) == whole > 300
    asked = router.metric("warmroute_kv_store_questions_total", pool="default", outcome="found")
    assert asked == 2  # once to explain, once to decide
    assert router.metric("warmroute_kv_store_up", pool="default") == 1


def test_a_redis_that_dies_costs_nobody_an_answer(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer, write: Write
) -> None:
    """Readiness is degraded but every request is answered; L2 does not count until Redis is
    back."""
    simulated = fleet(workers=2)
    router = kvaware(*simulated.urls, strategy=EXACT, tiers=stored(redis))
    write(tokens_of(router), 64)
    redis.kill()
    for number in range(8):
        answer = ask(router, f"{number} {TEXT}")
        assert not answer.headers["x-warmroute-decision"].startswith("l2")
    said = router.http.get("/health/ready")
    assert (said.status_code, ready(router)) == (200, "degraded")
    assert said.json()["stores"] == {"default": "down"}
    assert router.metric("warmroute_kv_store_up", pool="default") == 0
    redis.start()
    numbers = count()

    def is_back() -> bool:
        ask(router, f"again {next(numbers)}")
        return ready(router) == "ready"

    until(is_back)
    write(tokens_of(router), 64)
    assert ask(router, TEXT).headers["x-warmroute-decision"].startswith("l2;")


@pytest.mark.parametrize(
    ("strategy", "told", "code", "said"),
    [
        (
            "{name: session, over: kvaware}",
            "redis: redis://127.0.0.1:1",
            1,
            "tiers.l2.lmcache.redis: no Redis answers at redis://127.0.0.1:1: Connection refused",
        ),
        (
            "kvaware",
            "coordinator: http://127.0.0.1:1",
            1,
            "tiers.l2.lmcache.coordinator: no coordinator answers at http://127.0.0.1:1",
        ),
    ],
)
def test_k4_a_wrong_url_ends_the_start(
    tmp_path: Path, strategy: str, told: str, code: int, said: str
) -> None:
    """The error names the setting, whether the URL is invalid or nothing answers there: row K4 of
    docs/hyperpod.md."""
    file = tmp_path / "warmroute.yaml"
    file.write_text(
        f"""listen: 127.0.0.1:0
strategy: {strategy}
tiers: {{l2: {{lmcache: {{{told}}}}}}}
workers: ["http://127.0.0.1:9"]
"""
    )
    done = run("serve", "--config", file)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert "listens on" not in done.stderr


def test_a_store_that_nobody_asks_ends_nothing() -> None:
    """A store that no strategy uses only causes a warning; if one pool's strategy uses it, it must
    be reachable."""
    told: dict[str, Any] = {
        "strategy": "roundrobin",
        "workers": ["http://127.0.0.1:9"],
        "tiers": {"l2": {"lmcache": {"redis": "redis://127.0.0.1:1"}}},
    }
    settings = Settings.model_validate(told)
    asyncio.run(refuse_lost_stores(settings))
    (line,) = idle(settings)
    assert line.startswith("tiers.l2.lmcache.redis: no pool has a strategy that asks it")
    del told["workers"]
    told["pools"] = [
        {"name": name, "models": [f"{name}/*"], "workers": [f"http://{name}:9"], "strategy": name}
        for name in ("roundrobin", "kvaware")
    ]
    with pytest.raises(CannotBuild, match="no Redis answers"):
        asyncio.run(refuse_lost_stores(Settings.model_validate(told)))


@pytest.mark.parametrize("after", ["prefixaware", "kvaware"])
def test_a_store_that_nobody_asks_any_more_is_let_go(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer, after: str
) -> None:
    """After a change to a strategy without it, a store is no longer reported as down; `kvaware`
    keeps it."""
    (url,) = fleet(workers=1).urls
    router = kvaware(url, tiers=stored(redis))
    redis.kill()
    store = router.door.memories.stores["default"]
    asked = Prompt("toy", 400, ids=bytes(1600))
    asking = list[asyncio.Future[None]]()
    router.call(lambda: asking.append(asyncio.ensure_future(store.ask(asked))))
    until(asking[0].done)
    assert router.http.get("/health/ready").json()["stores"] == {"default": "down"}
    change(router, url, strategy=after, tiers=stored(redis))
    stays = after == "kvaware"
    assert ("stores" in router.http.get("/health/ready").json()) is stays
    assert ("warmroute_kv_store_up{" in router.http.get("/metrics").text) is stays


def test_a_store_that_cannot_be_asked_changes_nothing(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the module that names chunks is not installed, the whole change is refused; with a
    strategy that uses no store, it is applied as a whole."""
    old, new = fleet(workers=2).urls
    router = kvaware(old)
    pools = router.door.fleet.pools
    monkeypatch.setitem(sys.modules, "blake3", None)
    asked: dict[str, Any] = {"tiers": stored(redis), "limits": {"queue": 77}}
    with pytest.raises(CannotBuild, match=r"blake3 is not installed.*warmroute\[lmcache\]"):
        change(router, old, new, strategy="kvaware", **asked)
    assert router.door.fleet.pools == pools
    assert [worker.url for worker in router.door.fleet.workers] == [old]
    change(router, old, new, strategy="prefixaware", **asked)
    assert len(list(router.door.fleet.workers)) == 2


@pytest.mark.long
def test_chunks_that_do_not_come_are_said(
    fleet: MakeFleet,
    kvaware: MakeKvAware,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Workers compute but write to some other store: the log, the readiness check and a metric say
    so."""
    monkeypatch.setattr("router.kv.lmcache.shared_store.STORE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("router.kv.lmcache.shared_store.MIN_CHECK_INTERVAL_S", 0.0)
    router = kvaware(*fleet(workers=2).urls, strategy=EXACT, tiers=stored(redis))
    numbers = count()

    def is_wrong() -> bool:
        ask(router, f"{next(numbers)} {TEXT}")
        return bool(router.http.get("/health/ready").json().get("stores") == {"default": "wrong"})

    until(is_wrong)
    assert router.metric("warmroute_kv_store_wrong", pool="default") == 1
    missing = {"pool": "default", "outcome": "missing"}
    assert router.metric("warmroute_kv_store_computed_total", **missing) >= 4
    (line,) = [one for one in caplog.messages if "no prompt will be found on L2" in one]
    assert "(chunk 64, model toy, gpus 1): compare them with the engines' own" in line
    assert f"and see that they write to {redis.url}" in line
