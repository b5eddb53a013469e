"""Where a session goes if its worker fails, is ejected, drained or full."""

import asyncio
from time import monotonic
from typing import Any

import pytest

from router.fleet.worker import ProbeState
from strategies.api import FREE, Candidate
from tests.reload.changing import change
from tests.sessions.asking import (
    CHAT,
    FULL,
    PATH,
    SPILLS,
    Pair,
    ask,
    events,
    homes,
    invoke,
    paired,
    state,
)
from tests.support import OK, Action, MakeRouter, MakeStub, Router


def eject(pair: Pair) -> None:
    """Let the session's worker fail until it is ejected."""
    breaker = pair.router.door.fleet.pools[0].named[pair.home].breaker

    def fail() -> None:
        while breaker.closed:
            breaker.failed(monotonic(), breaker.began(monotonic()), "5xx")

    pair.router.call(fail)


def decisions(router: Router) -> dict[str, float]:
    """Return the number of decisions, by reason."""
    words, name = ("bind", "session", "spill", "rebind"), "warmroute_decisions_total"
    counts = {word: router.metric(name, pool="default", reason=word) for word in words}
    return {word: count for word, count in counts.items() if count}


def test_an_ejected_worker_is_lost(stub: MakeStub, route: MakeRouter) -> None:
    """Its sessions move, and header, decision and metric agree on that."""
    pair = paired(stub, route)
    eject(pair)
    reply = ask(pair.router, "a")
    assert (reply.headers["x-warmroute-worker"], state(reply)) == (pair.other, "rebound")
    assert reply.headers["x-warmroute-decision"].startswith("rebind")
    assert [events(pair.router, event) for event in ("rebound", "spilled")] == [1, 0]


@pytest.mark.parametrize("stateful", [False, True])
def test_sessions_that_cannot_move_ask_it_all_the_same(
    stub: MakeStub, route: MakeRouter, stateful: bool
) -> None:
    """An ejected worker is asked if nobody else could answer; once it is gone, sessions end."""
    rules = {} if stateful else {"session": {"on_worker_lost": "error"}}
    pair = paired(stub, route, stateful=stateful, **rules)
    eject(pair)
    reply = ask(pair.router, "a")
    assert (reply.headers["x-warmroute-worker"], state(reply)) == (pair.home, "kept")
    pair.workers[pair.home].stop()
    assert ask(pair.router, "a").status_code == 410
    assert events(pair.router, "lost") == 1


@pytest.mark.parametrize("strategy", ["session", {"name": "session", "spill": "1s"}])
def test_a_drained_worker_keeps_its_sessions_when_nobody_else_is_there(
    stub: MakeStub, route: MakeRouter, strategy: str | dict[str, str]
) -> None:
    """Its sessions are served; other requests get 503, as every worker is drained or gone."""
    rules: dict[str, Any] = {"strategy": strategy, "timeouts": {"queue": "100ms"}}
    pair = paired(stub, route, **rules)
    pair.workers[pair.other].stop()
    change(pair.router, *({**worker, "drain": True} for worker in pair.listed), **rules)
    reply = ask(pair.router, "a")
    assert (reply.headers["x-warmroute-worker"], state(reply)) == (pair.home, "kept")
    others = ask(pair.router, "other"), ask(pair.router), invoke(pair.router, {**CHAT})
    assert [reply.status_code for reply in others] == [503] * 3


def test_a_worker_that_fails_its_probes_but_is_busy(stub: MakeStub, route: MakeRouter) -> None:
    """A session leaves it while another worker is ready, even if sessions stay otherwise."""
    pair = paired(stub, route, health={"interval": "1h"})
    worker = next(w for w in pair.router.door.fleet.workers if w.name == pair.home)
    worker.become(ProbeState.BUSY, "for a test")
    reply = ask(pair.router, "a")
    assert (reply.headers["x-warmroute-worker"], state(reply)) == (pair.other, "spilled")


@pytest.mark.parametrize("spills", [False, True])
def test_a_full_worker(stub: MakeStub, route: MakeRouter, spills: bool) -> None:
    """Its session gets the 503 and stays; if it may, it moves instead, which header, decision and
    metric tell."""
    pair = paired(stub, route, strategy=SPILLS if spills else "session")
    pair.workers[pair.home].script = FULL
    reply = ask(pair.router, "a")
    if spills:
        assert (reply.headers["x-warmroute-worker"], state(reply)) == (pair.other, "spilled")
        assert reply.headers["x-warmroute-decision"].startswith("spill;")
        assert (events(pair.router, "spilled"), decisions(pair.router)) == (
            1,
            {"bind": 1, "spill": 1},
        )
    else:
        assert (reply.status_code, reply.headers["x-warmroute-worker"]) == (503, pair.home)
    pair.workers[pair.home].script = OK
    again = ask(pair.router, "a")
    home = pair.other if spills else pair.home
    assert (again.headers["x-warmroute-worker"], state(again)) == (home, "kept")


def test_a_worker_with_no_room_left(stub: MakeStub, route: MakeRouter) -> None:
    """A session that may moves rather than wait, and its next request follows it."""
    strategy = {**SPILLS, "spill": "1ms"}
    pair = paired(stub, route, strategy=strategy, limits={"in_flight": 1})
    done, first = pair.busied()
    second = ask(pair.router, "a")
    done.append(1)
    assert (second.headers["x-warmroute-worker"], state(second)) == (pair.other, "spilled")
    assert first.worker() == pair.home
    third = ask(pair.router, "a")
    assert (third.headers["x-warmroute-worker"], state(third)) == (pair.other, "kept")


def test_a_session_is_not_moved_where_it_is_not_sent(stub: MakeStub, route: MakeRouter) -> None:
    """If its worker is full and no retry is allowed, a session stays, and no move is counted."""
    limits, waits = {"retries": 0.0}, {"queue": "100ms"}
    pair = paired(stub, route, strategy=SPILLS, limits=limits, timeouts=waits)
    pair.workers[pair.home].script = FULL
    assert ask(pair.router, "a").status_code == 503
    assert (homes(pair.router), events(pair.router, "spilled")) == ({"a": pair.home}, 0)


@pytest.mark.parametrize("last", [FULL, None], ids=["both full", "the other one dead"])
def test_a_session_stays_if_nobody_takes_its_request(
    stub: MakeStub, route: MakeRouter, last: list[Action] | None
) -> None:
    """It was only tried elsewhere; header, decision, metric and list agree that it stayed."""
    pair = paired(stub, route, strategy=SPILLS)
    pair.workers[pair.home].script = FULL
    if last is None:
        pair.workers[pair.other].stop()
    else:
        pair.workers[pair.other].script = last
    refused = ask(pair.router, "a")
    assert refused.status_code == 503
    if last is not None:
        assert refused.headers["x-warmroute-session"].startswith("kept;")
        assert refused.headers["x-warmroute-decision"].partition(";")[0] == "session"
    assert (homes(pair.router), events(pair.router, "spilled")) == ({"a": pair.home}, 0)
    assert decisions(pair.router) == {"bind": 1, "session": 1}
    pair.workers[pair.home].script = OK
    assert ask(pair.router, "a").headers["x-warmroute-worker"] == pair.home


def test_a_session_is_where_its_request_may_have_begun(stub: MakeStub, route: MakeRouter) -> None:
    """If the worker that took it dies before it answers, it has moved, and that is counted."""
    pair = paired(stub, route, strategy=SPILLS)
    pair.workers[pair.home].script = FULL
    pair.workers[pair.other].script = [0.1, "close"]
    assert ask(pair.router, "a").status_code == 502
    assert (homes(pair.router), events(pair.router, "spilled")) == ({"a": pair.other}, 1)
    assert decisions(pair.router) == {"bind": 1, "spill": 1}


def test_a_first_request_that_is_refused_after_others_have_followed(
    stub: MakeStub, route: MakeRouter
) -> None:
    """They were told that the session exists, so its later move is announced like any other."""
    router = route(stub().url, stub().url, strategy="session")
    pool, loop = router.door.fleet.pools[0], router.server.loop
    sessions = pool.sessions
    assert sessions is not None
    assert loop is not None
    home, other = (Candidate(worker, FREE) for worker in pool.workers)

    async def meet() -> str:
        first, second = sessions.named("k"), sessions.named("k")
        for use in (first, second):
            await use.look(pool, pool.workers)
        for use in (first, second):
            assert (await use.settle(home, [home, other], pool, "m")) is home
        assert (await first.settle(other, [home, other], pool, "m")) is other
        return str(first.state)

    assert asyncio.run_coroutine_threadsafe(meet(), loop).result(20) == "spilled"


def test_a_new_session_s_worker_refuses(stub: MakeStub, route: MakeRouter) -> None:
    """The session begins on another worker, even if sessions end with their worker."""
    workers = [stub() for _ in range(2)]
    rules = {"on_worker_lost": "error"}
    router = route(*(one.url for one in workers), strategy="session", session=rules)
    workers[0].stop()
    replies = [router.http.post(PATH, json=CHAT, headers={"x-session-id": key}) for key in "abcd"]
    assert [state(reply) for reply in replies] == ["new"] * 4
    assert events(router, "new") == 4
