"""The rows of docs/hyperpod.md on tiers, over real sockets; tests that take `redis` use one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from simulator.worker import SimulatedWorker
from tests.kvaware.conftest import MakeFleet, MakeKvAware
from tests.kvaware.test_kvaware_live import CHAT, ask, cached, chat, predicted
from tests.kvaware.test_tiers_live import EXACT, blocks, level
from tests.sessions.redis_server import RedisServer
from tests.support import Router, until

#: A little over 400 tokens with the model's tokenizer.
TEXT = "for everyone " * 60
#: Settings of host memory, and of a store.
L1, L2 = {"host_tokens": 4096}, {"store_tokens": 100_000}

Asked = Callable[[str], tuple[str, int]]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A real Redis server."""
    with RedisServer() as server:
        yield server


def loaded(simulated: FleetThread) -> tuple[int, int]:
    """Return the tokens loaded from L1 and from L2 by all workers."""
    totals = [worker.engine.totals for worker in simulated.workers]
    return sum(one.l1_hits for one in totals), sum(one.l2_hits for one in totals)


def asking(router: Router, simulated: FleetThread) -> Asked:
    """Return a function that asks, checks the prediction, and returns reason and cached tokens."""

    def asked(text: str) -> tuple[str, int]:
        answer = ask(router, text)
        assert predicted(answer) == cached(answer)
        until(lambda: level(router, simulated))
        reason = answer.headers["x-warmroute-decision"].partition(";")[0]
        return reason, cached(answer)

    return asked


def post(router: Router, text: str) -> httpx.Response:
    """Ask without waiting for the router to be idle."""
    answer = router.http.post(CHAT, json=chat(text))
    assert answer.status_code == 200
    return answer


@contextmanager
def busy(router: Router, name: str) -> Iterator[None]:
    """Book 100 seconds of prefill on a worker."""
    ((pool, _memory),) = router.door.memories.pools()
    (worker,) = [one for one in pool.workers if one.name == name]
    booking = worker.load.book(monotonic(), 100.0, 100, stream=True)
    try:
        yield
    finally:
        worker.load.release(booking, monotonic())


def forget_gpu(router: Router, simulated: FleetThread) -> None:
    """Drop what the GPUs hold, and nothing else, and wait until the router knows."""
    for worker in simulated.workers:
        assert simulated.call(worker.engine.reset_prefix_cache)
        simulated.call(partial(_tell, worker))
    until(lambda: level(router, simulated))


def _tell(worker: SimulatedWorker) -> None:
    """Publish the change, which an idle engine would do only with its next step."""
    worker._publish(worker.engine.step().changes)


def test_r8_a_short_match_falls_back(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """The least loaded takes a prompt with a match below the threshold; a full match goes to its
    holder: row R8."""
    simulated = fleet(workers=2)
    router = kvaware(*simulated.urls, strategy={**EXACT, "threshold": 100})
    asked, longer = asking(router, simulated), TEXT + "something else entirely " * 90
    home = ask(router, TEXT).headers["x-warmroute-worker"]
    until(lambda: level(router, simulated))
    with busy(router, home):
        answer = post(router, longer)
    assert (answer.headers["x-warmroute-worker"] == home, cached(answer)) == (False, 0)
    until(lambda: router.idle() and level(router, simulated))
    reason, found = asked(longer)
    assert (reason, found > 800) == ("prefix", True)
    told = router.http.get("/metrics").text
    assert 'warmroute_decisions_total{pool="default",reason="below_threshold"} 2.0' in told


def test_k1_l1_l2_compute_and_promotion(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer
) -> None:
    """Computed, from L1, from L2 after eviction from L1, and from L1 again: row K1."""
    simulated = fleet(workers=1, host_tokens=1024, store_url=redis.url, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT)
    asked = asking(router, simulated)
    other = "something else entirely " * 90

    def once(text: str, reason: str, l1: bool, l2: bool) -> None:
        before = loaded(simulated)
        assert asked(text)[0] == reason
        after = loaded(simulated)
        assert (after[0] > before[0], after[1] > before[1]) == (l1, l2)

    once(TEXT, "cold", l1=False, l2=False)
    forget_gpu(router, simulated)
    once(TEXT, "l1", l1=True, l2=False)
    asked(other)
    forget_gpu(router, simulated)
    once(TEXT, "l2", l1=False, l2=True)
    forget_gpu(router, simulated)
    once(TEXT, "l1", l1=True, l2=False)


def test_k2_written_to_both(fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer) -> None:
    """After one request, its blocks are on that worker's L1 and in L2: row K2."""
    simulated = fleet(workers=2, store_url=redis.url, **L1, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT)
    asking(router, simulated)(TEXT)

    def both() -> bool:
        held = blocks(router)
        ((writer, on_gpu),) = [(w, n) for (w, tier), n in held.items() if tier == "GPU" and n]
        return held.get((writer, "L1")) == held.get(("", "L2")) == on_gpu > 20

    until(both)  # writes to the store are announced a moment later


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


def test_a_store_that_dies_costs_time_alone(
    fleet: MakeFleet, kvaware: MakeKvAware, redis: RedisServer
) -> None:
    """Every request is answered; what the store held is computed again."""
    simulated = fleet(workers=2, store_url=redis.url, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT)
    ask(router, TEXT)
    until(lambda: level(router, simulated))
    redis.kill()
    for number in range(6):
        ask(router, f"{number} " + TEXT)
    forget_gpu(router, simulated)
    assert cached(ask(router, TEXT)) == 0
    assert loaded(simulated) == (0, 0)


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


def test_k5_l1_that_is_off_hides_no_l2(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Blocks on both L1, which is disabled, and L2 are found on L2, as predicted: row K5."""
    simulated = fleet(workers=1, **L1, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT, tiers={"l1": {"enabled": False}})
    asked = asking(router, simulated)
    assert asked(TEXT) == ("cold", 0)
    forget_gpu(router, simulated)
    until(lambda: level(router, simulated))
    reason, found = asked(TEXT)
    assert (reason, found > 300) == ("l2", True)


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


def test_k7_whatever_engines_call_their_blocks(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Engines with different hash seeds are both found, by tokens: row K7."""
    simulated = fleet(workers=2, hash_seeds=("0", "123"))
    router = kvaware(*simulated.urls, strategy=EXACT)
    asked = asking(router, simulated)
    asked(TEXT)
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
    assert asked(TEXT)[1] > 300
