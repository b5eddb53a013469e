"""Requests that wait, and whose settings change meanwhile, so that they are read again."""

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.http.sse import COMMENT
from tests.reload.changing import change
from tests.support import OK, MakeRouter, MakeStub, Router, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
EVENTS = "warmroute_session_events_total"
ONE = {"in_flight": 1}
RARELY = {"interval": "1h"}


def later(ask: Callable[[], httpx.Response]) -> tuple[threading.Thread, list[httpx.Response]]:
    """Ask in a thread; the list has the answer afterwards."""
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(ask()))
    thread.start()
    return thread, replies


def chat(router: Router, **headers: str) -> httpx.Response:
    """Send a chat with these headers, `_` standing for `-`."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return router.http.post("/v1/chat/completions", json=CHAT, headers=fields)


def listed(router: Router) -> dict[str, str]:
    """Return the open sessions and their workers."""
    return {one["id"]: one["worker"] for one in router.http.get("/sessions").json()}


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("lost", ["rebind", "error"])
def test_it_knows_the_session_that_it_has_started(
    stub: MakeStub, route: MakeRouter, lost: str, opens: bool
) -> None:
    """Its worker refused the connection and the other one was full, so nothing was sent yet."""
    done: list[int] = []
    workers = {f"w{number}": stub() for number in range(2)}
    known = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    rules = {"limits": ONE, "health": RARELY, "session": {"on_worker_lost": lost}}
    router = route(*known, strategy={"name": "session", "over": "roundrobin"}, **rules)
    busy, gone = (chat(router, x_session_id=key).headers["x-warmroute-worker"] for key in "ab")
    workers[busy].script = [lambda: bool(done), *OK]
    first, _ = later(lambda: chat(router, x_session_id="a"))
    until(lambda: len(workers[busy].requests) == 2)
    workers[gone].stop()
    name = "NEW_SESSION" if opens else "fresh"
    second, replies = later(lambda: chat(router, x_amzn_sagemaker_session_id=name))
    until(lambda: router.metric("warmroute_queue_length") == 1)
    change(router, *known, strategy={"name": "session", "over": "leastload"}, **rules)
    done.append(1)
    for thread in (first, second):
        thread.join(20)
    [reply] = replies
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-warmroute-session"].startswith("new;")
    told = reply.headers.get("x-amzn-sagemaker-new-session-id", "fresh").partition(";")[0]
    assert listed(router) == {"a": busy, "b": gone, told: busy}
    assert router.metric(EVENTS, pool="default", event="new") == 3


def test_an_unknown_id_when_the_pool_gets_sessions(stub: MakeStub, route: MakeRouter) -> None:
    """With `create: false` it is refused, though it arrived when ids meant nothing."""
    done: list[int] = []
    worker = stub([lambda: bool(done), *OK])
    known = {"name": "w", "url": worker.url}
    rules = {"limits": ONE, "session": {"create": False}}
    router = route(known, strategy="leastload", **rules)
    first, _ = later(lambda: chat(router))
    until(lambda: worker.requests)
    second, replies = later(lambda: chat(router, x_session_id="unknown"))
    until(lambda: router.metric("warmroute_queue_length") == 1)
    change(router, known, strategy="session", **rules)
    done.append(1)
    for thread in (first, second):
        thread.join(20)
    assert replies[0].status_code == 404
    assert listed(router) == {}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_a_session_begins_where_its_model_is_by_then(
    stub: MakeStub, route: MakeRouter, path: str
) -> None:
    """Its first request waits while the model goes to another pool, which keeps its own."""
    done: list[int] = []
    worker = stub([lambda: bool(done), *OK])
    known = {"name": "w", "url": worker.url}
    router = route(known, strategy="session", limits=ONE)
    first, _ = later(lambda: chat(router))
    until(lambda: worker.requests)

    def ask(session: str) -> httpx.Response:
        return router.http.post(path, json=CHAT, headers={"x-amzn-sagemaker-session-id": session})

    second, replies = later(lambda: ask("NEW_SESSION"))
    until(lambda: router.metric("warmroute_queue_length") == 1)
    pools = [{"name": "other", "strategy": "session", "workers": [known]}]
    change(router, pools=pools, limits=ONE)
    done.append(1)
    for thread in (first, second):
        thread.join(20)
    key = replies[0].headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
    assert listed(router) == {key: "w"}
    assert ask(key).headers["x-warmroute-session"].startswith("kept;")


def test_a_session_whose_id_could_not_be_told_does_not_start(
    stub: MakeStub, route: MakeRouter
) -> None:
    """A comment has begun the answer before its pool got sessions."""
    done: list[int] = []
    worker = stub([lambda: bool(done), *OK])
    known = {"name": "w", "url": worker.url}
    rules = {"limits": ONE, "timeouts": {"comment": "20ms"}}
    router = route(known, strategy="leastload", **rules)
    first, _ = later(lambda: chat(router))
    until(lambda: worker.requests)
    fields = {"x-amzn-sagemaker-session-id": "NEW_SESSION"}
    body, path = CHAT | {"stream": True}, "/v1/chat/completions"
    with router.http.stream("POST", path, json=body, headers=fields) as reply:
        pieces = reply.iter_raw()
        assert next(pieces) == COMMENT
        change(router, known, strategy="session", **rules)
        done.append(1)
        for _ in pieces:
            pass
    first.join(20)
    assert len(worker.requests) == 2
    assert "x-amzn-sagemaker-new-session-id" not in reply.headers
    assert listed(router) == {}
    assert router.metric(EVENTS, pool="default", event="new") == 0
