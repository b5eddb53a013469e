"""Passive health checks: a worker whose requests keep failing is ejected for a while."""

import errno
import threading
import time
from collections.abc import Sequence

import pytest

from router.upstream.connection import UpstreamConnection
from router.upstream.pool import Upstream
from tests.health.failing import (
    CHAT,
    CHUNK,
    FAULTS,
    PATH,
    SSE,
    ask,
    body,
    ejected,
    ejections,
    health,
    says,
    serve_out,
    start,
    status,
)
from tests.support import OK, Action, MakeRouter, MakeStub, post, until

SOON, LATE = {"first_byte": "1s"}, {"first_byte": "30s"}
GARBAGE, _ = FAULTS["garbage"]


@pytest.mark.parametrize("fault", FAULTS)
def test_failures_in_a_row(stub: MakeStub, route: MakeRouter, fault: str) -> None:
    """After the third failure requests go to the other worker, and the metrics show it."""
    script, kind = FAULTS[fault]
    bad, good = stub(script), stub()
    timeouts = SOON if kind == "timeout" else LATE
    router = route(bad.url, good.url, strategy="roundrobin", timeouts=timeouts, health=health())
    ask(router, 4)
    assert ejected(router) == [0, 0]
    assert len(bad.requests) == 2
    ask(router, 2)
    until(lambda: ejected(router) == [1, 0])
    assert ask(router, 6) == [200] * 6
    assert len(bad.requests) == 3
    assert ejections(router, bad, kind) == 1
    assert router.worker(0).ready  # its probes never failed
    assert not router.worker(0).breaker.closed


@pytest.mark.parametrize("strategy", ["roundrobin", "leastload", "prefixaware"])
def test_whatever_the_strategy(stub: MakeStub, route: MakeRouter, strategy: str) -> None:
    """One that fails is left, with any strategy, even one that prefers the one with the prefix."""
    bad, good = stub(), stub()
    router = route(bad.url, good.url, strategy=strategy, health=health())
    chat = {**CHAT, "messages": [{"role": "user", "content": "word " * 2000}]}
    while not bad.requests:
        assert router.http.post(PATH, json=chat).status_code == 200
    bad.script = ["close"]
    before = len(bad.requests)
    statuses = [router.http.post(PATH, json=chat).status_code for _ in range(30)]
    assert len(bad.requests) <= before + 4  # one is sent again, as it met a closing connection
    assert statuses[-10:] == [200] * 10


def test_many_at_once_are_one_ejection(stub: MakeStub, route: MakeRouter) -> None:
    """Requests that were in flight at the ejection and then fail do not extend it."""
    fails = threading.Event()
    bad, *good = stub([fails.is_set, "close"]), stub(), stub(), stub()
    urls = [worker.url for worker in (bad, *good)]
    router = route(*urls, strategy="roundrobin", health=health(first="1h"))
    clients = [start(router) for _ in range(40)]
    until(lambda: len(bad.requests) == 10)
    fails.set()
    assert sorted(map(status, clients)) == [200] * 30 + [502] * 10
    bad.script = [fails.is_set, "close"]
    fails.clear()
    clients = [start(router) for _ in range(8)]
    fails.set()
    for client in clients:
        status(client)
    until(lambda: ask(router) and ejected(router) == [1, 0, 0, 0])
    assert ejections(router, bad, "closed") == 1
    now = time.monotonic()
    assert now + 3000 < router.worker(0).breaker.until <= now + 3600


def test_one_trial_and_back(stub: MakeStub, route: MakeRouter) -> None:
    """After its ejection a worker gets one trial request; others follow once that has worked."""
    answers = threading.Event()
    bad, good = stub(["close"]), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health=health(first="300ms"))
    ask(router, 6)
    assert ejected(router) == [1, 0]
    bad.script = [answers.is_set, *OK]
    serve_out(router.worker(0))
    trial = start(router)
    until(lambda: len(bad.requests) == 4)
    others = [start(router) for _ in range(20)]
    assert list(map(status, others)) == [200] * 20
    assert len(bad.requests) == 4
    assert ejected(router) == [1, 0]
    answers.set()
    assert status(trial) == 200
    assert ejected(router) == [0, 0]
    ask(router, 6)
    assert len(bad.requests) == 7


def test_a_stream_that_begins_is_enough_of_a_trial(stub: MakeStub, route: MakeRouter) -> None:
    """The first byte of a trial's answer ends the ejection, as the whole may take minutes."""
    bad, good = stub(["close"]), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health=health(first="100ms"))
    ask(router, 6)
    bad.script = [SSE + CHUNK, "stall"]
    serve_out(router.worker(0))
    with post(router.port, PATH, body(stream=True)) as client:
        until(lambda: ejected(router) == [0, 0])
        assert client.recv(65536)


def test_a_trial_that_fails(stub: MakeStub, route: MakeRouter) -> None:
    """Each failed trial doubles the ejection, up to the longest."""
    bad, good = stub(["close"]), stub()
    settings = health(first="100ms", longest="300ms")
    router = route(bad.url, good.url, strategy="roundrobin", health=settings)
    ask(router, 6)
    for times, span in enumerate((0.2, 0.3, 0.3), start=2):
        serve_out(router.worker(0))
        before = time.monotonic()
        assert 502 in ask(router, 2)
        assert before + span <= router.worker(0).breaker.until <= time.monotonic() + span
        assert ejections(router, bad, "closed") == times
    assert ejected(router) == [1, 0]


@pytest.mark.parametrize("answer", [400, 404, 422, 429, 501])
def test_what_is_no_failure(stub: MakeStub, route: MakeRouter, answer: int) -> None:
    """Backpressure and errors that the request itself causes do not count as failures."""
    workers = [stub(says(answer)), stub(says(answer))]
    router = route(*(w.url for w in workers), strategy="roundrobin", health=health(failures=1))
    assert ask(router, 10) == [answer] * 10
    assert all(len(worker.requests) == 5 for worker in workers)
    assert ejected(router) == [0, 0]
    assert router.worker(0).breaker._failures == 0


def test_a_full_worker_has_not_failed(stub: MakeStub, route: MakeRouter) -> None:
    """Nor if it refuses whatever it is asked."""
    workers = [stub(says(503)), stub(says(503))]
    urls = [worker.url for worker in workers]
    router = route(*urls, limits={"queue": 0}, health=health(failures=1))
    assert ask(router) == [503]
    assert [len(worker.requests) for worker in workers] == [1, 1]
    assert ejected(router) == [0, 0]
    assert router.worker(0).breaker._failures == 0


@pytest.mark.parametrize("script", [["stall"], [SSE + CHUNK, "stall"]], ids=["before", "within"])
def test_clients_that_leave_are_no_failures(
    stub: MakeStub, route: MakeRouter, script: list[Action]
) -> None:
    """Client disconnects are no failures, before or within an answer."""
    slow, good = stub(script), stub(script)
    router = route(slow.url, good.url, strategy="roundrobin", health=health(failures=1))
    for count in range(10):
        with post(router.port, PATH, body(stream=True)) as client:
            until(lambda: len(slow.requests) + len(good.requests) == count + 1)  # noqa: B023
            if len(script) > 1:
                assert client.recv(65536)
        until(router.idle)
    assert ejected(router) == [0, 0]


@pytest.mark.parametrize(
    ("between", "row"),
    [(says(400), True), (says(429), True), (says(503), True), (OK, False)],
    ids=["400", "429", "503", "200"],
)
def test_what_ends_a_row(
    stub: MakeStub, route: MakeRouter, between: list[Action], row: bool
) -> None:
    """Success ends a row of failures; a 4xx or 503 does not, as it could hide a bad engine."""
    bad, good = stub(), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health=health())
    for script in (GARBAGE, between, GARBAGE, between, GARBAGE):
        before = len(bad.requests)
        bad.script = script
        while len(bad.requests) == before:
            ask(router)
    assert len(bad.requests) == 5
    assert ejected(router) == [int(row), 0]


@pytest.mark.parametrize("fault", ["close", "reset", "halfway"])
def test_one_that_hangs_up_is_looked_at_at_once(
    stub: MakeStub, route: MakeRouter, fault: str
) -> None:
    """A worker that drops a connection is probed at once; one failed probe then marks it down."""
    worker = stub(FAULTS[fault][0])
    router = route(worker.url, health=health())
    worker.well = False
    ask(router)
    until(lambda: not router.worker().ready)


def test_what_the_router_lacks_is_no_failure_of_a_worker(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running out of file descriptors in the router is no failure of a worker."""
    router = route(stub().url, health=health(failures=1))

    async def lacking(self: Upstream, addresses: Sequence[str]) -> UpstreamConnection:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Upstream, "_connect", lacking)
        assert ask(router, 3) == [503] * 3
    assert router.worker().ready
    assert router.worker().breaker._failures == 0
    assert ask(router) == [200]
