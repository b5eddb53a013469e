"""Real sockets and events: events decide, and where they cannot, the reason says so."""

import asyncio
from pathlib import Path
from random import Random

import httpx
import msgspec
import pytest

from router.cli.check_live import check_live
from router.kv.attach import FLAG
from router.settings.model import Settings
from simulator.api import generation
from simulator.fleet import FleetThread
from tests.kvaware.conftest import QUICK, MakeFleet, MakeKvAware, trusted
from tests.reload.changing import change
from tests.support import MakeRouter, MakeStub, Router, until

CHAT = "/v1/chat/completions"


def chat(text: str) -> dict[str, object]:
    """Return a chat with one message and the shortest answer."""
    return {"model": "toy", "messages": [{"role": "user", "content": text}], "max_tokens": 1}


def ask(router: Router, text: str, **more: object) -> httpx.Response:
    """Send a chat, and wait until the router is idle again."""
    answer = router.http.post(CHAT, json={**chat(text), **more})
    assert answer.status_code == 200, answer.text
    until(router.idle)
    return answer


def credited(router: Router, text: str) -> dict[str, int]:
    """Return the cached tokens that a decision would predict on each worker, the best first."""
    found = router.http.post("/explain", json=chat(text)).json()
    return {one["worker"]: one["held_tokens"] for one in found["workers"]}


def cached(answer: httpx.Response) -> int:
    """Return the cached tokens that the worker reported."""
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def predicted(answer: httpx.Response) -> int:
    """Return the cached tokens that the decision predicted."""
    return int(answer.headers["x-warmroute-decision"].split("held=")[1].split(";")[0])


def settle(router: Router, fleet: FleetThread) -> None:
    """Wait until the index contains everything that was published."""

    def is_level() -> bool:
        for pool, memory in router.door.memories.pools():
            for worker in pool.workers:
                held = {p.worker: p.blocks for p in memory.index.caches()}.get(worker.name, 0)
                (engine,) = [w.engine for w in fleet.workers if w.url == worker.url]
                if held != engine.cache.cached:
                    return False
        return True

    until(is_level)


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_what_is_predicted_is_what_is_reported(
    fleet: MakeFleet, kvaware: MakeKvAware, encoding: str
) -> None:
    """Exactly, for random chats with shared beginnings; recent placements do not count here."""
    random = Random(6)
    simulated = fleet(kv_encoding=encoding)
    router = kvaware(*simulated.urls, strategy={"name": "kvaware", "unconfirmed": "0s"})
    starts = ["".join(random.choices("abcdefgh ", k=400)) for _ in range(4)]
    for _ in range(60):
        text = random.choice(starts)[: random.randrange(400)] + random.choice("xyz") * 50
        answer = ask(router, text)
        assert predicted(answer) == cached(answer)
        settle(router, simulated)
    assert router.metric("warmroute_kv_error_tokens_bucket", pool="default", le="-1.0") == 0


def holders(router: Router) -> dict[str, int]:
    """Return the number of blocks by worker."""
    ((_, memory),) = router.door.memories.pools()
    return {place.worker: place.blocks for place in memory.index.caches() if place.blocks}


def test_a_shared_prefix_goes_to_its_holder(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Prompts with the same prefix go to its holder; equal prompts with another salt are
    separate."""
    simulated = fleet(workers=4)
    router = kvaware(*simulated.urls, strategy={"name": "kvaware", "unconfirmed": "0s"})
    first = ask(router, "once upon a time " * 40)
    settle(router, simulated)
    holder = first.headers["x-warmroute-worker"]
    for number in range(5):
        again = ask(router, "once upon a time " * 40 + f"number {number}")
        assert again.headers["x-warmroute-worker"] == holder
        assert again.headers["x-warmroute-decision"].startswith("prefix;")
        assert cached(again) >= 600
    salted = ask(router, "once upon a time " * 40, cache_salt="tenant")
    assert (predicted(salted), cached(salted)) == (0, 0)
    settle(router, simulated)
    salted = ask(router, "once upon a time " * 40, cache_salt="tenant")
    assert predicted(salted) == cached(salted) > 600
    assert router.http.get("/health/ready").json() == {
        "status": "ready",
        "pools": {"default": 4},
        "blind": {"default": 0},
    }
    shown = {one["worker"]: one for one in router.http.get("/kv").json()}
    assert shown[holder]["blocks"]["gpu"] == holders(router)[holder]
    assert shown[holder]["streams"][0]["state"] == "live"


def test_keys_with_caches_of_their_own(
    fleet: MakeFleet, kvaware: MakeKvAware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `separate_caches`, a prompt hits only blocks computed for the same key, and that is
    predicted."""
    keys = {name: f"sk-team-{name}-0123456789" for name in "ab"}
    for name, key in keys.items():
        monkeypatch.setenv(f"KEY_{name}", key)
    simulated = fleet()
    router = kvaware(
        *simulated.urls,
        strategy={"name": "kvaware", "unconfirmed": "0s"},
        auth={"keys": ["${KEY_a}", "${KEY_b}"], "separate_caches": True},
    )
    for name, found in (("a", False), ("a", True), ("b", False), ("b", True), ("a", True)):
        router.http.headers["authorization"] = f"Bearer {keys[name]}"
        answer = ask(router, "once upon a time " * 40)
        assert predicted(answer) == cached(answer)
        assert (cached(answer) > 600) == found
        settle(router, simulated)


def test_check_live_says_what_is_subscribed_and_what_is_missing(
    fleet: MakeFleet, folder: Path
) -> None:
    """The line names the vLLM flag to set if events are missing."""
    for publishing in (True, False):
        simulated = fleet(workers=1, kv_events=publishing)
        settings = {"workers": simulated.urls, "strategy": "kvaware", "tokenizer": str(folder)}
        lines, well = asyncio.run(check_live(Settings.model_validate(settings), ask=False))
        assert well is publishing
        (line,) = [line for line in lines if "KV events" in line]
        wanted = "subscribed, no event yet, sequence -1, gaps 0" if publishing else FLAG
        assert wanted in line
        assert "--enable-prompt-tokens-details" not in line
        assert ("cached tokens reported: not known" in line) is publishing
        names = [line for line in lines if "block names" in line]
        assert [
            line.endswith("block names: not comparable, none was heard yet") for line in names
        ] == [True] * publishing
        assert "lost" not in line


def test_check_live_tells_the_last_event_that_is_replayed(
    fleet: MakeFleet, kvaware: MakeKvAware, folder: Path
) -> None:
    """The check starts after the last event, and learns it by replay instead of waiting for the
    next."""
    simulated = fleet(workers=1)
    router = kvaware(*simulated.urls)
    ask(router, "before anybody looked " * 20)
    settle(router, simulated)
    settings = {"workers": simulated.urls, "strategy": "kvaware", "tokenizer": str(folder)}
    lines, well = asyncio.run(check_live(Settings.model_validate(settings), ask=False))
    (line,) = [line for line in lines if "KV events" in line]
    assert well
    assert "s ago (replayed), sequence 0, gaps 0" in line
    (line,) = [line for line in lines if "block names" in line]
    assert "there is no other engine to compare with" in line


@pytest.mark.parametrize("seeds", [("",), ("", "7")])
def test_check_live_compares_block_names(
    fleet: MakeFleet, folder: Path, seeds: tuple[str, ...]
) -> None:
    """Workers should give the same names to the blocks of a prompt; otherwise a shared store has
    them twice, and the line says how to avoid that."""
    simulated = fleet(workers=2, hash_seeds=seeds)
    settings = {"workers": simulated.urls, "strategy": "kvaware", "tokenizer": str(folder)}
    for number, url in enumerate(simulated.urls):
        told = {"model": "toy", "prompt": f"{number} is another " * 20, "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=told).status_code == 200
    lines, well = asyncio.run(check_live(Settings.model_validate(settings), ask=False))
    names = [line for line in lines if "block names" in line]
    assert sum("not comparable with others, no block seen in common" in line for line in names) == 2
    lines, asked_well = asyncio.run(check_live(Settings.model_validate(settings), ask=True))
    names = [line for line in lines if "block names" in line]
    said = "those of the others, of 1 blocks in common" if len(seeds) == 1 else "PYTHONHASHSEED"
    assert sum(said in line for line in names) == 2
    assert sum("cached tokens are reported" in line for line in lines) == 2
    assert sum("a repeated prompt: 512 of 520 tokens were cached" in line for line in lines) == 2
    assert (well, asked_well) == (True, True), "nothing is shared: no harm is done"


@pytest.mark.parametrize("seeds", [("",), ("", "7")])
def test_check_live_of_engines_that_share_a_store(
    fleet: MakeFleet, folder: Path, seeds: tuple[str, ...]
) -> None:
    """It fails if one engine cannot find in the store what another one wrote."""
    simulated = fleet(workers=2, hash_seeds=seeds, host_tokens=4096, store_tokens=65536)
    settings = {"workers": simulated.urls, "strategy": "kvaware", "tokenizer": str(folder)}
    lines, well = asyncio.run(check_live(Settings.model_validate(settings), ask=True))
    assert well is (len(seeds) == 1), lines


def test_check_live_names_the_flag_only_where_it_is_missing(
    fleet: MakeFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is missing if an answer reports its usage without cached tokens."""
    simulated = fleet(workers=1)
    told = generation.TokenUsage.openai
    monkeypatch.setattr(
        generation.TokenUsage, "openai", lambda usage: told(usage) | {"prompt_tokens_details": None}
    )
    settings = {"workers": simulated.urls, "strategy": "kvaware", "tokenizer": str(folder)}
    lines, _ = asyncio.run(check_live(Settings.model_validate(settings), ask=True))
    (line,) = [line for line in lines if "KV events" in line]
    assert "(start vLLM with --enable-prompt-tokens-details)" in line


def test_check_live_of_an_engine_that_cannot_be_heard(fleet: MakeFleet, folder: Path) -> None:
    """Nothing publishes at the configured address, and without a replay endpoint missed events
    would be lost."""
    worker = fleet(workers=1).workers[0]
    told = {"url": worker.url, "kv_events": "tcp://127.0.0.1:1"}
    settings = {"workers": [told], "strategy": "kvaware", "tokenizer": str(folder)}
    lines, well = asyncio.run(check_live(Settings.model_validate(settings), ask=False))
    (line,) = [line for line in lines if "KV events" in line]
    assert not well
    assert "not connected, no event yet" in line
    assert "give vLLM a replay_endpoint" in line
    assert FLAG in line


def test_check_live_asks_the_controller(fleet: MakeFleet, folder: Path) -> None:
    """A controller that cannot be reached is named, and the check fails."""
    settings = {
        "workers": fleet(workers=1).urls,
        "strategy": "kvaware",
        "tokenizer": str(folder),
        "controller": "http://127.0.0.1:1",
    }
    lines, well = asyncio.run(check_live(Settings.model_validate(settings), ask=False))
    assert not well
    said = "pool default: controller http://127.0.0.1:1: no controller (could not be reached: "
    assert any(line.startswith(said) for line in lines)


@pytest.mark.parametrize(
    ("deadline", "slow", "said"),
    [("300ms", 1, "answers"), ("1ms", 99, "answers, but in ")],
    ids=["the first answer", "every answer"],
)
def test_check_live_fails_for_no_slow_controller(
    stub: MakeStub, fleet: MakeFleet, folder: Path, *, deadline: str, slow: int, said: str
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
    settings = {
        "workers": fleet(workers=1).urls,
        "strategy": "kvaware",
        "tokenizer": str(folder),
        "controller": {"url": controller.url, "deadline": deadline},
    }
    lines, well = asyncio.run(check_live(Settings.model_validate(settings), ask=False))
    (line,) = [line for line in lines if " controller " in line]
    assert line.startswith(f"pool default: controller {controller.url}: {said}")
    assert ("controller.deadline is 1ms" in line) == (slow > 1)
    assert well


def test_evictions_and_clears_are_followed(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Predictions stay right with a small cache that evicts, and a reset cache holds nothing
    old."""
    simulated = fleet(workers=1, kv_tokens=1024)
    router = kvaware(*simulated.urls, strategy={"name": "kvaware", "unconfirmed": "0s"})
    for number in range(12):
        answer = ask(router, f"{number % 4} " * 100)
        assert predicted(answer) == cached(answer)
        settle(router, simulated)
    assert simulated.workers[0].engine.cache.cached <= 64
    httpx.post(simulated.urls[0] + "/reset_prefix_cache")
    answer = ask(router, "something else altogether")
    settle(router, simulated)
    assert holders(router)[router.worker().name] <= 3


def test_a_restarted_worker_holds_nothing(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Its stream begins anew; what it computes from then on is known."""
    simulated = fleet(workers=1)
    router = kvaware(*simulated.urls, strategy={"name": "kvaware", "unconfirmed": "0s"})
    ask(router, "before the flood " * 20)
    settle(router, simulated)
    assert holders(router)
    httpx.post(simulated.urls[0] + "/simulator/fault", json={"kind": "restart", "seconds": 0.2})
    until(lambda: not holders(router))
    until(lambda: router.worker().ready)
    until(lambda: trusted(router))
    answer = ask(router, "before the flood " * 20)
    assert (predicted(answer), cached(answer)) == (0, 0)
    settle(router, simulated)
    assert holders(router)


@pytest.mark.parametrize("replay", [True, False])
def test_who_joins_late_learns_the_past_by_replay(
    fleet: MakeFleet, kvaware: MakeKvAware, replay: bool
) -> None:
    """Without replay, it learns only what is new."""
    simulated = fleet(workers=1)
    early = kvaware(*simulated.urls)
    ask(early, "long ago " * 40)
    settle(early, simulated)
    worker = simulated.workers[0]
    told = {"url": worker.url, "kv_events": worker.kv_events}
    late = kvaware(told | ({"kv_replay": worker.kv_replay} if replay else {}))
    if replay:
        settle(late, simulated)
    answer = ask(late, "long ago " * 40)
    assert cached(answer) > 300
    assert predicted(answer) == (cached(answer) if replay else 0)


def test_without_events_the_shadow_decides_and_says_so(fleet: MakeFleet, route: MakeRouter) -> None:
    """It decides as `prefixaware` would, and operators are told what to set."""
    simulated = fleet(kv_events=False)
    router = route(*simulated.urls, strategy="kvaware")
    first = ask(router, "a tale " * 100)
    again = ask(router, "a tale " * 100)
    assert again.headers["x-warmroute-worker"] == first.headers["x-warmroute-worker"]
    assert again.headers["x-warmroute-decision"].startswith("prefix (no events);")
    ((_, memory),) = router.door.memories.pools()
    until(lambda: len(memory.missing) == 2)
    assert all("--kv-events-config" in lacking for lacking in memory.missing.values())
    ready = router.http.get("/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert ready.json()["blind"] == {"default": 2}
    assert {one["doubt"] for one in router.http.get("/kv").json()} == {"no events"}
    change(router, simulated.urls[0], strategy="kvaware")
    ((_, memory),) = router.door.memories.pools()
    until(lambda: len(memory.missing) == 1)  # nothing is kept of a worker that has left


def mute(fleet: FleetThread) -> None:
    """Stop the workers' publishers."""
    for worker in fleet.workers:
        if worker.publisher is not None:
            fleet.run(worker.publisher.close())


def test_siblings_find_their_first_before_its_events(
    fleet: MakeFleet, kvaware: MakeKvAware
) -> None:
    """Placements of the last seconds count until events confirm them."""
    simulated = fleet(workers=4)
    router = kvaware(*simulated.urls)
    mute(simulated)
    first = ask(router, "siblings " * 60)
    again = ask(router, "siblings " * 60 + "more")
    assert again.headers["x-warmroute-worker"] == first.headers["x-warmroute-worker"]
    assert predicted(again) > 400


def test_settings_that_change_while_it_runs(
    fleet: MakeFleet, kvaware: MakeKvAware, folder: Path
) -> None:
    """When workers join or leave, or the strategy gets other options, the current workers' events
    are followed and what was known of them is kept or learned again."""
    simulated = fleet(workers=2)
    router = kvaware(simulated.urls[0], strategy={"name": "kvaware", "unconfirmed": "0s"})
    common = {"tokenizer": str(folder), "health": QUICK}
    ask(router, "still here " * 30)
    until(lambda: len(holders(router)) == 1)
    change(router, *simulated.urls, strategy={"name": "kvaware", "unconfirmed": "0s"}, **common)
    until(lambda: trusted(router))
    assert len(holders(router)) == 1, "what was known is kept"
    change(router, *simulated.urls, strategy={"name": "kvaware", "unconfirmed": "1s"}, **common)
    until(lambda: trusted(router))
    until(lambda: len(holders(router)) == 1)
    change(router, simulated.urls[1], strategy={"name": "kvaware", "unconfirmed": "1s"}, **common)
    until(lambda: trusted(router))
    assert holders(router) == {}
    change(router, simulated.urls[1], strategy="leastload", **common)
    assert router.http.get("/kv").json() == []
