"""Blocks in host memory (L1) and in a shared store (L2): followed, used, and corrected.

Names with a row (R8, K1 to K6) are those of docs/hyperpod.md; tests that take `redis` use a real
one.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.kv.tiers import Tiers
from simulator.settings import FleetSettings
from tests.kvaware.asking import (
    CHAT,
    EXACT,
    TEXT,
    ask,
    blocks,
    busy,
    cached,
    chat,
    forget_gpu,
    level,
    predicted,
    reason,
)
from tests.kvaware.conftest import MakeFleet, MakeKvAware
from tests.sessions.redis_server import RedisServer
from tests.stores.conftest import redis
from tests.support import Router, until

__all__ = ["redis"]
#: Settings of host memory, and of a store.
L1, L2 = {"host_tokens": 4096}, {"store_tokens": 100_000}
#: What makes a worker report it: a field of the request.
LMCACHE: dict[str, Any] = {"kv_transfer_params": {"cached_token_stats": True}}


SGLANG: dict[str, Any] = {"return_cached_tokens_details": True}


def loaded(simulated: FleetThread) -> tuple[int, int]:
    """Return the tokens loaded from L1 and from L2 by all workers."""
    totals = [worker.engine.totals for worker in simulated.workers]
    return sum(one.l1_hits for one in totals), sum(one.l2_hits for one in totals)


def asked(router: Router, simulated: FleetThread, text: str) -> tuple[str, int]:
    """Ask, check the prediction, and return the reason and the cached tokens."""
    answer = ask(router, text)
    assert predicted(answer) == cached(answer)
    until(lambda: level(router, simulated))
    return reason(answer), cached(answer)


def post(router: Router, text: str) -> httpx.Response:
    """Ask without waiting for the router to be idle."""
    answer = router.http.post(CHAT, json=chat(text))
    assert answer.status_code == 200
    return answer


def hits(router: Router) -> dict[str, float]:
    """Return the hit tokens by tier, from the metrics."""
    lines = router.http.get("/metrics").text.splitlines()
    mark = "warmroute_kv_hit_tokens_total{"
    return {
        line.split('tier="')[1].split('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(mark)
    }


def behind(simulated: FleetThread) -> list[Tiers[bytes]]:
    """Return the workers' tiers behind their GPUs."""
    return [worker.engine.tiers.tiers for worker in simulated.workers if worker.engine.tiers]


@pytest.mark.parametrize("bare", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_the_gpu_lost_is_found_in_the_hosts_memory(
    fleet: MakeFleet, kvaware: MakeKvAware, bare: bool
) -> None:
    """Predictions match reports, whether events contain tokens or only names."""
    simulated = fleet(workers=1, kv_tokens=512, host_tokens=8192, bare_events=bare)
    router = kvaware(*simulated.urls, strategy=EXACT)
    hits = 0
    for number in range(16):
        answer = ask(router, f"{number % 4} " * 100)
        assert predicted(answer) == cached(answer)
        hits += cached(answer) > 0
        until(lambda: level(router, simulated))
    assert hits == 12
    worker = router.worker().name
    assert blocks(router)[worker, "L1"] > blocks(router)[worker, "GPU"] > 0


def test_r8_a_short_match_falls_back(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """The least loaded takes a prompt with a match below the threshold; a full match goes to its
    holder: row R8."""
    simulated = fleet(workers=2)
    router = kvaware(*simulated.urls, strategy={**EXACT, "threshold": 100})
    longer = TEXT + "something else entirely " * 90
    home = ask(router, TEXT).headers["x-warmroute-worker"]
    until(lambda: level(router, simulated))
    with busy(router, home):
        answer = post(router, longer)
    assert (answer.headers["x-warmroute-worker"] == home, cached(answer)) == (False, 0)
    until(lambda: router.idle() and level(router, simulated))
    why, found = asked(router, simulated, longer)
    assert (why, found > 800) == ("prefix", True)
    told = router.http.get("/metrics").text
    assert 'warmroute_decisions_total{pool="default",reason="below_threshold"} 2.0' in told


def test_k1_l1_l2_compute_and_promotion(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer
) -> None:
    """Computed, from L1, from L2 after eviction from L1, and from L1 again: row K1."""
    simulated = fleet(workers=1, host_tokens=1024, store_url=redis.url, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT)
    other = "something else entirely " * 90

    def once(text: str, why: str, l1: bool, l2: bool) -> None:
        before = loaded(simulated)
        assert asked(router, simulated, text)[0] == why
        after = loaded(simulated)
        assert (after[0] > before[0], after[1] > before[1]) == (l1, l2)

    once(TEXT, "cold", l1=False, l2=False)
    forget_gpu(router, simulated)
    once(TEXT, "l1", l1=True, l2=False)
    asked(router, simulated, other)
    forget_gpu(router, simulated)
    once(TEXT, "l2", l1=False, l2=True)
    forget_gpu(router, simulated)
    once(TEXT, "l1", l1=True, l2=False)


@pytest.mark.long
def test_k3_what_a_dead_worker_wrote_is_found(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer
) -> None:
    """Computed on one worker, which is killed; the other loads it from the store, as predicted: row
    K3."""
    simulated = fleet(workers=2, store_url=redis.url, **L1, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT)
    answer = ask(router, TEXT)
    until(lambda: level(router, simulated))
    first = answer.headers["x-warmroute-worker"]
    (dead,) = [one for one in simulated.workers if one.url.endswith(first)]
    simulated.run(dead.stop())
    simulated.workers.remove(dead)
    ((pool, _memory),) = router.door.memories.pools()
    until(lambda: first not in [one.name for one in pool.workers if one.ready])
    answer = ask(router, TEXT)
    assert answer.headers["x-warmroute-worker"] != first
    assert answer.headers["x-warmroute-decision"].startswith("l2;")
    assert predicted(answer) == cached(answer) == loaded(simulated)[1] > 300


def test_k4_a_store_that_is_not_there_ends_the_start(stack: ExitStack) -> None:
    """The start fails with a clear error: row K4."""
    settings = FleetSettings(store_url="redis://127.0.0.1:1", store_tokens=1000)
    with pytest.raises(ConnectionError, match="no Redis answers"):
        stack.enter_context(FleetThread(settings))


def test_k5_tiers_that_are_off(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Blocks on disabled tiers do not count and have no series: row K5."""
    simulated = fleet(workers=1, **L1, **L2)
    off = {"l1": {"enabled": False}, "l2": {"enabled": False}}
    router = kvaware(*simulated.urls, strategy=EXACT, tiers=off)
    ask(router, TEXT)
    until(lambda: level(router, simulated))
    forget_gpu(router, simulated)
    until(lambda: level(router, simulated))
    answer = ask(router, TEXT)
    assert (predicted(answer), cached(answer) > 300) == (0, True)
    told = router.http.get("/metrics").text
    assert 'tier="gpu"' in told
    assert 'tier="l1"' not in told
    assert 'tier="l2"' not in told


def test_k6_what_the_store_has_goes_to_the_least_loaded(
    fleet: MakeFleet, kvaware: MakeKvAware
) -> None:
    """If only L2 has the prompt, the reason says so and the cost is that of loading: row K6."""
    simulated = fleet(workers=3, **L2)
    slow = {"bytes_per_token": "1MiB", "l2": {"bandwidth": "64GiB"}}  # 65,536 tokens a second
    router = kvaware(*simulated.urls, strategy=EXACT, tiers=slow)
    writer = ask(router, TEXT).headers["x-warmroute-worker"]
    forget_gpu(router, simulated)
    until(lambda: level(router, simulated))
    until(lambda: blocks(router).get((writer, "GPU")) == 0)
    with busy(router, writer):
        answer = post(router, TEXT)
    said = answer.headers["x-warmroute-decision"]
    assert answer.headers["x-warmroute-worker"] != writer
    assert said.startswith("l2;")
    assert cached(answer) == predicted(answer) == loaded(simulated)[1] > 300
    prefill = float(said.split("prefill=")[1].split("s")[0])
    assert abs(prefill - cached(answer) / 65_536) < 0.005


@pytest.mark.long
def test_k7_whatever_engines_call_their_blocks(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Engines with different hash seeds are both found, by tokens: row K7."""
    simulated = fleet(workers=2, hash_seeds=("0", "123"))
    router = kvaware(*simulated.urls, strategy=EXACT)
    asked(router, simulated, TEXT)
    ((pool, memory),) = router.door.memories.pools()
    holder = next(place.worker for place in memory.index.caches() if place.blocks)
    (worker,) = [one for one in pool.workers if one.name == holder]
    with busy(router, worker.name):
        assert cached(post(router, TEXT)) == 0
    until(lambda: level(router, simulated))
    held = [place for place in memory.index.caches() if place.blocks]
    assert len(held) == 2
    assert held[0].blocks == held[1].blocks
    names = [{name for name, _ in place.names} for place in held]
    assert names[0].isdisjoint(names[1])
    assert asked(router, simulated, TEXT)[1] > 300


@pytest.mark.parametrize("fields", [SGLANG, pytest.param(LMCACHE, marks=pytest.mark.long)])
def test_hits_are_counted_where_the_worker_found_them(
    fleet: MakeFleet, kvaware: MakeKvAware, fields: dict[str, Any]
) -> None:
    """If L1 was emptied without an event, hits there are not counted just because they were
    predicted."""
    simulated = fleet(workers=1, **L1, **L2)
    trusted = ({"url": url, "engine_fields": True} for url in simulated.urls)
    router = kvaware(*trusted, strategy=EXACT)
    ask(router, TEXT)
    until(lambda: level(router, simulated))
    forget_gpu(router, simulated)
    (tiers,) = behind(simulated)
    simulated.call(tiers.clear)
    answer = ask(router, TEXT, **fields)
    until(lambda: level(router, simulated))
    assert reason(answer) == "l1"
    assert predicted(answer) == cached(answer) > 300
    found = hits(router)
    if fields is SGLANG:
        assert found == {"l2": cached(answer)}
    else:  # it reports only how much came from the GPU, and that the rest did not
        assert found == {"l1": cached(answer)}
    forget_gpu(router, simulated)
    answer = ask(router, TEXT, **fields)
    assert reason(answer) == "l1", "it came there again when it was loaded, and that was told"
    assert predicted(answer) == cached(answer)
    assert sum(hits(router).values()) == 2 * cached(answer)


def test_what_a_store_lost_in_silence_is_found_out(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """If a store lost blocks without an event, one answer is enough to stop expecting them."""
    simulated = fleet(workers=2, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT)
    ask(router, TEXT)
    until(lambda: blocks(router).get(("", "L2"), 0) > 20)  # announced a moment later
    until(lambda: level(router, simulated))
    on_l2 = blocks(router)["", "L2"]
    forget_gpu(router, simulated)
    store = behind(simulated)[0].store
    for tiers in behind(simulated):
        simulated.call(partial(setattr, tiers, "store", None))
    answer = ask(router, TEXT, **SGLANG)
    assert (reason(answer), cached(answer)) == ("l2", 0)
    assert predicted(answer) > 300
    assert blocks(router)["", "L2"] == on_l2 - 1, "none of it is reached without its first"
    missed = router.http.get("/metrics").text.split("warmroute_kv_blocks_missed_total{")
    assert 'tier="l2"} 1.0' in "".join(missed)
    for tiers in behind(simulated):
        simulated.call(partial(setattr, tiers, "store", store))


@pytest.mark.long
def test_a_promotion_that_was_none_is_taken_back(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """The worker reports that it still loads from L2, so that is expected from then on."""
    simulated = fleet(workers=1, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT, tiers={"l2": {"promotes": "l1"}})
    reasons = []
    for _ in range(4):
        reasons.append(reason(ask(router, TEXT, **SGLANG)))
        until(lambda: level(router, simulated))
        forget_gpu(router, simulated)
    assert reasons[:3] == ["cold", "l2", "l1"]
    assert hits(router)["l2"] == sum(hits(router).values())
