"""Where a session goes if its worker fails, is ejected, drained or full."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest

from router.fleet.pool import Pool
from router.sessions.sessions import Sessions
from router.sessions.table import Binding
from strategies.api import FREE, Candidate
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
FULL: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]
OPENS: dict[str, Any] = {**CHAT, "requestType": "NEW_SESSION", "extSessionID": "mine"}
HEADER = "X-Amzn-SageMaker-Session-Id"
NEW = "x-amzn-sagemaker-new-session-id"
EVENTS = "warmroute_session_events_total"


def ask(router: Router, session: str) -> httpx.Response:
    """Send one turn of a session."""
    named = {"x-session-id": session}
    return router.http.post("/v1/chat/completions", json=CHAT, headers=named)


def two(stub: MakeStub) -> tuple[dict[str, Stub], list[dict[str, Any]]]:
    """Start two workers; return them by name, and as settings list them."""
    workers = {name: stub() for name in "ab"}
    return workers, [{"url": one.url, "name": name} for name, one in workers.items()]


def leave_out(router: Router, name: str) -> None:
    """Let a worker fail until it is ejected."""

    def fail() -> None:
        breaker = router.door.fleet.pools[0].named[name].breaker
        for _ in range(5):
            now = time.monotonic()
            breaker.failed(now, breaker.began(now), "5xx")

    router.call(fail)


def test_a_worker_that_is_left_out_is_lost(stub: MakeStub, route: MakeRouter) -> None:
    """Its sessions move, and header, decision and metric agree on that."""
    _, listed = two(stub)
    router = route(*listed, strategy="session")
    home = ask(router, "k").headers["x-warmroute-worker"]
    leave_out(router, home)
    reply = ask(router, "k")
    assert reply.headers["x-warmroute-worker"] != home
    assert reply.headers["x-warmroute-session"].startswith("rebound;")
    assert reply.headers["x-warmroute-decision"].startswith("rebind")
    counts = [router.metric(EVENTS, pool="default", event=one) for one in ("rebound", "spilled")]
    assert counts == [1, 0]


@pytest.mark.parametrize("stateful", [False, True])
def test_sessions_that_cannot_move_ask_it_all_the_same(
    stub: MakeStub, route: MakeRouter, stateful: bool
) -> None:
    """An ejected worker is asked if nobody else could answer; once it is gone, sessions end."""
    workers, listed = two(stub)
    rules = {} if stateful else {"session": {"on_worker_lost": "error"}}
    listed = [{**one, "stateful": stateful} for one in listed]
    router = route(*listed, strategy="session", **rules)
    home = ask(router, "k").headers["x-warmroute-worker"]
    leave_out(router, home)
    reply = ask(router, "k")
    assert (reply.status_code, reply.headers["x-warmroute-worker"]) == (200, home)
    assert reply.headers["x-warmroute-session"].startswith("kept;")
    workers[home].stop()
    assert ask(router, "k").status_code == 410
    assert router.metric(EVENTS, pool="default", event="lost") == 1


@pytest.mark.parametrize("strategy", ["session", {"name": "session", "spill": "1s"}])
def test_a_drained_worker_keeps_its_sessions_when_nobody_else_is_there(
    stub: MakeStub, route: MakeRouter, strategy: str | dict[str, str]
) -> None:
    """Its sessions are served; other requests get 503, as every worker is drained or gone."""
    workers, listed = two(stub)
    router = route(*listed, strategy=strategy, timeouts={"queue": "100ms"})
    home = ask(router, "k").headers["x-warmroute-worker"]
    pool = router.door.fleet.pools[0]

    def drain() -> None:
        for worker in pool.workers:
            worker.draining = True
            if worker.name != home:
                worker.lost("for a test")
        pool._staff(pool.workers)

    workers["b" if home == "a" else "a"].stop()
    router.call(drain)
    reply = ask(router, "k")
    assert (reply.status_code, reply.headers.get("x-warmroute-worker")) == (200, home)
    assert ask(router, "other").status_code == 503
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 503
    opened = router.http.post("/invocations", json={"requestType": "NEW_SESSION"})
    assert opened.status_code == 503


def test_a_session_is_not_moved_where_it_is_not_sent(stub: MakeStub, route: MakeRouter) -> None:
    """If its worker is full and no retry is allowed, a session stays, and no move is counted."""
    workers, listed = two(stub)
    strategy = {"name": "session", "over": "leastload", "spill": "1h"}
    waits = {"queue": "100ms"}
    router = route(*listed, strategy=strategy, limits={"retries": 0.0}, timeouts=waits)
    home = ask(router, "k").headers["x-warmroute-worker"]
    workers[home].script = FULL
    assert ask(router, "k").status_code == 503
    workers[home].script = OK
    reply = ask(router, "k")
    assert reply.headers["x-warmroute-worker"] == home
    assert router.metric(EVENTS, pool="default", event="spilled") == 0


class TestBeginningAgain:
    """A session whose first prompt was not answered."""

    def test_has_not_begun(self, stub: MakeStub, route: MakeRouter) -> None:
        """It can be tried again, also with the client's own id; errors announce no session."""
        worker = stub(FULL)
        router = route(worker.url, strategy="session")
        for body in (OPENS, OPENS, CHAT):
            reply = router.http.post("/invocations", json=body, headers={HEADER: "NEW_SESSION"})
            assert reply.headers["x-amzn-errortype"] == "ServiceUnavailable"
            assert NEW not in reply.headers
        head = {HEADER: "NEW_SESSION"}
        refused = router.http.post("/v1/chat/completions", json=CHAT, headers=head)
        assert (refused.status_code, NEW in refused.headers) == (503, False)
        assert router.http.get("/sessions").json() == []
        worker.script = OK
        reply = router.http.post("/invocations", json=OPENS, headers={HEADER: "NEW_SESSION"})
        assert reply.headers[NEW].startswith("mine;")

    def test_nor_where_the_worker_is_gone(self, stub: MakeStub, route: MakeRouter) -> None:
        """If the worker dies or refuses the connection, no session is open, and none is counted."""
        worker = stub([0.01, "close"])
        router = route(worker.url, strategy="session")
        reply = router.http.post("/invocations", json=OPENS)
        assert reply.headers["x-amzn-errortype"] == "ModelError"
        worker.stop()
        reply = router.http.post("/invocations", json=OPENS)
        assert reply.headers["x-amzn-errortype"] == "ServiceUnavailable"
        assert router.http.get("/sessions").json() == []
        assert router.metric(EVENTS, pool="default", event="new") == 0

    def test_the_same_call_sent_again_is_no_other(self, stub: MakeStub, route: MakeRouter) -> None:
        """The SDK repeats a call whose answer was lost: same call, same session."""
        router = route(stub().url, strategy="session")
        opens = {"requestType": "NEW_SESSION", "extSessionID": "mine"}
        call = {"amz-sdk-invocation-id": "call-1"}
        first, again = (router.http.post("/invocations", json=opens, headers=call) for _ in "12")
        assert first.headers[NEW] == again.headers[NEW]
        call["amz-sdk-invocation-id"] = "call-2"
        assert router.http.post("/invocations", json=opens, headers=call).status_code == 400
        assert router.http.post("/invocations", json=opens).status_code == 400


def with_two(stub: MakeStub, route: MakeRouter) -> tuple[Router, Pool, Sessions]:
    """Start a router with two workers; return it with its pool and the pool's sessions."""
    _, listed = two(stub)
    router = route(*listed, strategy="session")
    pool = router.door.fleet.pools[0]
    assert pool.sessions is not None
    return router, pool, pool.sessions


def meet_in(router: Router, meet: Coroutine[Any, Any, None]) -> None:
    """Run this in the router's own loop."""
    loop = router.server.loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(meet, loop).result(20)


def test_a_first_request_that_is_refused_after_others_have_followed(
    stub: MakeStub, route: MakeRouter
) -> None:
    """They were told that the session exists, so its later move is announced like any other."""
    router, pool, sessions = with_two(stub, route)
    home, other = (Candidate(worker, FREE) for worker in pool.workers)
    states: list[str] = []

    async def meet() -> None:
        first, second = sessions.named("k"), sessions.named("k")
        for visit in (first, second):
            await visit.look(pool, pool.workers)
        for visit in (first, second):
            chosen = await visit.settle(home, [home, other], pool, "m")
            assert chosen is home
        assert (await first.settle(other, [home, other], pool, "m")) is other
        states.append(first.state)

    meet_in(router, meet())
    assert states == ["spilled"]


def test_a_start_that_others_have_moved_meanwhile_is_looked_up_again(
    stub: MakeStub, route: MakeRouter
) -> None:
    """Its first worker refused; until it is decided again, the session is nobody's but its own."""
    router, pool, sessions = with_two(stub, route)
    home, other = (Candidate(worker, FREE) for worker in pool.workers)
    found: list[str] = []

    async def meet() -> None:
        visit = sessions.named("k")
        await visit.look(pool, pool.workers)
        await visit.settle(home, [home, other], pool, "m")
        await visit.look(pool, pool.workers)
        found.append(visit.place(pool))
        await sessions.bind("k", Binding(other.worker.name), home.worker.name)
        await visit.settle(other, [home, other], pool, "m")
        await visit.look(pool, pool.workers)
        found.append(visit.place(pool))

    meet_in(router, meet())
    assert found == ["", other.worker.name]


@pytest.mark.parametrize("operation", ["invocations", "invocations-response-stream"])
@pytest.mark.parametrize("status", ["200 OK", "500 Broken"])
def test_a_stream_that_ends_before_any_of_it_was_told(
    stub: MakeStub, route: MakeRouter, operation: str, status: str
) -> None:
    """The worker fails within a stream that nobody asked for, or within an error answer."""
    fields = "content-type: text/event-stream\r\ncontent-length: 500\r\n\r\n"
    part = f"HTTP/1.1 {status}\r\n{fields}data: {{}}\n\n"
    worker = stub([part.encode(), 0.05, "close"])
    router = route(worker.url, strategy="session")
    reply = router.http.post(f"/endpoints/x/{operation}", json={"inputs": "Hello"})
    if operation == "invocations" or status.startswith("500"):
        assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (424, "ModelError")
        assert reply.json()["OriginalStatusCode"] == 502
    else:
        assert reply.status_code == 200
        assert b"ModelStreamError" in reply.content
    until(router.idle)


@pytest.mark.parametrize("trouble", ["dies", "talks for ever"])
def test_an_answer_that_cannot_be_told_begins_nothing(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """A worker's answer that was held back and fails: the client gets an error and no session."""
    monkeypatch.setattr("router.sagemaker.response.MAX_CONVERTED_BYTES", 4)
    part = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"
    worker = stub([part, 0.05, "close"] if trouble == "dies" else OK)
    router = route(worker.url, strategy="session")
    body = {"inputs": "Hello", "requestType": "NEW_SESSION", "extSessionID": "mine"}
    for _ in range(2):  # the second time, the id is free again
        reply = router.http.post("/invocations", json=body, headers={HEADER: "NEW_SESSION"})
        assert reply.headers["x-amzn-errortype"] == "ModelError"
        assert not {NEW, "x-warmroute-session"} & set(reply.headers)
        until(lambda: router.http.get("/sessions").json() == [])
