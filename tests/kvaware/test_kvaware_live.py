"""Real sockets and events: events decide, and where they cannot, the reason says so."""

import uuid
from pathlib import Path
from random import Random

import httpx
import pytest

from simulator.fleet import FleetThread
from tests.kvaware.asking import (
    CHAT,
    EXACT,
    ask,
    cached,
    chat,
    holders,
    predicted,
    reason,
    settle,
)
from tests.kvaware.conftest import QUICK, MakeFleet, MakeKvAware, trusted
from tests.reload.changing import change
from tests.support import MakeRouter, until


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_what_is_predicted_is_what_is_reported(
    fleet: MakeFleet, kvaware: MakeKvAware, encoding: str
) -> None:
    """Exactly, for random chats with shared beginnings; recent placements do not count here."""
    random = Random(6)
    simulated = fleet(kv_encoding=encoding)
    router = kvaware(*simulated.urls, strategy=EXACT)
    starts = ["".join(random.choices("abcdefgh ", k=400)) for _ in range(4)]
    for _ in range(60):
        text = random.choice(starts)[: random.randrange(400)] + random.choice("xyz") * 50
        answer = ask(router, text)
        assert predicted(answer) == cached(answer)
        settle(router, simulated)
    assert router.metric("warmroute_kv_error_tokens_bucket", pool="default", le="-1.0") == 0


def test_a_shared_prefix_goes_to_its_holder(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Prompts with the same prefix go to its holder; equal prompts with another salt are
    separate."""
    simulated = fleet(workers=4)
    router = kvaware(*simulated.urls, strategy=EXACT)
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
        strategy=EXACT,
        auth={"keys": ["${KEY_a}", "${KEY_b}"], "separate_caches": True},
    )
    for name, found in (("a", False), ("a", True), ("b", False), ("b", True), ("a", True)):
        router.http.headers["authorization"] = f"Bearer {keys[name]}"
        answer = ask(router, "once upon a time " * 40)
        assert predicted(answer) == cached(answer)
        assert (cached(answer) > 600) == found
        settle(router, simulated)


def test_evictions_and_clears_are_followed(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Predictions stay right with a small cache that evicts, and a reset cache holds nothing
    old."""
    simulated = fleet(workers=1, kv_tokens=1024)
    router = kvaware(*simulated.urls, strategy=EXACT)
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
    router = kvaware(*simulated.urls, strategy=EXACT)
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


def mute(fleet: FleetThread) -> None:
    """Stop the workers' publishers."""
    for worker in fleet.workers:
        if worker.publisher is not None:
            fleet.run(worker.publisher.close())


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
    router = kvaware(simulated.urls[0], strategy=EXACT)
    common = {"tokenizer": str(folder), "health": QUICK}
    ask(router, "still here " * 30)
    until(lambda: len(holders(router)) == 1)
    change(router, *simulated.urls, strategy=EXACT, **common)
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


def new(random: Random) -> str:
    """Return a prompt of more than a thousand tokens that no worker has seen."""
    return "".join(random.choices("abcdefgh ", k=3000))


def test_events_that_stop_under_load(
    fleet: MakeFleet, kvaware: MakeKvAware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the stream is connected but silent, its worker is judged by placements, until events
    come again."""
    random, simulated = Random(11), fleet(workers=1)
    router = kvaware(*simulated.urls, strategy=EXACT)
    where = {"pool": "default", "worker": router.worker().name}
    ask(router, new(random))
    settle(router, simulated)
    publisher = simulated.workers[0].publisher
    assert publisher is not None
    with monkeypatch.context() as patched:
        patched.setattr(publisher, "publish", lambda *_: None)
        for _ in range(4):
            assert reason(ask(router, new(random))) == "cold", "it may still come"
        assert router.worker().ready
        still = router.metric("warmroute_kv_still_seconds", **where)
        text = new(random)
        assert reason(ask(router, text)) == "cold (silent)"
        again = ask(router, text)
        assert again.headers["x-warmroute-decision"].startswith("prefix (silent);")
        assert min(predicted(again), cached(again)) > 1000
        assert router.metric("warmroute_kv_trusted", **where) == 0
        assert router.metric("warmroute_kv_still_seconds", **where) > still >= 0
        assert router.http.get("/health/ready").json()["blind"] == {"default": 1}
        (shown,) = router.http.get("/kv").json()
        assert (shown["doubt"], shown["streams"][0]["state"]) == ("silent", "live")
    ask(router, new(random))
    until(lambda: router.metric("warmroute_kv_trusted", **where) == 1)
    assert reason(ask(router, new(random))) == "cold"
    assert router.http.get("/health/ready").json()["status"] == "ready"


def test_events_that_come_faster_than_they_are_applied(
    fleet: MakeFleet, kvaware: MakeKvAware
) -> None:
    """While they are far behind, their worker is judged by placements; metrics say how far."""
    simulated = fleet(workers=1)
    router = kvaware(*simulated.urls, strategy=EXACT)
    where = {"pool": "default", "worker": router.worker().name}
    text = new(Random(12))
    ask(router, text)
    settle(router, simulated)
    until(lambda: router.metric("warmroute_kv_behind_seconds", **where) == 0)
    ((_, memory),) = router.door.memories.pools()
    (source,) = memory.all_sources()

    def fall_behind() -> None:
        source.lag.came(100.0)
        source.lag.applied(126.0, 0.0, first=False)

    router.call(fall_behind)
    assert router.metric("warmroute_kv_behind_seconds", **where) == 26
    assert router.metric("warmroute_kv_trusted", **where) == 0
    assert router.http.get("/health/ready").json()["blind"] == {"default": 1}
    (shown,) = router.http.get("/kv").json()
    assert (shown["doubt"], shown["streams"][0]["seconds_behind"]) == ("late", 26)
    assert reason(ask(router, text)) == "prefix (late)"
    ask(router, new(Random(13)))  # with new blocks, so that events follow; then none waits
    until(lambda: router.metric("warmroute_kv_trusted", **where) == 1)
    until(lambda: router.metric("warmroute_kv_behind_seconds", **where) == 0)
    assert reason(ask(router, text)) == "prefix"


def test_a_lost_session_goes_where_most_of_it_is(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """KV events give the prediction while a session stays, and the new worker when it must move."""
    made = fleet(workers=3)
    strategy = {"name": "session", "over": "kvaware"}
    router = kvaware(*made.urls, strategy=strategy)
    text = f"{uuid.uuid4()} " + "All the king's horses. " * 120

    def turn(session: str, *, level: bool = True) -> tuple[str, str, int, int]:
        answer = router.http.post(CHAT, json=chat(text), headers={"x-session-id": session})
        until(router.idle)
        if level:
            settle(router, made)
        word = answer.headers["x-warmroute-session"].partition(";")[0]
        return answer.headers["x-warmroute-worker"], word, predicted(answer), cached(answer)

    home, word, _, _ = turn("a")
    assert word == "new"
    again = turn("a")
    assert again[:2] == (home, "kept")
    assert again[2] == again[3] > 0
    pool = router.door.fleet.pools[0]
    worker = next(one for one in pool.workers if one.name == home)
    worker.draining = True
    router.call(lambda: pool.change(pool.models, pool.workers))
    other = turn("b")[0]
    assert other != home
    worker.draining = False
    router.call(lambda: pool.change(pool.models, pool.workers))
    made.run(next(one for one in made.workers if one.url == worker.url).stop())
    until(lambda: not worker.ready)
    moved = turn("a", level=False)
    assert moved[:2] == (other, "rebound")
    assert moved[2] == moved[3] > 0
