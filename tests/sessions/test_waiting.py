"""A session whose worker has no room: it waits there, or moves, as the settings say."""

import asyncio
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any

import httpx
import pytest

from router.connection import Connection
from router.sessions.table import Binding
from tests.reload.changing import change
from tests.support import OK, Action, MakeRouter, MakeStub, Router, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
FULL: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]


def ask(router: Router, session: str | None = None) -> httpx.Response:
    """Send one request."""
    named = {"x-session-id": session} if session else {}
    return router.http.post("/v1/chat/completions", json=CHAT, headers=named)


def decisions(router: Router) -> dict[str, float]:
    """Return the number of decisions, by reason."""
    name, words = "warmroute_decisions_total", ("bind", "session", "spill", "rebind")
    found = {word: router.metric(name, pool="default", reason=word) for word in words}
    return {word: count for word, count in found.items() if count}


class Later:
    """A request in its own thread."""

    def __init__(self, router: Router, session: str) -> None:
        self.replies: list[httpx.Response] = []
        self._thread = threading.Thread(target=lambda: self.replies.append(ask(router, session)))
        self._thread.start()

    def worker(self) -> str:
        """Return the worker that answered."""
        self._thread.join(20)
        return self.replies[0].headers["x-warmroute-worker"]

    def status(self) -> int:
        """Return the status of the answer."""
        self._thread.join(20)
        return self.replies[0].status_code


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


@pytest.mark.parametrize(
    "strategy", ["leastload", {"name": "session", "over": "leastload", "spill": "1ms"}]
)
def test_it_waits_no_longer_if_the_settings_let_it_go(
    stub: MakeStub, route: MakeRouter, strategy: object
) -> None:
    """After a reload with another strategy, an idle worker answers what waited for a busy one."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    limits = {"in_flight": 1}
    router = route(*listed, strategy="session", limits=limits)
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(workers[home].requests) == 2)
    second = Later(router, "a")
    until(lambda: router.metric("warmroute_queue_length") == 1)
    change(router, *listed, strategy=strategy, limits=limits)
    assert second.worker() != home
    done.append(1)
    assert first.worker() == home


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


async def refused(_: Sequence[str]) -> Connection:
    """Connect to nobody."""
    raise ConnectionRefusedError(111, "Connection refused")


def on_loop(router: Router, doing: Coroutine[Any, Any, Any]) -> Any:
    """Do something on the router's event loop."""
    loop = router._server._loop
    assert loop is not None
    return asyncio.run_coroutine_threadsafe(doing, loop).result(20)


def test_one_that_may_moves_instead(stub: MakeStub, route: MakeRouter) -> None:
    """The move is announced in the header and counted in the metrics."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1ms"}
    router = route(*listed, strategy=strategy, limits={"in_flight": 1})
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(workers[home].requests) == 2)
    second = ask(router, "a")
    done.append(1)
    assert second.headers["x-warmroute-worker"] != home
    assert second.headers["x-warmroute-session"].startswith("spilled;")
    assert second.headers["x-warmroute-decision"].startswith("spill;")
    assert first.worker() == home
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 1
    third = ask(router, "a")
    assert third.headers["x-warmroute-worker"] == second.headers["x-warmroute-worker"]
    assert third.headers["x-warmroute-session"].startswith("kept;")


def test_a_full_worker_s_session_is_told_so(stub: MakeStub, route: MakeRouter) -> None:
    """It gets the 503 instead of another worker; the next request finds its worker again."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    router = route(*listed, strategy="session")
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = FULL
    refused = ask(router, "a")
    assert (refused.status_code, refused.headers["x-warmroute-worker"]) == (503, home)
    workers[home].script = OK
    again = ask(router, "a")
    assert again.headers["x-warmroute-worker"] == home
    assert again.headers["x-warmroute-session"].startswith("kept;")


def test_a_full_worker_s_session_moves_if_it_may(stub: MakeStub, route: MakeRouter) -> None:
    """It moves however long `spill` is; header, decision and metric agree."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1h"}
    router = route(*listed, strategy=strategy)
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = FULL
    moved = ask(router, "a")
    assert moved.headers["x-warmroute-worker"] != home
    assert moved.headers["x-warmroute-session"].startswith("spilled;")
    assert moved.headers["x-warmroute-decision"].partition(";")[0] == "spill"
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 1
    assert decisions(router) == {"bind": 1, "spill": 1}


@pytest.mark.parametrize("last", [FULL, None], ids=["both full", "the other one dead"])
@pytest.mark.parametrize("shared", [False, True], ids=["in memory", "in Redis"])
def test_a_session_stays_if_nobody_takes_its_request(
    stub: MakeStub,
    route: MakeRouter,
    request: pytest.FixtureRequest,
    last: list[Action] | None,
    shared: bool,
) -> None:
    """It was only tried elsewhere; header, decision, metric and list agree that it stayed."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1h"}
    redis = request.getfixturevalue("redis").url if shared else ""
    rules = {"redis": {"url": redis, "timeout": "5s"}} if shared else {}
    session = f"a-{uuid.uuid4().hex}"
    router = route(*listed, strategy=strategy, session=rules)
    home = ask(router, session).headers["x-warmroute-worker"]
    other = "w1" if home == "w0" else "w0"
    workers[home].script = FULL
    if last is None:
        workers[other].stop()
    else:
        workers[other].script = last
    refused = ask(router, session)
    assert refused.status_code == 503
    if last is not None:
        assert refused.headers["x-warmroute-worker"] == other
        assert refused.headers["x-warmroute-session"].startswith("kept;")
        assert refused.headers["x-warmroute-decision"].partition(";")[0] == "session"
    open_now = {one["id"]: one["worker"] for one in router.http.get("/sessions").json()}
    assert open_now[session] == home
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 0
    assert decisions(router) == {"bind": 1, "session": 1}
    workers[home].script = OK
    again = ask(router, session)
    assert again.headers["x-warmroute-worker"] == home
    assert again.headers["x-warmroute-session"].startswith("kept;")


def test_a_session_is_where_its_request_may_have_begun(stub: MakeStub, route: MakeRouter) -> None:
    """If the worker that took it dies before it answers, it has moved, and that is counted."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1h"}
    router = route(*listed, strategy=strategy)
    home = ask(router, "a").headers["x-warmroute-worker"]
    other = "w1" if home == "w0" else "w0"
    workers[home].script = FULL
    workers[other].script = [0.3, "close"]
    assert ask(router, "a").status_code == 502
    assert [one["worker"] for one in router.http.get("/sessions").json()] == [other]
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 1
    assert decisions(router) == {"bind": 1, "spill": 1}
    workers[other].script = OK
    again = ask(router, "a")
    assert again.headers["x-warmroute-worker"] == other
    assert again.headers["x-warmroute-session"].startswith("kept;")


def test_an_id_that_nobody_knows(stub: MakeStub, route: MakeRouter) -> None:
    """It begins a session; with `create: false` it is a 404. Requests without an id are served."""
    worker = stub()
    for create in (True, False):
        router = route(worker.url, strategy="session", session={"create": create})
        reply = ask(router, "a")
        if create:
            assert reply.headers["x-warmroute-session"].startswith("new;")
        else:
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "session_not_found")
        assert [one["id"] for one in router.http.get("/sessions").json()] == ["a"] * create
        assert ask(router).status_code == 200


def test_where_the_id_is_looked_for(stub: MakeStub, route: MakeRouter) -> None:
    """The id is in AWS's header, or else the configured header, or else the field of the body."""
    names = {"header": "X-User-Id", "field": "user"}
    worker = stub()
    router = route(worker.url, strategy="session", session=names)

    def asked(body: dict[str, Any], **headers: str) -> list[str]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        url = "/v1/chat/completions"
        assert router.http.post(url, json={**CHAT, **body}, headers=fields).status_code == 200
        return sorted(one["id"] for one in router.http.get("/sessions").json())

    assert asked({"user": "ann@example.com"}) == ["ann@example.com"]
    assert asked({"user": "ann@example.com"}, x_user_id="b_2") == ["ann@example.com", "b_2"]
    assert b"x-user-id" not in worker.requests[-1].lower()
    aws = {"x_amzn_sagemaker_session_id": "c-3", "x_user_id": "b_2"}
    assert asked({}, **aws) == ["ann@example.com", "b_2", "c-3"]
    assert asked({}, x_session_id="d") == ["ann@example.com", "b_2", "c-3"]
    wrong = router.http.post("/v1/chat/completions", json={**CHAT, "user": [1]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "user")
    assert router.http.delete("/sessions/ann%40example.com").status_code == 204


def test_new_sessions_of_openai_clients(stub: MakeStub, route: MakeRouter) -> None:
    """NEW_SESSION in AWS's header begins a session with an id made by the router."""
    router = route(stub().url, strategy="session")
    named = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    reply = router.http.post("/v1/chat/completions", json=CHAT, headers=named)
    key = reply.headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
    assert reply.headers["x-warmroute-session"].startswith("new;")
    assert ask(router, key).headers["x-warmroute-session"].startswith("kept;")


def test_a_new_session_s_id_is_told_in_a_stream(stub: MakeStub, route: MakeRouter) -> None:
    """Comments wait until its worker is known, or the header with its id would be too late."""
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 14\r\n\r\n"
    worker = stub([0.2, stream + b"data: [DONE]\n\n"])
    router = route(worker.url, strategy="session", timeouts={"comment": "20ms"})
    named = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    body = {**CHAT, "stream": True}
    reply = router.http.post("/v1/chat/completions", json=body, headers=named)
    key = reply.headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
    assert [one["id"] for one in router.http.get("/sessions").json()] == [key]
    more = router.http.post("/v1/chat/completions", json=body, headers={"x-session-id": key})
    assert more.content.startswith(b":")


def test_sessions_live_through_a_change_of_settings(stub: MakeStub, route: MakeRouter) -> None:
    """Sessions keep their workers, even if the strategy's options change."""
    import asyncio  # noqa: PLC0415

    from router.settings import Settings  # noqa: PLC0415

    listed = [stub().url for _ in range(3)]
    router = route(*listed, strategy="session")
    before = {key: ask(router, key).headers["x-warmroute-worker"] for key in "abcdef"}
    loop = router._server._loop
    assert loop is not None
    for strategy in ({"name": "session", "spill": "9s"}, {"name": "session", "over": "leastload"}):
        told = {"workers": listed, "strategy": strategy, "session": {"ttl": "1h"}}
        change = router.door.change(Settings.model_validate(told))
        asyncio.run_coroutine_threadsafe(change, loop).result(20)
        replies = {key: ask(router, key) for key in before}
        now = {key: reply.headers["x-warmroute-worker"] for key, reply in replies.items()}
        assert now == before


def test_a_new_session_s_worker_refuses(stub: MakeStub, route: MakeRouter) -> None:
    """The session begins on another worker, even if sessions end with their worker."""
    workers = [stub() for _ in range(2)]
    rules = {"on_worker_lost": "error"}
    router = route(*(one.url for one in workers), strategy="session", session=rules)
    workers[0].stop()
    replies = [ask(router, key) for key in "abcd"]
    assert {reply.status_code for reply in replies} == {200}
    assert {reply.headers["x-warmroute-session"].partition(";")[0] for reply in replies} == {"new"}
    assert router.metric("warmroute_session_events_total", pool="default", event="new") == 4


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


def test_who_waits_again_does_not_begin_anew(stub: MakeStub, route: MakeRouter) -> None:
    """A request that was called in vain, since another took its place, keeps its deadline."""
    done: list[int] = []
    worker = stub()
    bounds: dict[str, Any] = {"limits": {"in_flight": 1}, "timeouts": {"queue": "400ms"}}
    router = route(worker.url, strategy="session", **bounds)
    admission = router.door._proxy._admission
    assert ask(router, "a").status_code == 200
    worker.script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(worker.requests) == 2)
    late = Later(router, "a")

    def call_all() -> None:
        for line in list(admission._pools):
            admission._call(line)

    for _ in range(100):
        router.call(call_all)
        if late.replies:
            break
        time.sleep(0.05)
    done.append(1)
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
