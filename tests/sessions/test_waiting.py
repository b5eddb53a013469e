"""A session whose worker has no room waits there, in its turn and for a time."""

import time
from typing import Any

import pytest

from tests.reload.changing import change
from tests.sessions.asking import SPILLS, Later, ask, homes, paired, state
from tests.support import OK, MakeRouter, MakeStub, until

ONE: dict[str, Any] = {"in_flight": 1}


def test_a_session_waits_for_its_own_worker(stub: MakeStub, route: MakeRouter) -> None:
    """It waits although another worker is idle, and no other request waits because of it."""
    pair = paired(stub, route, limits=ONE)
    done, first = pair.busied()
    second = Later(pair.router, "a")
    until(lambda: pair.router.metric("warmroute_queue_length") == 1)
    for session in (None, "b", None):
        assert ask(pair.router, session).headers["x-warmroute-worker"] == pair.other
    assert pair.router.metric("warmroute_queue_length") == 1
    done.append(1)
    assert {first.worker(), second.worker()} == {pair.home}
    until(pair.router.idle)


@pytest.mark.parametrize(
    ("session", "became"), [("new", "new"), ("there", "rebound"), ("a", "kept")]
)
def test_it_waits_if_the_only_worker_with_room_is_gone(
    stub: MakeStub, route: MakeRouter, session: str, became: str
) -> None:
    """As a request without a session does: the other worker will have room again."""
    strategy = {"name": "session", "over": "roundrobin"}
    pair = paired(stub, route, strategy=strategy, limits=ONE, health={"interval": "1h"})
    assert ask(pair.router, "there").headers["x-warmroute-worker"] == pair.other
    done, first = pair.busied()
    pair.workers[pair.other].stop()
    later = Later(pair.router, session)
    until(lambda: later.replies or pair.router.metric("warmroute_queue_length") == 1)
    done.append(1)
    assert (later.worker(), state(later.reply())) == (pair.home, became)
    assert first.worker() == pair.home
    until(pair.router.idle)


@pytest.mark.parametrize("count", [1, 4])
def test_all_who_wait_have_their_turn(stub: MakeStub, route: MakeRouter, count: int) -> None:
    """Several requests of one session, or more new sessions than there is room for, all succeed."""
    workers = [stub([0.02, *OK]).url for _ in range(count)]
    router = route(*workers, strategy="session", limits=ONE)
    sessions = ["a"] * 5 if count == 1 else [f"s{n}" for n in range(16)]
    waiting = [Later(router, session) for session in sessions]
    assert [one.reply().status_code for one in waiting] == [200] * len(sessions)
    until(router.idle)


@pytest.mark.parametrize("changes", [False, True])
def test_a_session_does_not_wait_for_good(stub: MakeStub, route: MakeRouter, changes: bool) -> None:
    """It waits no longer than others, even if other workers are idle, and even if new settings let
    it go again and again."""
    bounds: dict[str, Any] = {"limits": ONE, "timeouts": {"queue": "400ms"}}
    pair = paired(stub, route, **bounds)
    done, first = pair.busied()
    late, count = Later(pair.router, "a"), 0
    while not late.replies:
        count += 1
        assert count < 200
        if changes:
            change(
                pair.router,
                *pair.listed,
                strategy="session",
                logs={"requests": bool(count % 2)},
                **bounds,
            )
        time.sleep(0.02)
    done.append(1)
    assert late.reply().json()["error"]["code"] == "overloaded"
    assert first.worker() == pair.home


@pytest.mark.parametrize("strategy", ["leastload", {**SPILLS, "spill": "1ms"}])
def test_it_waits_no_longer_if_the_settings_let_it_go(
    stub: MakeStub, route: MakeRouter, strategy: object
) -> None:
    """After a reload with another strategy, an idle worker answers what waited for a busy one."""
    pair = paired(stub, route, limits=ONE)
    done, first = pair.busied()
    second = Later(pair.router, "a")
    until(lambda: pair.router.metric("warmroute_queue_length") == 1)
    change(pair.router, *pair.listed, strategy=strategy, limits=ONE)
    assert second.worker() == pair.other
    done.append(1)
    assert first.worker() == pair.home


@pytest.mark.parametrize("lost", ["rebind", "error"])
def test_it_knows_the_session_that_it_has_started(
    stub: MakeStub, route: MakeRouter, lost: str
) -> None:
    """Its worker refused the connection and the other one was full; then the settings changed."""
    rules: dict[str, Any] = {"limits": ONE, "health": {"interval": "1h"}}
    rules["session"] = {"on_worker_lost": lost}
    pair = paired(stub, route, strategy={"name": "session", "over": "roundrobin"}, **rules)
    assert ask(pair.router, "b").headers["x-warmroute-worker"] == pair.other
    done, first = pair.busied()
    pair.workers[pair.other].stop()
    second = Later(pair.router, "fresh")
    until(lambda: pair.router.metric("warmroute_queue_length") == 1)
    change(pair.router, *pair.listed, strategy={"name": "session", "over": "leastload"}, **rules)
    done.append(1)
    assert (second.worker(), state(second.reply())) == (pair.home, "new")
    assert first.worker() == pair.home


def test_sessions_live_through_a_change_of_settings(stub: MakeStub, route: MakeRouter) -> None:
    """Sessions keep their workers, even if the strategy's options change."""
    listed = [stub().url for _ in range(3)]
    router = route(*listed, strategy="session")
    before = {key: ask(router, key).headers["x-warmroute-worker"] for key in "abcdef"}
    for strategy in ({"name": "session", "spill": "9s"}, {"name": "session", "over": "leastload"}):
        change(router, *listed, strategy=strategy, session={"ttl": "1h"})
        assert {key: ask(router, key).headers["x-warmroute-worker"] for key in before} == before


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_a_session_begins_where_its_model_is_by_then(
    stub: MakeStub, route: MakeRouter, path: str
) -> None:
    """Its first request waits while the model goes to another pool, which keeps its own."""
    pair = paired(stub, route, limits={"in_flight": 1})
    done, _ = pair.busied()
    home = next(one for one in pair.listed if one["name"] == pair.home)
    change(pair.router, home, strategy="session", limits=ONE)
    later = Later(pair.router, "NEW_SESSION", path)
    until(lambda: pair.router.metric("warmroute_queue_length") == 1)
    pools = [{"name": "other", "strategy": "session", "workers": [home]}]
    change(pair.router, pools=pools, limits=ONE)
    done.append(1)
    key = later.reply().headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
    assert homes(pair.router) == {key: pair.home}
