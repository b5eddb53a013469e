"""A session that was to begin with a prompt and did not: what is undone, and what is not."""

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import pytest

from router.sessions.outage import Outage
from router.sessions.store import MemoryStore
from router.sessions.table import Binding, Bound, OpenSession, SessionLease
from tests.cancel.leaving import CHAT as PATH
from tests.cancel.leaving import PATIENT, chat, unreachable
from tests.support import OK, MakeRouter, MakeStub, Router, post, read_all, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
OPENS = {**CHAT, "requestType": "NEW_SESSION", "extSessionID": "mine"}
HEADER = "X-Amzn-SageMaker-Session-Id"
EVENTS = "warmroute_session_events_total"


def invoke(router: Router, body: dict[str, Any], key: str = "NEW_SESSION") -> httpx.Response:
    """Send what boto3 would send."""
    return router.http.post("/invocations", json=body, headers={HEADER: key})


def test_somebody_else_s_session_of_the_same_id_stays(stub: MakeStub, route: MakeRouter) -> None:
    """It was closed during its first prompt and begun again by another client: that one stays."""
    done: list[int] = []
    broken = b"HTTP/1.1 500 Broken\r\ncontent-length: 2\r\n\r\n{}"
    worker = stub([lambda: bool(done), broken])
    router = route(worker.url, strategy="session")
    replies: list[httpx.Response] = []
    first = threading.Thread(target=lambda: replies.append(invoke(router, OPENS)))
    first.start()
    until(lambda: worker.requests)
    assert invoke(router, {"requestType": "CLOSE"}, "mine").status_code == 200
    anew = {"requestType": "NEW_SESSION", "extSessionID": "mine"}
    assert invoke(router, anew).status_code == 200
    done.append(1)
    first.join(20)
    assert replies[0].headers["x-amzn-errortype"] == "ModelError"
    worker.script = OK
    assert invoke(router, CHAT, "mine").status_code == 200


@pytest.mark.parametrize("status", [400, 500])
def test_a_session_that_its_worker_refuses_has_not_begun(
    stub: MakeStub, route: MakeRouter, status: int
) -> None:
    """Its id stays unknown, and can be used to begin a session."""
    worker = stub([b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % status])
    router = route(worker.url, strategy="session")
    assert invoke(router, OPENS).headers["x-amzn-errortype"] == "ModelError"
    worker.script = OK
    assert invoke(router, CHAT, "mine").status_code == 400
    assert invoke(router, OPENS).status_code == 200


def test_the_same_is_told_to_a_store_that_was_away() -> None:
    """A close recorded during an outage ends only the session that began at that time."""
    now = [1.0]

    async def told() -> OpenSession | None:
        store = MemoryStore(SessionLease(), lambda: now[0])
        await store.bind("a", Binding("w"), None)
        away = Outage(9)
        assert away.close("a", begun=1.0)
        await store.close("a")
        now[0] = 2.0
        await store.bind("a", Binding("v"), None)
        await away.tell_ends(store)
        return await store.use("a")

    assert asyncio.run(told()) is not None


def test_what_was_begun_again_while_it_was_away_stays() -> None:
    """A session begun again with the same id is not closed with its predecessor's start time."""
    away = Outage(9)
    away.begin("a", OpenSession("w", 1.0, 9.0, 1.0))
    away.close("a")
    away.begin("a", OpenSession("w", 2.0, 9.0, 2.0))
    assert not away.close("a", begun=1.0)
    assert away.find("a") is not None
    assert away.close("a", begun=2.0)


@pytest.mark.parametrize("stateful", [False, True])
def test_a_client_that_leaves_while_it_is_bound(
    stub: MakeStub, route: MakeRouter, stateful: bool
) -> None:
    """The store has bound it and its answer is on the way, so the binding is undone."""
    line = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Amzn-SageMaker-New-Session-Id: w-1\r\n\r\n{}"
    worker = stub([line])
    router = route({"url": worker.url, "stateful": stateful}, strategy="session")
    sessions = router.door.fleet.pools[0].sessions
    assert sessions is not None
    store = Slow(MemoryStore(SessionLease(), time.time))
    router.call(lambda: sessions.keep_in(store))
    body = json.dumps(OPENS).encode()
    fields = b"%b: NEW_SESSION" % HEADER.encode()
    client = post(router.port, "/invocations", body, fields)
    until(lambda: store.bound)
    client.close()
    until(lambda: router.door.dispatcher.scheduler.in_flight == 0)
    until(lambda: store.store.kept().open == 0)
    assert invoke(router, OPENS).status_code == 200


class TestLeavingBeforeItsWorkerIsConnected:
    """A client leaves while its worker, to which its session is bound, is being connected to."""

    def leave(self, router: Router, worker: str, path: str, body: dict[str, Any]) -> None:
        """Leave as soon as the session `mine` is bound to this worker."""
        fields = b"x-session-id: mine"
        with post(router.port, path, json.dumps(body).encode(), fields):
            until(lambda: homes(router) == {"mine": worker})
            until(lambda: router.door.fleet.pools[0].named[worker].load.in_flight == 1)
        until(lambda: router.door.dispatcher.scheduler.in_flight == 0)

    @pytest.mark.parametrize("opens", [True, False])
    def test_one_that_was_to_begin(self, stub: MakeStub, route: MakeRouter, opens: bool) -> None:
        """It has not begun if it was to be opened; it has if its client named it."""
        worker = stub()
        router = route({"url": worker.url, "name": "a"}, strategy="session", **PATIENT)
        with unreachable(worker):
            self.leave(router, "a", *(("/invocations", OPENS) if opens else (PATH, CHAT)))
        assert homes(router) == ({} if opens else {"mine": "a"})
        assert router.metric(EVENTS, pool="default", event="new") == (0 if opens else 1)

    @pytest.mark.parametrize("trouble", ["full", "gone"])
    def test_one_that_was_to_move(self, stub: MakeStub, route: MakeRouter, trouble: str) -> None:
        """It stays where it was, and no move is counted."""
        workers = {name: stub() for name in "ab"}
        listed = [{"url": one.url, "name": name} for name, one in workers.items()]
        strategy = {"name": "session", "over": "leastload", "spill": "1h"}
        router = route(*listed, strategy=strategy, **PATIENT)
        first = router.http.post(PATH, json=CHAT, headers={"x-session-id": "mine"})
        home = first.headers["x-warmroute-worker"]
        other = "b" if home == "a" else "a"
        if trouble == "full":
            workers[home].script = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]
        else:
            workers[home].stop()
        with unreachable(workers[other]):
            self.leave(router, other, PATH, CHAT)
        assert homes(router) == {"mine": home}
        for event in ("spilled", "rebound"):
            assert router.metric(EVENTS, pool="default", event=event) == 0


def homes(router: Router) -> dict[str, str]:
    """Return the open sessions and their workers."""
    return {one["id"]: one["worker"] for one in router.http.get("/sessions").json()}


@pytest.mark.parametrize("ends", ["client leaves", "worker closes"])
def test_one_that_has_moved_stays(stub: MakeStub, route: MakeRouter, ends: str) -> None:
    """Its new worker was sent the prompt and may compute it, so the session stays there."""
    closes = threading.Event()
    workers = {name: stub() for name in "ab"}
    listed = [{"url": one.url, "name": name} for name, one in workers.items()]
    router = route(*listed, strategy={"name": "session", "over": "leastload", "spill": "1h"})
    first = router.http.post(PATH, json=CHAT, headers={"x-session-id": "mine"})
    home = first.headers["x-warmroute-worker"]
    other = "b" if home == "a" else "a"
    workers[home].script = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]
    workers[other].script = [closes.is_set, "close"]
    fields = b"x-session-id: mine", b"connection: close"
    with post(router.port, PATH, json.dumps(CHAT).encode(), *fields) as client:
        until(lambda: workers[other].requests)
        if ends == "worker closes":
            closes.set()
            read_all(client)
    closes.set()
    until(lambda: router.door.dispatcher.scheduler.in_flight == 0)
    assert homes(router) == {"mine": other}
    assert router.metric(EVENTS, pool="default", event="spilled") == 1


@pytest.mark.parametrize("opens", [True, False])
def test_a_client_that_leaves_while_it_is_undone(
    stub: MakeStub, route: MakeRouter, opens: bool
) -> None:
    """The store was busy, and does it later: what did not begin is closed, what moved is back."""
    workers = {name: stub() for name in "ab"}
    listed = [{"url": one.url, "name": name} for name, one in workers.items()]
    router = route(*listed, strategy={"name": "session", "over": "leastload", "spill": "1h"})
    sessions = router.door.fleet.pools[0].sessions
    assert sessions is not None
    store = Busy(MemoryStore(SessionLease(), time.time))
    router.call(lambda: sessions.keep_in(store))
    before = {}
    if not opens:
        first = router.http.post(PATH, json=CHAT, headers={"x-session-id": "mine"})
        before["mine"] = first.headers["x-warmroute-worker"]
    for worker in workers.values():
        worker.script = [b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % (500 if opens else 503)]
    field = f"{HEADER}: NEW_SESSION" if opens else "x-session-id: mine"
    path, body = ("/invocations", OPENS) if opens else (PATH, CHAT)
    with post(router.port, path, json.dumps(body).encode(), field.encode()):
        until(lambda: store.undoing)
    until(lambda: len(router.door.clients) == len(before))
    store.free.set()
    until(lambda: router.door.dispatcher.scheduler.in_flight == 0)
    assert homes(router) == before
    for event, count in {"new": len(before), "spilled": 0, "rebound": 0}.items():
        assert router.metric(EVENTS, pool="default", event=event) == count


def test_many_that_fail_to_begin_at_once(stub: MakeStub, route: MakeRouter) -> None:
    """Each error names its own worker, while the sessions of the others are still being undone."""
    fails = threading.Event()
    workers = {model: stub([fails.is_set, "close"], model) for model in "abc"}
    router = route(*(worker.url for worker in workers.values()), strategy="session")
    sessions = router.door.fleet.pools[0].sessions
    assert sessions is not None
    store = Slow(MemoryStore(SessionLease(), time.time))
    router.call(lambda: sessions.keep_in(store))
    fields = b"%b: NEW_SESSION" % HEADER.encode(), b"connection: close"
    clients = [
        (worker, post(router.port, PATH, chat(stream=False, model=model), *fields))
        for model, worker in workers.items()
        for _ in range(3)
    ]
    until(lambda: all(len(worker.requests) == 3 for worker in workers.values()))
    fails.set()
    for worker, client in clients:
        with client:
            told = read_all(client)
        assert told.startswith(b"HTTP/1.1 502 ")
        assert b"Worker %b closed" % worker.url[7:].encode() in told
    assert store.store.kept().open == 0
    until(lambda: router.door.dispatcher.scheduler.in_flight == 0)


class Slow:
    """A store whose answers are slow."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.bound = 0
        """Number of calls of `bind` so far."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind at once, answer later."""
        bound = await self.store.bind(key, to, expected)
        self.bound += 1
        await asyncio.sleep(0.2)
        return bound

    async def close(self, key: str, *, begun: float | None = None) -> OpenSession | None:
        """Close at once, answer later."""
        closed = await self.store.close(key, begun=begun)
        await asyncio.sleep(0.2)
        return closed


class Busy(Slow):
    """A store that undoes nothing until it is free."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.free = threading.Event()
        self.undoing = False

    async def _wait(self) -> None:
        self.undoing = True
        while not self.free.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind at once, except a session that is to go back."""
        if to.used is not None:
            await self._wait()
        return await self.store.bind(key, to, expected)

    async def close(self, key: str, *, begun: float | None = None) -> OpenSession | None:
        """Close it once free."""
        await self._wait()
        return await self.store.close(key, begun=begun)
