"""Workers that keep sessions themselves: none is asked for a session of another one."""

import json
import threading
import time
from typing import Any

import pytest

from router.sessions.ids import written
from tests.cancel.leaving import counted
from tests.sessions.asking import (
    CHAT,
    CLOSE,
    FULL,
    HEADER,
    NEW,
    OPEN,
    homes,
    invoke,
    opened,
)
from tests.sessions.redis_server import RedisServer
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, post, until

BROKEN: list[Action] = [b"HTTP/1.1 500 Broken\r\ncontent-length: 2\r\n\r\n{}"]
#: What a container is sent when a session is closed.
TOLD = b'{"requestType":"CLOSE"}'


def said(line: str) -> list[Action]:
    """Return a container's answer with one more header line."""
    return [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n%b\r\n\r\n{}" % line.encode()]


def pair(stub: MakeStub) -> dict[str, Stub]:
    """Start two containers, each of which issues its own session ids."""
    return {name: stub(said(f"{NEW}: own-{name}")) for name in "ab"}


def listed(workers: dict[str, Stub]) -> list[dict[str, Any]]:
    """Return the workers as settings list them."""
    return [{"url": one.url, "name": name, "stateful": True} for name, one in workers.items()]


def alone(stub: MakeStub, route: MakeRouter, **settings: Any) -> tuple[Stub, Router]:
    """Start one container, which calls its session `w-1`, and a router in front of it."""
    worker = stub(said(f"{NEW}: w-1"))
    return worker, route({"url": worker.url, "stateful": True}, strategy="session", **settings)


class TestOpening:
    """A session begins at a worker that accepts it."""

    @pytest.mark.parametrize("trouble", ["dead", "full"])
    def test_the_next_one_is_asked(self, stub: MakeStub, route: MakeRouter, trouble: str) -> None:
        """A worker that has just died or is full is skipped."""
        workers = pair(stub)
        router = route(*listed(workers), strategy="session")
        if trouble == "dead":
            workers["a"].stop()
        else:
            workers["a"].script = FULL
        replies = [invoke(router, OPEN) for _ in range(3)]
        assert [reply.headers.get("x-warmroute-worker") for reply in replies] == ["b"] * 3
        assert opened(replies[0]) == "own-b"
        workers["b"].script = FULL
        assert invoke(router, OPEN).headers["x-amzn-errortype"] == "ServiceUnavailable"

    def test_an_own_id_is_one_that_clients_can_use(self, stub: MakeStub, route: MakeRouter) -> None:
        """If clients cannot send a worker's id, or it is open already, they get one of ours."""
        workers = {name: stub(said(f"{NEW}: my_id.1")) for name in "ab"}
        router = route(*listed(workers), strategy="session")
        replies = [invoke(router, OPEN) for _ in range(2)]
        for worker in workers.values():
            worker.script = said(f"{NEW}: my-id")
        replies += [invoke(router, OPEN) for _ in range(2)]
        keys = [opened(reply) for reply in replies]
        assert len({*keys, "my_id.1"}) == 5
        assert keys[2] == "my-id" != keys[3]
        homes = [reply.headers["x-warmroute-worker"] for reply in replies]
        assert set(homes[2:]) == {"a", "b"}
        for worker in workers.values():
            worker.script = OK
        for key, home, own in zip(keys, homes, ["my_id.1"] * 2 + ["my-id"] * 2, strict=True):
            reply = invoke(router, CHAT, key)
            assert (reply.status_code, reply.headers["x-warmroute-worker"]) == (200, home)
            assert f"{HEADER}: {own}\r\n".lower().encode() in workers[home].requests[-1].lower()

    def test_it_has_not_begun_if_its_prompt_is_not_asked(
        self, stub: MakeStub, route: MakeRouter
    ) -> None:
        """If its prompt is invalid, or there is no room, it is closed and its id is free again."""
        worker = stub(said(f"{NEW}: w-1"))
        listed = [{"url": worker.url, "stateful": True}]
        router = route(*listed, strategy="session", limits={"in_flight": 1, "queue": 0})
        mine = {**CHAT, **OPEN, "extSessionID": "mine"}
        assert invoke(router, {**mine, "n": 10**6}, "NEW_SESSION").status_code == 400
        assert homes(router) == {}
        assert worker.requests[-1].endswith(TOLD)
        done: list[int] = []
        count = len(worker.requests)
        worker.script = [lambda: bool(done), *OK]
        busy = threading.Thread(target=lambda: invoke(router, CHAT))
        busy.start()
        until(lambda: len(worker.requests) > count)
        worker.script = said(f"{NEW}: w-1")
        refused = invoke(router, mine, "NEW_SESSION")
        done.append(1)
        busy.join(20)
        assert refused.headers["x-amzn-errortype"] == "ThrottlingException"
        assert homes(router) == {}
        assert worker.requests[-1].endswith(TOLD)
        until(router.idle)
        assert opened(invoke(router, mine, "NEW_SESSION")) == "mine"

    @pytest.mark.parametrize("prompt", [{}, CHAT], ids=["without a prompt", "with one"])
    def test_a_client_that_leaves_meanwhile(
        self, stub: MakeStub, route: MakeRouter, prompt: dict[str, Any]
    ) -> None:
        """The worker opens it all the same: it is closed there, and the client counts as gone."""
        done: list[int] = []
        worker = stub([lambda: bool(done), *said(f"{NEW}: w-1")])
        router = route({"url": worker.url, "stateful": True}, strategy="session")
        before = len(router.door.clients)
        client = post(router.port, "/invocations", json.dumps({**OPEN, **prompt}).encode())
        until(lambda: worker.requests)
        client.close()
        until(lambda: len(router.door.clients) == before)
        done.append(1)
        until(lambda: len(worker.requests) == 2)
        assert worker.requests[-1].endswith(TOLD)
        assert b": w-1\r\n" in worker.requests[-1]
        until(router.idle)
        assert homes(router) == {}
        assert counted(router, "refused_requests") == {"499": 1}

    def test_only_so_many_are_waited_for_then(self, stub: MakeStub, route: MakeRouter) -> None:
        """Beyond a bound, it is given up by closing the connection to the worker."""
        worker = stub(["stall"])
        router = route({"url": worker.url, "stateful": True}, strategy="session")
        clients = [post(router.port, "/invocations", json.dumps(OPEN).encode()) for _ in range(70)]
        until(lambda: len(worker.requests) == len(clients))
        for client in clients:
            client.close()
        until(lambda: worker.closed_by_peer > 0)

    def test_one_that_takes_too_long_then_is_given_up(
        self, stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a while, by closing the connection to the worker."""
        monkeypatch.setattr("router.sagemaker.sessions.LATE_CLOSE_TIMEOUT_S", 0.1)
        worker = stub(["stall"])
        router = route({"url": worker.url, "stateful": True}, strategy="session")
        client = post(router.port, "/invocations", json.dumps(OPEN).encode())
        until(lambda: worker.requests)
        client.close()
        until(lambda: worker.closed_by_peer == 1)

    def test_an_end_of_its_own_is_the_last(self, stub: MakeStub, route: MakeRouter) -> None:
        """An end that the worker sets holds, even if sessions slide."""
        worker = stub(said(f"{NEW}: w-1; Expires=2999-01-02T03:04:05Z"))
        rules = {"sliding": True, "ttl": "20m"}
        router = route({"url": worker.url, "stateful": True}, strategy="session", session=rules)
        assert invoke(router, OPEN).headers[NEW].endswith("; Expires=2999-01-02T03:04:05Z")
        ends = int(time.time()) + 60
        worker.script = said(f"{NEW}: w-2; Expires={written(ends)}")
        key = opened(invoke(router, OPEN))
        worker.script = OK
        for _ in range(2):
            told = invoke(router, CHAT, key).headers["x-warmroute-session"]
            assert told == f"kept; expires={written(ends)}"


class TestClosing:
    """The worker is told, whoever closes a session."""

    def test_a_busy_worker_s_session_stays(self, stub: MakeStub, route: MakeRouter) -> None:
        """If its worker is full or fails, the session stays open and can be closed later."""
        worker, router = alone(stub, route)
        key = opened(invoke(router, OPEN))
        worker.script = FULL
        assert invoke(router, CLOSE, key).headers["x-amzn-errortype"] == "ServiceUnavailable"
        worker.script = BROKEN
        assert invoke(router, CLOSE, key).headers["x-amzn-errortype"] == "ModelError"
        assert len(router.http.get("/sessions").json()) == 1
        worker.script = OK
        assert invoke(router, CLOSE, key).status_code == 200
        assert homes(router) == {}

    @pytest.mark.parametrize("status", [400, 404, 424])
    def test_what_the_worker_has_forgotten_is_gone(
        self, stub: MakeStub, route: MakeRouter, status: int
    ) -> None:
        """If its worker does not know it any more, the client is told so, and it is over."""
        worker, router = alone(stub, route)
        key = opened(invoke(router, OPEN))
        worker.script = [b"HTTP/1.1 %d Gone\r\ncontent-length: 2\r\n\r\n{}" % status]
        asked = []
        for _ in range(2):
            reply = invoke(router, CLOSE, key)
            asked.append(len(worker.requests))
            assert reply.headers["x-amzn-errortype"] == "ValidationError"
            assert homes(router) == {}
        assert asked[0] == asked[1] > 1

    @pytest.mark.parametrize("script", [BROKEN, FULL, ["stall"]])
    def test_operators_close_it_whatever_the_worker_says(
        self, stub: MakeStub, route: MakeRouter, script: list[Action]
    ) -> None:
        """It is closed here even if the worker refuses or does not answer."""
        worker, router = alone(stub, route)
        key = opened(invoke(router, OPEN))
        worker.script = script
        assert router.http.delete(f"/sessions/{key}").status_code == 204
        assert worker.requests[-1].endswith(TOLD)
        assert b": w-1\r\n" in worker.requests[-1]
        assert homes(router) == {}
        assert router.http.delete(f"/sessions/{key}").status_code == 404


def test_what_a_container_says_of_itself(stub: MakeStub, route: MakeRouter) -> None:
    """Its custom attributes replace the caller's; the request id is the router's."""
    attributes = "x-amzn-sagemaker-custom-attributes"
    worker = stub(said(f"{attributes}: theirs\r\nx-amzn-requestid: w"))
    router = route({"url": worker.url, "stateful": True})
    reply = router.http.post("/invocations", json=CHAT, headers={attributes: "mine"})
    assert reply.headers.get_list(attributes) == ["theirs"]
    assert reply.headers.get_list("x-amzn-requestid") == [reply.headers["x-request-id"]]


class TestThroughRedis:
    """Routers share sessions in Redis; without it, they do not guess where one is."""

    def test_the_store_goes_and_comes_back(
        self, stub: MakeStub, route: MakeRouter, redis: RedisServer
    ) -> None:
        """Without Redis, known sessions go on, unknown ones get 503, new ones are noted later."""
        workers = pair(stub)
        rules = {"redis": {"url": redis.url, "timeout": "1500ms"}}
        one, other = (route(*listed(workers), strategy="session", session=rules) for _ in range(2))
        keys = [opened(invoke(one, {**OPEN, "extSessionID": f"k{n}"})) for n in range(4)]
        homes = {key: invoke(one, CHAT, key).headers["x-warmroute-worker"] for key in keys}
        assert invoke(other, CHAT, keys[0]).headers["x-warmroute-worker"] == homes[keys[0]]
        with redis.hanging():
            fresh = [opened(invoke(one, {**OPEN, "extSessionID": f"f{n}"})) for n in range(4)]
            seen = {key: invoke(one, CHAT, key).headers["x-warmroute-worker"] for key in keys}
            assert seen == homes
            homes |= {key: invoke(one, CHAT, key).headers["x-warmroute-worker"] for key in fresh}
            unknown = invoke(other, CHAT, keys[1])
            assert unknown.headers["x-amzn-errortype"] == "ServiceUnavailable"
            assert invoke(other, CHAT, keys[0]).headers["x-warmroute-worker"] == homes[keys[0]]
        redis.found_again(one, other)
        for router in (one, other):
            now = {key: invoke(router, CHAT, key).headers["x-warmroute-worker"] for key in homes}
            assert now == homes
        assert set(homes.values()) == {"a", "b"}
