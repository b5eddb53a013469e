"""`kvaware` in front of two real engines with L1 in host memory and one L2 in a real Redis:
predictions are right, and the engines' own counters agree."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from os import environ, pathsep
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
import pytest
from redis import Redis

from controller.index.block_events import Tier
from strategies.cost.prefill import Held
from tests.sessions.redis_server import RedisServer
from tests.support import MakeRouter, Router, until
from tests.vllm.engine import BLOCK, MODEL
from tests.vllm.publishing import (
    CHAT,
    PATIENCE,
    cached,
    memory,
    predicted,
    start,
    trusted,
    words,
)
from tests.vllm.tiered import (
    BLOCK_BYTES,
    GPU,
    L1,
    Event,
    Hits,
    Tiered,
    believed,
    has,
    hearing,
    left_gpu,
    left_l1,
    only,
    other_work,
    reason,
    sent,
    start_all,
    step,
    vllm_cbor,
    whole,
)
from tests.vllm.tiered import computed as computes
from tests.vllm.tiered import found as finds

RESET = "/reset_prefix_cache"


#: The modules that vLLM loads by name.
_MODULES = Path(__file__).parent / "offloading"


def engine(folder: Path, log: Path, redis: str, *flags: str, prefix: str = "kv") -> Tiered:
    """Return an engine with 40 GPU blocks and 80 in host memory; `redis` is a URL."""
    store = {"type": "RedisStore", "module_path": "redis_store", "url": redis, "prefix": prefix}
    made = Tiered(
        folder,
        log,
        "OffloadingConnector",
        spec_name="HostMemory",
        spec_module_path="host_memory",
        cpu_bytes_to_use=L1 * BLOCK_BYTES,
        self_describing_kv_events=True,
        secondary_tiers=[store],
    )
    made.engine.add(*flags)
    path = [str(_MODULES), *filter(None, [environ.get("PYTHONPATH")])]
    made.engine.tell(PYTHONPATH=pathsep.join(path))
    return made


def hits(one: Tiered) -> Hits:
    """Return the tokens that it found, by its own counts.

    Its counts of chunks by tier and of prompts by source have to agree.
    """
    name, source = "vllm:kv_offload_tiering_chunk_hits_total", "vllm:prompt_tokens_cached_by_source"
    found = one.counted(name, source)
    l1, l2 = (int(found.get((name, tier), 0)) * BLOCK for tier in ("0:primary", "1:RedisStore"))
    gpu, *slower = (
        int(found.get((f"{source}_total", where), 0)) for where in ("device", "host", "disk")
    )
    assert slower == [l1, l2]
    return Hits(gpu, l1, l2)


class Fleet(NamedTuple):
    """Two engines and the store that they share."""

    pair: list[Tiered]
    redis: RedisServer

    def other(self, one: Tiered) -> Tiered:
        """Return the other engine."""
        return next(engine for engine in self.pair if engine is not one)


@pytest.fixture(scope="module")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """They name blocks by hashes of CBOR, as the recipes do."""
    if not has("redis"):
        pytest.skip("Redis's client is not installed in the environment that vLLM is in (redis)")
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as opened:
        redis = opened.enter_context(RedisServer())
        named = ("--prefix-caching-hash-algo", "sha256_cbor")
        pair = [engine(model, logs / f"{n}.log", redis.url, *named) for n in range(2)]
        for one in pair:
            opened.callback(one.engine.stop)
        start_all(pair)
        yield Fleet(pair, redis)


@pytest.fixture
def router(fleet: Fleet, route: MakeRouter, model: Path) -> Router:
    """A router in front of both that uses their events."""
    made = start(route, model, *(one.url for one in fleet.pair))
    until(lambda: trusted(made), PATIENCE)
    return made


def computed(router: Router, one: Tiered, text: str, **more: object) -> int:
    """Have an engine compute a new prompt; return the tokens of its full blocks."""
    full = whole(computes(router, one, text, **more))
    lies(router, one, text, Held(full), **more)
    return full


def lies(router: Router, one: Tiered, text: str, where: Held, **more: object) -> None:
    """Wait until the router knows that the prompt lies there."""
    until(lambda: believed(router, one, text, **more) == where, PATIENCE)


def found(router: Router, one: Tiered, text: str, where: Held, **more: Any) -> httpx.Response:
    """Ask for what lies there: the engine finds it there, by its own counts."""
    before = hits(one)
    answer = finds(router, one, text, where, **more)
    assert hits(one).since(before) == Hits(*where)
    return answer


def test_gpu_then_l1_then_l2_then_a_cold_engine(fleet: Fleet, router: Router) -> None:
    """Each tier is predicted, and is what the engine counts."""
    one, text = fleet.pair[0], words(Random(101), 230)
    cold = fleet.other(one)
    full = computed(router, one, text)
    assert full // BLOCK > L1 // 4
    lies(router, cold, text, Held(0, 0, full))
    found(router, one, text, Held(full))

    left_gpu(router, one, text)
    assert reason(found(router, one, text, Held(0, full))) == "l1"
    lies(router, one, text, Held(full))

    left_l1(router, one, text)
    assert reason(found(router, one, text, Held(0, 0, full))) == "l2"
    lies(router, one, text, Held(full))

    assert reason(found(router, cold, text, Held(0, 0, full))) == "l2"
    lies(router, cold, text, Held(full))
    left_gpu(router, cold, text)
    assert reason(found(router, cold, text, Held(0, full))) == "l1", "it was promoted"
    told = {entry["worker"]: entry["blocks"] for entry in router.http.get("/kv").json()}
    for each in fleet.pair:
        assert 0 < told[each.name]["gpu"] < GPU
        assert full // BLOCK <= told[each.name]["l1"] <= L1
        assert memory(router).track_records[each.name].sum == 0


def test_part_of_it_is_on_the_gpu(fleet: Fleet, router: Router) -> None:
    """The rest is loaded from where it lies."""
    one, text = fleet.pair[0], words(Random(102), 230)
    full = computed(router, one, text)
    one.direct(words(Random(103), 150))
    until(lambda: 0 < believed(router, one, text).gpu < full, PATIENCE)
    where = believed(router, one, text)
    assert where == Held(where.gpu, full - where.gpu)
    found(router, one, text, where)


def test_a_prompt_of_whole_blocks(fleet: Fleet, router: Router) -> None:
    """Slower tiers load all of it; on the GPU, the last block is computed."""
    one = fleet.pair[0]
    ids = [5 + (7 * place) % 250 for place in range(12 * BLOCK)]
    asked = {"model": "tiny", "prompt": ids, "max_tokens": 1}

    def told() -> Held:
        path = {"path": "/v1/completions"}
        terms = router.http.post("/explain", params=path, json=asked).json()["workers"]
        term = next(term for term in terms if term["worker"] == one.name)
        l1, l2 = term["l1_tokens"], term["l2_tokens"]
        return Held(term["held_tokens"] - l1 - l2, l1, l2)

    def ask() -> int:
        with only(router, one):
            answer = router.http.post("/v1/completions", json=asked, timeout=60)
        assert predicted(answer) == told_before.total
        return cached(answer)

    told_before = told()
    assert ask() == 0
    until(lambda: told().total == len(ids), PATIENCE)
    told_before = told()
    assert told_before == Held(len(ids) - BLOCK, BLOCK)
    before = hits(one)
    assert ask() == len(ids)
    assert hits(one).since(before) == Hits(*told_before)
    other_work(one, lambda: told().gpu == 0)
    told_before = told()
    assert told_before == Held(0, len(ids))
    before = hits(one)
    assert ask() == len(ids)
    assert hits(one).since(before) == Hits(*told_before)


def test_salts_keep_apart_on_every_tier(fleet: Fleet, router: Router) -> None:
    """Events of slower tiers have no salt, but block names depend on it."""
    one, text = fleet.pair[0], words(Random(104), 120)
    cold, salt = fleet.other(one), {"cache_salt": "tenant"}
    with hearing(one) as heard:
        full = computed(router, one, text, **salt)
        events = heard.all()
    salted = [event for event in events if event.fields.get("extra_keys") not in (None, [None])]
    assert {event.medium for event in salted if any(event.fields["extra_keys"])} == {"GPU"}
    assert {believed(router, each, text) for each in fleet.pair} == {Held()}
    left_gpu(router, one, text, **salt)
    found(router, one, text, Held(0, full), **salt)
    found(router, cold, text, Held(0, 0, full), **salt)
    left_gpu(router, cold, text, **salt)
    found(router, cold, text, Held(0, full), **salt)
    found(router, cold, text, Held())


def test_what_engines_tell_of_their_tiers(fleet: Fleet, router: Router) -> None:
    """L1 and L2 in any order, one block per event; L2 once for all engines and without removals."""
    one, text = fleet.pair[0], words(Random(105), 230)
    cold = fleet.other(one)
    with hearing(one) as heard, hearing(cold) as other:
        full = computed(router, one, text)
        events = heard.all()
        on_gpu = [one for one in events if (one.kind, one.medium) == ("BlockStored", "GPU")]
        (first,) = [event for event in on_gpu if len(event.hashes) * BLOCK == full]
        for medium in ("CPU", "STORAGE"):
            told = singles(events, medium, first.hashes)
            assert sorted(told) == sorted(first.hashes)
            assert told != first.hashes, "not in the prompt's order"
            assert removals(events, medium) & set(first.hashes) == set()
        stored = [event for event in events if event.medium == "STORAGE"]
        assert {event.fields["locality"] for event in stored} == {"REMOTE"}
        assert {event.fields.get("extra_keys") for event in stored} == {None}
        other.all()
        found(router, cold, text, Held(0, 0, full))
        events = other.all()
        assert sorted(singles(events, "CPU", first.hashes)) == sorted(first.hashes)
        assert [
            event
            for event in events
            if event.medium == "STORAGE" and event.hashes[0] in set(first.hashes)
        ] == []
        heard.all()
        left_l1(router, one, text)
        events = heard.all()
        assert set(first.hashes) <= removals(events, "GPU")
        assert set(first.hashes) <= removals(events, "CPU")
        assert removals(events, "STORAGE") == set()


def singles(events: list[Event], medium: str, names: list[int]) -> list[int]:
    """Return which of these blocks were announced on a medium, each in its own event, in order."""
    stored = [one for one in events if (one.kind, one.medium) == ("BlockStored", medium)]
    assert all(len(one.hashes) == 1 for one in stored)
    return [one.hashes[0] for one in stored if one.hashes[0] in set(names)]


def removals(events: list[Event], medium: str) -> set[int]:
    """Return the blocks announced as removed from a medium."""
    gone = [one.hashes for one in events if (one.kind, one.medium) == ("BlockRemoved", medium)]
    return {name for names in gone for name in names}


def test_a_reset_is_of_the_gpu_alone(fleet: Fleet, router: Router) -> None:
    """L1 and L2 stay, and are found."""
    one, text = fleet.pair[0], words(Random(106), 200)
    full = computed(router, one, text)
    with hearing(one) as heard:
        assert httpx.post(one.url + RESET, timeout=30).status_code == 200
        lies_after = partial(believed, router, one, text)
        step(one)
        until(lambda: lies_after() == Held(0, full), PATIENCE)
        assert "AllBlocksCleared" in {event.kind for event in heard.all()}
    found(router, one, text, Held(0, full))


def test_l1_is_dropped_without_a_word(fleet: Fleet, router: Router) -> None:
    """With `reset_external`. It is noticed when blocks are announced again, and those count
    once."""
    one, text = fleet.pair[0], words(Random(107), 200)
    full = computed(router, one, text)
    with hearing(one) as heard:
        answer = httpx.post(one.url + RESET, params={"reset_external": "true"}, timeout=30)
        assert answer.status_code == 200
        step(one)
        events = heard.all()
        assert "AllBlocksCleared" in {event.kind for event in events}
        assert removals(events, "CPU") == set()
    before = hits(one)
    with only(router, one):
        answer = sent(router, text)
    assert predicted(answer) == cached(answer) == full
    assert hits(one).since(before) == Hits(0, 0, full), "the store had it"
    lies(router, one, text, Held(full))
    (place,) = [
        p for p in memory(router).index.caches() if (p.worker, p.tier) == (one.name, Tier.L1)
    ]
    until(lambda: place.blocks < full // BLOCK + 10, PATIENCE)
    assert place.copies == {}
    left_gpu(router, one, text)
    found(router, one, text, Held(0, full))
    left_l1(router, one, text)
    found(router, one, text, Held(0, 0, full))


def test_what_is_used_again_is_told_of_the_gpu_alone(fleet: Fleet, router: Router) -> None:
    """If a request asks for a report of reused blocks, these are not taken for new ones."""
    one, text = fleet.pair[0], words(Random(120), 200)
    full = computed(router, one, text)
    lies(router, fleet.other(one), text, Held(0, 0, full))
    with hearing(one) as heard:
        asked = {"vllm_xargs": {"kv_cache_report_mode": "full"}, "return_token_ids": True}
        answer = one.direct(text, **asked)
        events = heard.all()
    assert cached(answer) == full
    names = vllm_cbor(answer.json()["prompt_token_ids"], BLOCK)
    told = [int.from_bytes(name[-8:], "big") for name in names]
    again = [event for event in events if set(event.hashes) & set(told)]
    assert {(event.kind, event.medium) for event in again} == {("BlockStored", "GPU")}
    assert [name for event in again for name in event.hashes] == told
    found(router, one, text, Held(full))
    left_gpu(router, one, text)
    found(router, one, text, Held(0, full))


def test_what_leaves_the_store_is_told_by_nobody(fleet: Fleet, router: Router) -> None:
    """One request is predicted wrongly; the next ones are not, on either engine."""
    one, text = fleet.pair[0], words(Random(108), 200)
    cold = fleet.other(one)
    full = computed(router, one, text)
    left_l1(router, one, text)
    with Redis.from_url(fleet.redis.url) as client:
        client.flushall()
    with only(router, one):
        answer = sent(router, text)
    assert (predicted(answer), cached(answer)) == (full, 0)
    lies(router, one, text, Held(full))
    lies(router, cold, text, Held(0, 0, full))  # written and announced again
    found(router, cold, text, Held(0, 0, full))
    left_l1(router, cold, text)
    left_l1(router, one, text)
    found(router, cold, text, Held(0, 0, full))


def test_a_store_that_dies_costs_time_alone(fleet: Fleet, router: Router) -> None:
    """Engines compute what it held, and no request fails; when it is back it is used again."""
    one, text = fleet.pair[0], words(Random(119), 200)
    full = computed(router, one, text)
    left_l1(router, one, text)
    fleet.redis.kill()
    try:
        with only(router, one):
            answer = sent(router, text)
        assert (predicted(answer), cached(answer)) == (full, 0)
        for number in range(3):
            assert sent(router, words(Random(200 + number), 50)).status_code == 200
    finally:
        fleet.redis.start()
    new = words(Random(110), 200)
    full = computed(router, one, new)
    found(router, fleet.other(one), new, Held(0, 0, full))


def test_a_tier_that_fails_takes_its_engine_along(fleet: Fleet, router: Router) -> None:
    """The request that had begun is lost; the next ones go to the other engine. When it is back, it
    is known to have only what is in the store."""
    one, text = fleet.pair[0], words(Random(121), 200)
    lost, full = fleet.other(one), computed(router, one, text)
    ids = one.direct(text, return_token_ids=True).json()["prompt_token_ids"]
    key = f"kv:{vllm_cbor(ids, BLOCK)[0].hex()}00000000"
    lies(router, lost, text, Held(0, 0, full))
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    with Redis.from_url(fleet.redis.url) as client:
        value = client.get(key)
        assert isinstance(value, bytes)
        client.set(key, b"no block")  # reading it raises an exception that vLLM does not catch
        try:
            with only(router, lost):
                answer = router.http.post(CHAT, json=chat, timeout=60)
            assert answer.headers["x-warmroute-worker"] == lost.name
            assert (answer.status_code, "EngineCore" in answer.text) == (500, True)
            until(lambda: states(router)[lost.name] == "down", PATIENCE)
            after = sent(router, text)
            assert (after.headers["x-warmroute-worker"], cached(after)) == (one.name, full)
            until(lambda: (lost.name, Tier.GPU) not in blocks(router), PATIENCE)
        finally:
            client.set(key, value)
            lost.engine.kill()
            lost.engine.start()
    until(lambda: states(router)[lost.name] == "ready" and trusted(router), PATIENCE)
    assert reason(found(router, lost, text, Held(0, 0, full))) == "l2"


def states(router: Router) -> dict[str, str]:
    """Return the state of each worker."""
    return {one["name"]: one["state"] for one in router.http.get("/workers").json()}


def blocks(router: Router) -> dict[tuple[str, Tier], int]:
    """Return the known blocks by worker and tier, where there are any."""
    places = memory(router).index.caches()
    return {(one.worker, one.tier): one.blocks for one in places if one.blocks}
