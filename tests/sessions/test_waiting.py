"""A session whose worker has no room waits there, in its turn and for a time."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from router.sessions.table import Binding
from router.upstream.connection import UpstreamConnection
from tests.reload.changing import change
from tests.sessions.asking import Later, ask
from tests.support import OK, MakeRouter, MakeStub, Router, until


def test_a_session_waits_for_its_own_worker(stub: MakeStub, route: MakeRouter) -> None:
    """It waits although another worker is idle, and no other request waits because of it."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    router = route(*listed, strategy="session", limits={"in_flight": 1})
    home = ask(router, "a").headers["x-warmroute-worker"]
    other = "w1" if home == "w0" else "w0"
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(workers[home].requests) == 2)
    second = Later(router, "a")
    until(lambda: router.metric("warmroute_queue_length") == 1)
    for session in (None, "b", None):
        assert ask(router, session).headers["x-warmroute-worker"] == other
    assert router.metric("warmroute_queue_length") == 1
    done.append(1)
    assert {first.worker(), second.worker()} == {home}
    until(router.idle)


@pytest.mark.parametrize("spill", ["off", "1ms"])
@pytest.mark.parametrize(
    ("session", "became"), [("new", "new"), ("there", "rebound"), ("home", "kept")]
)
def test_it_waits_if_the_only_worker_with_room_is_gone(
    stub: MakeStub, route: MakeRouter, session: str, became: str, spill: str
) -> None:
    """As a request without a session does: the other worker will have room again."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "roundrobin"}
    if spill != "off":
        strategy |= {"over": "leastload", "spill": spill}
    router = route(*listed, strategy=strategy, limits={"in_flight": 1}, health={"interval": "1h"})
    home, other = (ask(router, key).headers["x-warmroute-worker"] for key in ("home", "there"))
    assert home != other
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "first" if session == "home" else "home")
    until(lambda: len(workers[home].requests) == 2)
    workers[other].stop()
    later = Later(router, session)
    until(lambda: later.replies or router.metric("warmroute_queue_length") == 1)
    done.append(1)
    assert (later.status(), later.worker(), first.worker()) == (200, home, home)
    assert later.replies[0].headers["x-warmroute-session"].startswith(f"{became};")
    until(router.idle)


@pytest.mark.parametrize("meanwhile", ["moved", "closed", "nothing"])
def test_its_first_worker_is_there_again(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """While its first request waited, another router may have moved the session, or closed it."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "roundrobin"}
    health = {"interval": "1h", "rise": 1}
    router = route(*listed, strategy=strategy, limits={"in_flight": 1}, health=health)
    home, other = (ask(router, key).headers["x-warmroute-worker"] for key in ("home", "there"))
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "home")
    until(lambda: len(workers[home].requests) == 2)
    pool = router.door.fleet.pools[0]
    sessions, gone = pool.sessions, pool.named[other]
    assert sessions is not None
    workers[other].well = False
    router.call(gone.upstream.part)
    with monkeypatch.context() as patch:
        patch.setattr(gone.upstream, "_connect", refused)
        later = Later(router, "new")
        until(lambda: router.metric("warmroute_queue_length") == 1)
    if meanwhile == "moved":
        on_loop(router, sessions.bind("new", Binding(home), other))
    elif meanwhile == "closed":
        on_loop(router, sessions.close("new"))
    workers[other].well = True
    router.call(gone.attention.set)
    until(lambda: later.replies or (meanwhile == "moved" and gone.ready))
    done.append(1)
    assert later.worker() == (home if meanwhile == "moved" else other)
    assert (
        later.worker()
        == on_loop(router, sessions.find("new", pool, (), known=True, uses=False)).worker
    )
    assert first.worker() == home


async def refused(_: Sequence[str]) -> UpstreamConnection:
    """Connect to nobody."""
    raise ConnectionRefusedError(111, "Connection refused")


def on_loop(router: Router, doing: Coroutine[Any, Any, Any]) -> Any:
    """Do something on the router's event loop."""
    loop = router.server.loop
    assert loop is not None
    return asyncio.run_coroutine_threadsafe(doing, loop).result(20)


@pytest.mark.parametrize("count", [1, 4])
def test_all_who_wait_have_their_turn(stub: MakeStub, route: MakeRouter, count: int) -> None:
    """Several requests of one session, or more new sessions than there is room for, all succeed."""
    workers = [stub([0.02, *OK]) for _ in range(count)]
    listed = [worker.url for worker in workers]
    router = route(*listed, strategy="session", limits={"in_flight": 1})
    sessions = ["a"] * 5 if count == 1 else [f"s{n}" for n in range(16)]
    waiting = [Later(router, session) for session in sessions]
    assert [one.status() for one in waiting] == [200] * len(sessions)
    until(router.idle)


@pytest.mark.parametrize("strategies", [("session",), ("session", "leastload")])
def test_who_waits_again_does_not_begin_anew(
    stub: MakeStub, route: MakeRouter, strategies: tuple[str, ...]
) -> None:
    """A request that new settings let go again and again keeps its deadline, also where sessions
    begin and end meanwhile."""
    done: list[int] = []
    worker = stub()
    bounds: dict[str, Any] = {"limits": {"in_flight": 1}, "timeouts": {"queue": "400ms"}}
    router = route(worker.url, strategy="session", **bounds)
    assert ask(router, "a").status_code == 200
    worker.script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(worker.requests) == 2)
    late = Later(router, "a")
    changes = 0
    while not late.replies and changes < 200:
        changes += 1
        strategy = strategies[changes % len(strategies)]
        change(router, worker.url, strategy=strategy, logs={"requests": changes % 2 == 1}, **bounds)
        time.sleep(0.02)
    done.append(1)
    assert changes < 200
    assert late.status() == 503
    assert first.status() == 200


def test_a_session_does_not_wait_for_good(stub: MakeStub, route: MakeRouter) -> None:
    """It waits no longer than others, even if other workers are idle."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    bounds: dict[str, Any] = {"limits": {"in_flight": 1}, "timeouts": {"queue": "400ms"}}
    router = route(*listed, strategy="session", **bounds)
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(workers[home].requests) == 2)
    late = ask(router, "a")
    done.append(1)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "overloaded")
    assert first.worker() == home
    until(router.idle)
