"""`kvaware` in front of two real engines, each with a real LMCache server (L1), and one real Redis
behind both (L2): predictions are right, and LMCache's own counters agree."""

import asyncio
import json
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, NamedTuple

import httpx
import pytest
from redis import Redis

from controller.index.agreement import hash_algorithm
from controller.index.block_events import FirstBlock, Tier
from router.kv.attach import lookup_of
from router.kv.lmcache.names import Chunking, digests
from router.settings.fleet import TiersSettings
from strategies.cost.prefill import Held
from tests.sessions.redis_server import RedisServer
from tests.support import MakeRouter, Router, until
from tests.vllm.engine import BLOCK, command, free_port
from tests.vllm.program import Program
from tests.vllm.publishing import PATIENCE, cached, memory, predicted, start, tokens, trusted, words
from tests.vllm.tiered import (
    BLOCK_BYTES,
    Hits,
    Tiered,
    believed,
    counters,
    has,
    hearing,
    only,
    other_work,
    reason,
    sent,
    start_all,
    step,
    vllm_pickle,
    whole,
)
from tests.vllm.tiered import computed as computes
from tests.vllm.tiered import found as finds
from tests.vllm.tiered import left_gpu as leaves_gpu
from tests.vllm.tiered import left_l1 as leaves_l1

RESET = "/reset_prefix_cache"
#: Makes LMCache report what it found for a request.
ASKED: dict[str, Any] = {"kv_transfer_params": {"cached_token_stats": True}}


#: Why the tests are skipped.
NOT_INSTALLED = "LMCache is not installed in the environment that vLLM is in (lmcache 0.5)"
#: Size of a chunk, in tokens and in bytes.
CHUNK = 64
CHUNK_BYTES = CHUNK // 32 * BLOCK_BYTES
#: Capacity of the server's memory, in chunks.
L1 = 80

_QUIET = {"LMCACHE_TRACK_USAGE": "false"}


def installed() -> bool:
    """Return whether it is installed, in vLLM's environment."""
    return has("lmcache")


class Server(Program):
    """One server process, from `start` to `stop`; it serves the engines of a host."""

    name = "LMCache's server"

    def __init__(self, log: Path, redis: int) -> None:
        """`redis` is the port of the store behind it."""
        super().__init__(log)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{free_port()}"
        self._redis = redis

    def start(self) -> "Server":
        """Start it and wait until it is healthy. Raises RuntimeError if it ends or takes too
        long."""
        found = command()
        if found is None or not installed():
            raise RuntimeError(NOT_INSTALLED)
        store = {"type": "resp", "host": "127.0.0.1", "port": self._redis, "num_workers": 2}
        arguments = [
            *(str(Path(found).parent / "lmcache"), "server"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--http-host", "127.0.0.1", "--http-port", self.url.rpartition(":")[2]),
            *("--chunk-size", str(CHUNK), "--eviction-policy", "LRU"),
            *("--l1-size-gb", str(L1 * CHUNK_BYTES / (1 << 30)), "--no-l1-use-lazy"),
            *("--supported-transfer-mode", "auto", "--max-workers", "1"),
            *("--kv-event-log-size", "10000", "--l2-adapter", json.dumps(store)),
        ]
        self.run(arguments, _QUIET, f"{self.url}/status")
        return self

    def counted(self) -> Mapping[tuple[str, str], float]:
        """Return its counters."""
        return counters(f"{self.url}/metrics", ("lmcache_mp",))

    def status(self) -> dict[str, object]:
        """Return what it reports about itself."""
        found: dict[str, object] = httpx.get(f"{self.url}/status", timeout=30).json()
        return found


def engine(
    folder: Path,
    log: Path,
    server: Server,
    *flags: str,
    seed: str = "0",
    mode: str = "lmcache_driven",
) -> Tiered:
    """Return an engine with 40 GPU blocks that uses a server; `seed` is for its block names.

    Of LMCache's modes, the default one publishes events, and `engine_driven` does not.
    """
    told = {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": server.port,
        "lmcache.mp.mp_transfer_mode": mode,
    }
    made = Tiered(folder, log, "LMCacheMPConnector", **told)
    made.engine.add(*flags)
    made.engine.tell(PYTHONHASHSEED=seed, **_QUIET)
    return made


def hits(server: Server) -> Hits:
    """Return the tokens that lookups found, by the server's own count, whatever was on the GPU."""
    name = "lmcache_mp_lookup_hit_l{}_tokens_total"
    found = server.counted()
    return Hits(0, *(int(found.get((name.format(tier), ""), 0)) for tier in (1, 2)))


def stats(answer: httpx.Response) -> tuple[int, int]:
    """Return the tokens of a request found on the GPU, and in LMCache beyond those.

    The request has to ask for it.
    """
    told = answer.json()["kv_transfer_params"]["cached_token_stats"]
    return told["num_vllm_cached_tokens"], told["num_lmcache_extra_cached_tokens"]


class Host(NamedTuple):
    """An engine and its server."""

    engine: Tiered
    server: Server


class Fleet(NamedTuple):
    """Two hosts and the store behind both."""

    one: Host
    cold: Host
    redis: RedisServer


@pytest.fixture(scope="module")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The engines name blocks with different seeds, which makes no difference to LMCache."""
    if not installed():
        pytest.skip(NOT_INSTALLED)
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as opened:
        redis = opened.enter_context(RedisServer())
        hosts: list[Host] = []
        for number in range(2):
            server = Server(logs / f"server{number}.log", redis.port)
            opened.callback(server.stop)
            server.start()
            made = engine(model, logs / f"{number}.log", server, seed=str(number))
            opened.callback(made.engine.stop)
            hosts.append(Host(made, server))
        start_all([host.engine for host in hosts])
        yield Fleet(hosts[0], hosts[1], redis)


def trusting(*hosts: Host) -> list[dict[str, Any]]:
    """Return the settings of engines that report to every client what LMCache found."""
    return [{"url": host.engine.url, "engine_fields": True} for host in hosts]


def tiers(fleet: Fleet, folder: Path, **more: object) -> dict[str, Any]:
    """Return the settings with which a router asks that store."""
    told = {"redis": fleet.redis.url, "chunk": CHUNK, "deadline": "5s", "model": str(folder)}
    return {"l2": {"lmcache": {**told, **more}}}


@pytest.fixture
def router(fleet: Fleet, route: MakeRouter, model: Path) -> Router:
    """A router in front of both that uses their events and asks the store."""
    made = start(route, model, *trusting(fleet.one, fleet.cold), tiers=tiers(fleet, model))
    until(lambda: trusted(made), PATIENCE)
    return made


def computed(router: Router, host: Host, text: str, **more: Any) -> int:
    """Have an engine compute a new prompt; return the tokens of its full chunks."""
    return whole(computes(router, host.engine, text, **more), CHUNK)


def lies(router: Router, host: Host, text: str, where: Held, **more: Any) -> None:
    """Wait until the router knows that the prompt lies there; engines publish with each step."""

    def there() -> bool:
        if believed(router, host.engine, text, **more) == where:
            return True
        step(host.engine)
        return False

    until(there, PATIENCE)


def left_gpu(router: Router, host: Host, text: str, **more: Any) -> None:
    """Let other prompts take its place on the GPU; the server has room for them."""
    leaves_gpu(router, host.engine, text, **more)
    step(host.engine)


def left_l1(router: Router, host: Host, text: str, **more: Any) -> None:
    """Let other prompts take its place on the GPU and on the server."""
    leaves_l1(router, host.engine, text, **more)
    step(host.engine)


def found(router: Router, host: Host, text: str, where: Held) -> httpx.Response:
    """Ask for what lies there: LMCache finds it there, by its own counts."""
    before = hits(host.server)
    answer = finds(router, host.engine, text, where, ASKED)
    assert stats(answer) == (where.gpu, where.l1 + where.l2)
    if not where.gpu:
        until(lambda: hits(host.server).since(before) == Hits(0, where.l1, where.l2), PATIENCE)
    return answer


def test_gpu_then_l1_then_l2_then_a_cold_engine(fleet: Fleet, router: Router) -> None:
    """Each tier is predicted, and is what LMCache counts."""
    one, cold, text = fleet.one, fleet.cold, words(Random(301), 230)
    chunked = computed(router, one, text)
    assert chunked > 600
    lies(router, cold, text, Held(0, 0, chunked))
    found(router, one, text, believed(router, one.engine, text))

    left_gpu(router, one, text)
    assert reason(found(router, one, text, Held(0, chunked))) == "l1"

    left_l1(router, one, text)
    assert reason(found(router, one, text, Held(0, 0, chunked))) == "l2"

    left_l1(router, one, text)
    assert reason(found(router, cold, text, Held(0, 0, chunked))) == "l2"
    for host in (one, cold):
        assert memory(router).track_records[host.engine.name].sum == 0


def test_part_of_it_is_on_the_gpu(fleet: Fleet, router: Router) -> None:
    """The rest is loaded in chunks, which have another size than blocks."""
    one, text = fleet.one, words(Random(302), 230)
    chunked = computed(router, one, text)
    one.engine.direct(words(Random(303), 150))
    step(one.engine)
    until(lambda: 0 < believed(router, one.engine, text).gpu < chunked, PATIENCE)
    gpu = believed(router, one.engine, text).gpu
    lies(router, one, text, Held(gpu, chunked - gpu))
    found(router, one, text, Held(gpu, chunked - gpu))


def test_it_names_chunks_in_a_way_of_its_own(fleet: Fleet, router: Router, model: Path) -> None:
    """Sizes and hashes differ from the engine's, but both can be computed from tokens."""
    one, text = fleet.one, words(Random(304), 200)
    with hearing(one.engine) as heard:
        answer = one.engine.direct(text, return_token_ids=True)
        ids = answer.json()["prompt_token_ids"]
        place = memory(router).index.cache
        lies(router, fleet.cold, text, Held(0, 0, whole(answer, CHUNK)))
        until(lambda: believed(router, one.engine, text).gpu == whole(answer), PATIENCE)
        events = heard.all()
    blocks = [int.from_bytes(name[-8:], "big") for name in vllm_pickle(ids, BLOCK)]
    named = digests(array("I", ids).tobytes(), CHUNK, 100)
    chunks = [int.from_bytes(name[-8:], "big") for name in named]
    assert set(blocks).isdisjoint(chunks)
    assert blocks in [event.hashes for event in events]
    first = FirstBlock(blocks[0], array("I", ids[:BLOCK]).tobytes())
    assert hash_algorithm(first) == "sha256, PYTHONHASHSEED=0"
    told = [event for event in events if set(event.hashes) & set(chunks)]
    assert {(event.medium, event.fields["block_size"]) for event in told} == {("CPU", CHUNK)}
    assert [event.hashes for event in told] == [[chunk] for chunk in chunks]
    assert {event.medium for event in events} <= {"GPU", "CPU"}, "nothing of the store"
    keys = [Chunking(CHUNK, 1, str(model)).prefix("") + name.hex() for name in named]
    with Redis.from_url(fleet.redis.url) as client:
        assert client.exists(*keys) == len(keys) > 5
    host = place(one.engine.name, Tier.L1)
    assert host is not None
    assert host.usual_block_size == CHUNK


def test_engines_need_not_agree_on_names(fleet: Fleet, router: Router) -> None:
    """Different seeds give different names; both are found by tokens: row K7."""
    text = words(Random(305), 200)
    told: list[set[int]] = []
    for host in (fleet.one, fleet.cold):
        with hearing(host.engine) as heard:
            answer = host.engine.direct(text)
            until(lambda: believed(router, host.engine, text).gpu == whole(answer), PATIENCE)  # noqa: B023
            events = heard.all()
        on_gpu = [one for one in events if (one.kind, one.medium) == ("BlockStored", "GPU")]
        told.append({name for event in on_gpu for name in event.hashes})
        assert len(told[-1]) >= whole(answer) // BLOCK
        found(router, host, text, Held(whole(answer)))
    first, second = told
    assert first.isdisjoint(second)


def test_engines_of_one_host_share_its_server(
    fleet: Fleet, route: MakeRouter, model: Path, tmp_path: Path
) -> None:
    """What one computed lies on L1 for the other, which announces it with a step of its own."""
    one, text = fleet.one, words(Random(309), 200)
    beside = Host(engine(model, tmp_path / "beside.log", one.server, seed="7"), one.server)
    beside.engine.engine.start()
    try:
        urls = (one.engine.url, beside.engine.url)
        router = start(route, model, *urls, tiers=tiers(fleet, model))
        until(lambda: trusted(router), PATIENCE)
        chunked = computed(router, one, text)
        lies(router, beside, text, Held(0, chunked))
        found(router, beside, text, Held(0, chunked))
    finally:
        beside.engine.engine.stop()


def test_who_tells_nothing_of_l1(
    fleet: Fleet, route: MakeRouter, model: Path, tmp_path: Path
) -> None:
    """An engine that moves blocks itself announces no L1: hits there are predicted from L2."""
    server, text = Server(tmp_path / "server.log", fleet.redis.port), words(Random(314), 200)
    quiet = Host(engine(model, tmp_path / "quiet.log", server, mode="engine_driven"), server)
    with ExitStack() as opened:
        opened.callback(server.stop)
        server.start()
        opened.callback(quiet.engine.engine.stop)
        quiet.engine.engine.start()
        router = start(route, model, *trusting(quiet), tiers=tiers(fleet, model))
        until(lambda: trusted(router), PATIENCE)
        chunked = computed(router, quiet, text)
        with hearing(quiet.engine) as heard:
            left_gpu(router, quiet, text)
            assert {event.medium for event in heard.all()} == {"GPU"}
        lies(router, quiet, text, Held(0, 0, chunked))
        before = hits(server)
        answer = sent(router, text, **ASKED)
        assert (reason(answer), predicted(answer), cached(answer)) == ("l2", chunked, chunked)
        assert stats(answer) == (0, chunked)
        until(lambda: hits(server).since(before) == Hits(0, chunked, 0), PATIENCE)


def test_a_reset_is_of_the_gpu_alone(fleet: Fleet, router: Router) -> None:
    """L1 stays; with `reset_external` it is dropped, which LMCache announces, and L2 has it."""
    one, text = fleet.one, words(Random(306), 200)
    chunked = computed(router, one, text)
    assert httpx.post(one.engine.url + RESET, timeout=30).status_code == 200
    lies(router, one, text, Held(0, chunked))
    found(router, one, text, Held(0, chunked))
    reset = httpx.post(one.engine.url + RESET, params={"reset_external": "true"}, timeout=30)
    assert reset.status_code == 200
    lies(router, one, text, Held(0, 0, chunked))
    found(router, one, text, Held(0, 0, chunked))


def test_salts_keep_apart(fleet: Fleet, router: Router) -> None:
    """Keys of the store contain the salt, events of L1 do not: one prompt without it is predicted
    wrongly."""
    one, cold, salt = fleet.one, fleet.cold, {"cache_salt": "tenant"}
    text = words(Random(307), 120)
    chunked = computed(router, one, text, **salt)
    lies(router, cold, text, Held(0, 0, chunked), **salt)
    assert believed(router, cold.engine, text) == Held()
    lies(router, one, text, Held(0, chunked))
    with only(router, one.engine):
        answer = sent(router, text)
    assert (predicted(answer), cached(answer)) == (chunked, 0)
    with only(router, cold.engine):
        assert cached(sent(router, text, **salt)) == chunked


def test_what_lies_in_the_store_can_be_judged(fleet: Fleet, model: Path) -> None:
    """From the keys and values that a real server wrote."""
    fleet.one.engine.direct(words(Random(308), 100))

    def wrong(**more: object) -> str:
        size = {"bytes_per_token": "256B"}
        settings = TiersSettings.model_validate({**tiers(fleet, model, **more), **size})
        store = lookup_of(settings)
        assert store is not None

        async def checked() -> str:
            try:
                return await store.check()
            finally:
                await store.close()

        return asyncio.run(checked())

    assert wrong() == ""
    assert "64 tokens at 256 bytes; tiers.l2.lmcache.chunk is 256" in wrong(chunk=256)
    assert wrong(model="other") == ""  # chunks of another model say nothing about ours
    said = wrong(gpus=2)
    assert "with 1 GPUs" in said
    assert f"settings say {model} with 2 GPUs" in said


def test_a_prompt_of_whole_chunks(fleet: Fleet, router: Router) -> None:
    """LMCache leaves the last token to be computed, which does not count as a miss."""
    one = fleet.one
    ids = [5 + (11 * place) % 250 for place in range(6 * CHUNK)]
    asked = {"model": "tiny", "prompt": ids, "max_tokens": 1}

    def ask() -> httpx.Response:
        with only(router, one.engine):
            return router.http.post("/v1/completions", json=asked, timeout=60)

    def told() -> int:
        path = {"path": "/v1/completions"}
        terms = router.http.post("/explain", params=path, json=asked).json()["workers"]
        term = next(term for term in terms if term["worker"] == one.engine.name)
        return int(term["held_tokens"] - term["l1_tokens"] - term["l2_tokens"])

    assert tokens(ask()) == len(ids)
    until(lambda: told() > 0, PATIENCE)
    other_work(one.engine, lambda: told() == 0)
    step(one.engine)
    for _ in range(2):
        answer = ask()
        assert (predicted(answer), cached(answer)) == (len(ids), len(ids) - 1)
        other_work(one.engine, lambda: told() == 0)
        step(one.engine)


def on_l1(router: Router, host: Host, text: str) -> int:
    """Have an engine compute a prompt and keep it only on L1 and L2; return its tokens there."""
    chunked = computed(router, host, text)
    left_gpu(router, host, text)
    lies(router, host, text, Held(0, chunked))
    return chunked


def resumed(fleet: Fleet, host: Host) -> None:
    """Wait until an engine uses its new server for lookups and storing; it checks now and then."""
    with Redis.from_url(fleet.redis.url) as client:
        before = client.dbsize()

        def works() -> bool:
            host.engine.direct(words(Random(SystemRandom().random()), 60))
            asked = host.server.counted().get(("lmcache_mp_lookup_requested_tokens_total", ""), 0)
            return asked > 0 and client.dbsize() > before

        until(works, PATIENCE)


def test_a_server_that_is_lost(fleet: Fleet, router: Router) -> None:
    """No request fails. When it is back its memory is known to be empty: old prompts are predicted
    from the store, new ones from its memory."""
    one, text, new = fleet.one, words(Random(310), 200), words(Random(311), 200)
    chunked = on_l1(router, one, text)
    one.server.kill()
    try:
        with only(router, one.engine):
            answer = sent(router, text)
            assert (predicted(answer), cached(answer)) == (chunked, 0)
            assert cached(sent(router, words(Random(312), 50))) == 0
    finally:
        one.server.start()
    resumed(fleet, one)
    left_gpu(router, one, text)
    lies(router, one, text, Held(0, 0, chunked))
    assert reason(found(router, one, text, Held(0, 0, chunked))) == "l2"
    chunked = on_l1(router, one, new)
    assert reason(found(router, one, new, Held(0, chunked))) == "l1"


def test_a_server_that_starts_again(fleet: Fleet, router: Router) -> None:
    """The store has everything the server had, so it is predicted from there."""
    one, text = fleet.one, words(Random(313), 200)
    chunked = on_l1(router, one, text)
    one.server.stop()
    one.engine.direct(words(Random(315), 50))  # otherwise LMCache 0.5 never registers with it
    one.server.start()
    resumed(fleet, one)
    lies(router, one, text, Held(0, 0, chunked))
    assert reason(found(router, one, text, Held(0, 0, chunked))) == "l2"
