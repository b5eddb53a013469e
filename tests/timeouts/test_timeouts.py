"""The timeouts for workers, and what the client gets when each of them expires."""

import json
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.backpressure.fountain import Fountain, Reader
from tests.cancel.leaving import unreachable
from tests.health.failing import CHAT, CHUNK, PATH, QUIET, SSE, ask, body
from tests.support import Action, MakeRouter, MakeStub, Router, error_of, until

CENTURY_S = 3e9
NEVER = dict.fromkeys(("connect", "first_byte", "idle", "total", "queue"), "10m")
HALF = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
HEAD = HALF[:-1]


def steadily(data: bytes, times: int = 1000) -> list[Action]:
    """Write the same bytes again and again, 10 ms apart."""
    piece: list[Action] = [data, 0.01]
    return piece * times


#: A header, a stream and a JSON answer that go on and on, and endless interim responses.
DRIPPING: list[Action] = [b"HTTP/1.1 200 OK\r\nx: ", *steadily(b"a")]
FLOWING: list[Action] = [SSE, *steadily(CHUNK)]
GROWING: list[Action] = [HALF, *steadily(b"x")]
PROMISING = steadily(b"HTTP/1.1 103 Early Hints\r\n\r\n")
#: The messages for a worker that was silent, and for one that took too long.
SILENT, LONG = "sent nothing for too long", "took too long in all"


def only(name: str, value: str = "1s") -> dict[str, str]:
    """Timeouts of which this one is short and all others are long."""
    return {**NEVER, name: value}


def timeouts(router: Router) -> float:
    """The worker's timeouts, from the metrics."""
    labels = {"pool": "default", "worker": router.worker().name, "kind": "timeout"}
    return router.metric("warmroute_worker_errors_total", **labels)


@pytest.mark.parametrize(
    ("name", "script", "why"),
    [
        ("first_byte", ["stall"], SILENT),
        ("first_byte", [SSE, "stall"], SILENT),
        ("first_byte", DRIPPING, SILENT),
        ("first_byte", PROMISING, SILENT),
        ("total", [HEAD, "stall"], LONG),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_before_the_first_byte(
    stub: MakeStub, route: MakeRouter, name: str, script: list[Action], why: str
) -> None:
    """The client gets 504 that says what was late, and the worker's connection is closed."""
    worker = stub(script)
    router = route(worker.url, timeouts=only(name), health=QUIET)
    reply = router.http.post(PATH, content=body(stream=True))
    assert reply.status_code == 504
    assert error_of(reply)["code"] == "worker_timeout"
    assert why in error_of(reply)["message"]
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)
    assert timeouts(router) == 1
    assert router.metric("warmroute_refused_requests_total", status="504") == 1


@pytest.mark.parametrize(
    ("name", "script", "why"),
    [("idle", [SSE + CHUNK, "stall"], SILENT), ("total", FLOWING, LONG)],
    ids=["idle", "total"],
)
def test_within_a_stream(
    stub: MakeStub, route: MakeRouter, name: str, script: list[Action], why: str
) -> None:
    """An error event replaces `[DONE]`, and the worker's connection is closed."""
    worker = stub(script)
    router = route(worker.url, timeouts=only(name), health=QUIET)
    reply = router.http.post(PATH, content=body(stream=True))
    assert reply.status_code == 200
    *events, last, end = reply.content.split(b"\n\n")
    assert set(events) == {b"data: 1"}
    error: dict[str, Any] = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["code"] == "worker_failed"
    assert why in error["message"]
    assert end == b""
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)
    assert timeouts(router) == 1


@pytest.mark.parametrize(
    ("name", "script"),
    [("idle", [HALF, "stall"]), ("total", GROWING)],
    ids=["idle", "total"],
)
def test_within_an_answer(
    stub: MakeStub, route: MakeRouter, name: str, script: list[Action]
) -> None:
    """The answer is cut, so nobody mistakes it for complete; the worker's connection is closed."""
    worker = stub(script)
    router = route(worker.url, timeouts=only(name), health=QUIET)
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
        router.http.post(PATH, json=CHAT)
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)
    assert timeouts(router) == 1


def test_connect(stub: MakeStub, route: MakeRouter) -> None:
    """Another worker is asked, as nothing was sent; without one it is 503. No attempt is left."""
    worker, other = stub(), stub()
    router = route(
        worker.url,
        other.url,
        strategy="roundrobin",
        timeouts=only("connect"),
        health={**QUIET, "timeout": "2s"},
    )
    with unreachable(worker) as connecting:
        assert ask(router, 2) == [200, 200]
        until(lambda: not connecting())  # the probe that follows a failure makes one too
    assert (router.worker(0).ready, router.worker(1).ready) == (False, True)
    other.stop()
    reply = router.http.post(PATH, json=CHAT)
    assert reply.status_code == 503
    assert error_of(reply)["code"] == "no_worker"
    until(router.idle)


def test_each_piece_has_its_own_time(stub: MakeStub, route: MakeRouter) -> None:
    """An answer may take longer than `first_byte` and `idle`, as long as bytes keep coming."""
    worker = stub([SSE, *steadily(CHUNK, 130), b"0\r\n\r\n"])
    settings = {**NEVER, "first_byte": "1s", "idle": "1s"}
    router = route(worker.url, timeouts=settings, health=QUIET)
    reply = router.http.post(PATH, content=body(stream=True))
    assert reply.content == b"data: 1\n\n" * 130
    assert timeouts(router) == 0


def test_total_off(route: MakeRouter, stack: ExitStack) -> None:
    """With `total: off` an answer may take a century, if it is the client that is slow."""
    worker = Fountain(100)
    stack.callback(worker.stop)
    router = route(worker.url, timeouts={**NEVER, "total": "off"}, health=QUIET)
    checked = []

    def a_century_later() -> None:
        for connection in tuple(router.worker().upstream.in_use):
            if connection.paused:
                connection.check(time.monotonic() + CENTURY_S)
                checked.append(connection)

    def has_passed() -> bool:
        router.call(a_century_later)
        return bool(checked)

    with Reader(router.port) as reader:
        until(has_passed)
        assert reader.answer().read() == worker.body()
    assert timeouts(router) == 0


def test_total_holds_for_each_request(stub: MakeStub, route: MakeRouter) -> None:
    """`total` limits each request, not the connection that they share."""
    worker = stub([0.05, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"])
    router = route(worker.url, timeouts=only("total", "1s"), health=QUIET)
    assert ask(router, 25) == [200] * 25
    assert worker.connections == 2  # one of them is for probes


def test_total_while_the_client_is_slow(route: MakeRouter, stack: ExitStack) -> None:
    """`total` also ends an answer that a client does not read, so the worker becomes free."""
    worker = Fountain(1 << 30)
    stack.callback(worker.stop)
    router = route(worker.url, timeouts=only("total", "2s"), health=QUIET)
    with Reader(router.port):
        until(lambda: any(c.paused for c in tuple(router.worker().upstream.in_use)))
        assert worker.open == 1
        until(lambda: worker.open == 0)
        until(router.idle)
