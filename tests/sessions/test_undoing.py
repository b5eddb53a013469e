"""A session that was to begin or to move and did not: what is undone, and what is not."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from router.sessions.sessions import Outage
from router.sessions.store import MemoryStore
from router.sessions.table import Binding, Bound, OpenSession, SessionLease
from tests.cancel.leaving import PATIENT, unreachable
from tests.sessions.asking import (
    CHAT,
    CLOSE,
    FULL,
    HEADER,
    NEW,
    OPEN,
    OPENS,
    PATH,
    SPILLS,
    events,
    homes,
    invoke,
    paired,
)
from tests.support import OK, MakeRouter, MakeStub, Router, post, read_all, until

BEGIN = f"{HEADER}: NEW_SESSION".encode()


class Slow:
    """A store whose answers are slow, and that undoes nothing until it is free."""

    def __init__(self) -> None:
        self.store = MemoryStore(SessionLease(), time.time)
        self.free = threading.Event()
        self.bound = 0
        """Number of calls of `bind` so far."""
        self.undoing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def _wait(self) -> None:
        self.undoing = True
        while not self.free.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind at once and answer later, except a session that is to go back."""
        if to.used is not None:
            await self._wait()
        bound = await self.store.bind(key, to, expected)
        self.bound += 1
        await asyncio.sleep(0.05)
        return bound

    async def close(self, key: str, *, begun: float | None = None) -> OpenSession | None:
        """Close it once free."""
        await self._wait()
        return await self.store.close(key, begun=begun)


@pytest.fixture
def slow() -> Slow:
    """Such a store."""
    return Slow()


def keep_in(router: Router, store: Slow) -> None:
    """Have the router keep its sessions there."""
    sessions = router.door.fleet.pools[0].sessions
    assert sessions is not None
    router.call(lambda: sessions.keep_in(store))


def over(router: Router) -> Callable[[], bool]:
    """A condition: no request is being served."""
    return lambda: router.door.dispatcher.scheduler.in_flight == 0


def test_somebody_else_s_session_of_the_same_id_stays(stub: MakeStub, route: MakeRouter) -> None:
    """It was closed during its first prompt and begun again by another client: that one stays."""
    done: list[int] = []
    broken = b"HTTP/1.1 500 Broken\r\ncontent-length: 2\r\n\r\n{}"
    worker = stub([lambda: bool(done), broken])
    router = route(worker.url, strategy="session")
    with post(router.port, "/invocations", json.dumps(OPENS).encode(), b"connection: close") as it:
        until(lambda: worker.requests)
        assert invoke(router, CLOSE, "mine").status_code == 200
        assert invoke(router, {**OPEN, "extSessionID": "mine"}).status_code == 200
        done.append(1)
        assert b"ModelError" in read_all(it)
    worker.script = OK
    assert invoke(router, CHAT, "mine").status_code == 200


@pytest.mark.parametrize("stateful", [False, True])
def test_a_client_that_leaves_while_it_is_bound(
    stub: MakeStub, route: MakeRouter, slow: Slow, stateful: bool
) -> None:
    """The store has bound it and its answer is on the way, so the binding is undone."""
    slow.free.set()
    line = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n%b: w-1\r\n\r\n{}" % NEW.encode()
    worker = stub([line])
    router = route({"url": worker.url, "stateful": stateful}, strategy="session")
    keep_in(router, slow)
    with post(router.port, "/invocations", json.dumps(OPENS).encode(), BEGIN):
        until(lambda: slow.bound)
    until(over(router))
    until(lambda: slow.store.kept().open == 0)
    assert invoke(router, OPENS).status_code == 200


def leave(router: Router, worker: str, path: str, body: dict[str, Any]) -> None:
    """Leave as soon as the session `mine` is bound to this worker, before it is connected."""
    with post(router.port, path, json.dumps(body).encode(), b"x-session-id: mine"):
        until(lambda: homes(router).get("mine") == worker)
        until(lambda: router.door.fleet.pools[0].named[worker].load.in_flight == 1)
    until(over(router))


@pytest.mark.parametrize("opens", [True, False])
def test_one_that_was_to_begin(stub: MakeStub, route: MakeRouter, opens: bool) -> None:
    """It has not begun if it was to be opened; it has if its client named it."""
    worker = stub()
    router = route({"url": worker.url, "name": "a"}, strategy="session", **PATIENT)
    with unreachable(worker):
        leave(router, "a", *(("/invocations", OPENS) if opens else (PATH, CHAT)))
    assert homes(router) == ({} if opens else {"mine": "a"})
    assert events(router, "new") == (0 if opens else 1)


@pytest.mark.parametrize("trouble", ["full", "gone"])
def test_one_that_was_to_move(stub: MakeStub, route: MakeRouter, trouble: str) -> None:
    """It stays where it was, and no move is counted."""
    router, _, _, workers, _ = paired(stub, route, strategy=SPILLS, **PATIENT)
    first = router.http.post(PATH, json=CHAT, headers={"x-session-id": "mine"})
    home = first.headers["x-warmroute-worker"]
    other = "w1" if home == "w0" else "w0"
    if trouble == "full":
        workers[home].script = FULL
    else:
        workers[home].stop()
    with unreachable(workers[other]):
        leave(router, other, PATH, CHAT)
    assert homes(router)["mine"] == home
    assert [events(router, event) for event in ("spilled", "rebound")] == [0, 0]


@pytest.mark.parametrize("ends", ["client leaves", "worker closes"])
def test_one_that_has_moved_stays(stub: MakeStub, route: MakeRouter, ends: str) -> None:
    """Its new worker was sent the prompt and may compute it, so the session stays there."""
    router, home, other, workers, _ = paired(stub, route, strategy=SPILLS)
    closes = threading.Event()
    workers[home].script, workers[other].script = FULL, [closes.is_set, "close"]
    fields = b"x-session-id: a", b"connection: close"
    with post(router.port, PATH, json.dumps(CHAT).encode(), *fields) as client:
        until(lambda: workers[other].requests)
        if ends == "worker closes":
            closes.set()
            read_all(client)
    closes.set()
    until(over(router))
    assert (homes(router), events(router, "spilled")) == ({"a": other}, 1)


@pytest.mark.parametrize("opens", [True, False])
def test_a_client_that_leaves_while_it_is_undone(
    stub: MakeStub, route: MakeRouter, slow: Slow, opens: bool
) -> None:
    """The store was busy, and does it later: what did not begin is closed, what moved is back."""
    workers = {name: stub() for name in "ab"}
    listed = [{"url": one.url, "name": name} for name, one in workers.items()]
    router = route(*listed, strategy=SPILLS)
    keep_in(router, slow)
    before = {}
    if not opens:
        first = router.http.post(PATH, json=CHAT, headers={"x-session-id": "mine"})
        before["mine"] = first.headers["x-warmroute-worker"]
    for worker in workers.values():
        worker.script = [b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % (500 if opens else 503)]
    path, body, field = (
        ("/invocations", OPENS, BEGIN) if opens else (PATH, CHAT, b"x-session-id: mine")
    )
    with post(router.port, path, json.dumps(body).encode(), field):
        until(lambda: slow.undoing)
    until(lambda: len(router.door.clients) == len(before))
    slow.free.set()
    until(over(router))
    assert homes(router) == before
    counts = [events(router, event) for event in ("new", "spilled", "rebound")]
    assert counts == [len(before), 0, 0]


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_session_that_its_worker_refuses_has_not_begun(
    stub: MakeStub, route: MakeRouter, status: int
) -> None:
    """It can be tried again, also with the client's own id; errors announce no session."""
    worker = stub([b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % status])
    router = route(worker.url, strategy="session")
    for path, body in (("/invocations", OPENS), ("/invocations", CHAT), (PATH, CHAT)):
        reply = router.http.post(path, json=body, headers={HEADER: "NEW_SESSION"})
        assert reply.status_code >= 400
        assert NEW not in reply.headers
    worker.script = OK
    assert invoke(router, CHAT, "mine").status_code == 400
    assert homes(router) == {}
    assert invoke(router, OPENS, "NEW_SESSION").headers[NEW].startswith("mine;")


def test_nor_has_one_whose_worker_is_gone(stub: MakeStub, route: MakeRouter) -> None:
    """If the worker dies or refuses the connection, no session is open, and none is counted."""
    worker = stub([0.01, "close"])
    router = route(worker.url, strategy="session")
    assert invoke(router, OPENS).headers["x-amzn-errortype"] == "ModelError"
    worker.stop()
    assert invoke(router, OPENS).headers["x-amzn-errortype"] == "ServiceUnavailable"
    assert (homes(router), events(router, "new")) == ({}, 0)


def test_the_same_call_sent_again_is_no_other(stub: MakeStub, route: MakeRouter) -> None:
    """The SDK repeats a call whose answer was lost: same call, same session."""
    router = route(stub().url, strategy="session")
    opens = {**OPEN, "extSessionID": "mine"}
    call = {"amz-sdk-invocation-id": "call-1"}
    first, again = (router.http.post("/invocations", json=opens, headers=call) for _ in "12")
    assert first.headers[NEW] == again.headers[NEW]
    call["amz-sdk-invocation-id"] = "call-2"
    assert router.http.post("/invocations", json=opens, headers=call).status_code == 400
    assert invoke(router, opens).status_code == 400


@pytest.mark.parametrize("operation", ["invocations", "invocations-response-stream"])
@pytest.mark.parametrize("status", ["200 OK", "500 Broken"])
def test_a_stream_that_ends_before_any_of_it_was_told(
    stub: MakeStub, route: MakeRouter, operation: str, status: str
) -> None:
    """The worker fails within a stream that nobody asked for, or within an error answer."""
    fields = "content-type: text/event-stream\r\ncontent-length: 500\r\n\r\n"
    worker = stub([f"HTTP/1.1 {status}\r\n{fields}data: {{}}\n\n".encode(), 0.05, "close"])
    router = route(worker.url, strategy="session")
    reply = router.http.post(f"/endpoints/x/{operation}", json={"inputs": "Hello"})
    if operation == "invocations" or status.startswith("500"):
        assert (reply.status_code, reply.headers["x-amzn-errortype"]) == (424, "ModelError")
        assert reply.json()["OriginalStatusCode"] == 502
    else:
        assert reply.status_code == 200
        assert b"ModelStreamError" in reply.content
    until(router.idle)


def test_an_answer_that_cannot_be_told_begins_nothing(stub: MakeStub, route: MakeRouter) -> None:
    """A worker's answer that was held back and fails: the client gets an error and no session."""
    part = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"
    router = route(stub([part, 0.05, "close"]).url, strategy="session")
    body = {"inputs": "Hello", **OPEN, "extSessionID": "mine"}
    for _ in range(2):  # the second time, the id is free again
        reply = invoke(router, body, "NEW_SESSION")
        assert reply.headers["x-amzn-errortype"] == "ModelError"
        assert not {NEW, "x-warmroute-session"} & set(reply.headers)
        until(lambda: homes(router) == {})


def test_what_ended_during_an_outage_is_told_of_the_session_that_began_then() -> None:
    """Another client's session, begun since under the same id, stays."""
    now = [1.0]

    async def begun_again() -> OpenSession | None:
        store = MemoryStore(SessionLease(), lambda: now[0])
        await store.bind("a", Binding("w"), None)
        away = Outage(9)
        assert away.close("a", begun=1.0)
        await store.close("a")
        now[0] = 2.0
        await store.bind("a", Binding("v"), None)
        await away.tell_ends(store)
        return await store.use("a")

    assert asyncio.run(begun_again()) is not None


def test_what_began_again_during_an_outage_stays() -> None:
    """A session begun again with the same id is not closed with its predecessor's start time."""
    away = Outage(9)
    away.begin("a", OpenSession("w", 1.0, 9.0, 1.0))
    away.close("a")
    away.begin("a", OpenSession("w", 2.0, 9.0, 2.0))
    assert not away.close("a", begun=1.0)
    assert away.find("a") is not None
    assert away.close("a", begun=2.0)
