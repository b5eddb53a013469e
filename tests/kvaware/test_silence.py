"""An engine that serves but stops publishing: placements decide, and the reason says so."""

from random import Random

import pytest

from tests.kvaware.conftest import MakeFleet, MakeKvAware
from tests.kvaware.test_kvaware_live import ask, cached, predicted, settle
from tests.support import Router, until


def new(random: Random) -> str:
    """Return a prompt of more than a thousand tokens that no worker has seen."""
    return "".join(random.choices("abcdefgh ", k=3000))


def decision(router: Router, text: str) -> str:
    """Return the reason of the decision for a prompt."""
    return ask(router, text).headers["x-warmroute-decision"].split(";")[0]


def test_events_that_stop_under_load(
    fleet: MakeFleet, kvaware: MakeKvAware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the stream is connected but silent, its worker is judged by placements, until events
    come again."""
    random, simulated = Random(11), fleet(workers=1)
    router = kvaware(*simulated.urls, strategy={"name": "kvaware", "unconfirmed": "0s"})
    where = {"pool": "default", "worker": router.worker().name}
    ask(router, new(random))
    settle(router, simulated)
    publisher = simulated.workers[0].publisher
    assert publisher is not None
    with monkeypatch.context() as patched:
        patched.setattr(publisher, "publish", lambda *_: None)
        for _ in range(4):
            assert decision(router, new(random)) == "cold", "it may still come"
        assert router.worker().ready
        still = router.metric("warmroute_kv_still_seconds", **where)
        text = new(random)
        assert decision(router, text) == "cold (silent)"
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
    assert decision(router, new(random)) == "cold"
    assert router.http.get("/health/ready").json()["status"] == "ready"


def test_events_that_come_faster_than_they_are_applied(
    fleet: MakeFleet, kvaware: MakeKvAware
) -> None:
    """While they are far behind, their worker is judged by placements; metrics say how far."""
    simulated = fleet(workers=1)
    router = kvaware(*simulated.urls, strategy={"name": "kvaware", "unconfirmed": "0s"})
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
    assert decision(router, text) == "prefix (late)"
    ask(router, new(Random(13)))  # with new blocks, so that events follow; then none waits
    until(lambda: router.metric("warmroute_kv_trusted", **where) == 1)
    until(lambda: router.metric("warmroute_kv_behind_seconds", **where) == 0)
    assert decision(router, text) == "prefix"
