"""Passive health checks: a worker whose requests keep failing is ejected for a while."""

import errno
import logging
import threading
import time

import pytest

from router.settings.server import TimeoutSettings
from router.upstream.pool import Addresses, Upstream
from tests.health.failing import (
    CHAT,
    CHUNK,
    EMPTY,
    EVENT,
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


@pytest.mark.parametrize("fault", FAULTS)
def test_failures_in_a_row(stub: MakeStub, route: MakeRouter, fault: str) -> None:
    """After the third failure requests go to the other worker, and operators see why."""
    script, kind = FAULTS[fault]
    bad, good = stub(script), stub()
    timeouts = {"first_byte": "500ms" if kind == "timeout" else "30s"}
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
    out, other = router.http.get("/workers").json()
    assert (out["state"], other["state"]) == ("ejected", "ready")
    assert out["reason"].startswith(f"3 failures in a row, the last: {kind}; back in ")


def test_a_strategy_that_prefers_it(stub: MakeStub, route: MakeRouter) -> None:
    """One that fails is left, even with a strategy that prefers the one with the prefix."""
    bad, good = stub(), stub()
    router = route(bad.url, good.url, strategy="prefixaware", health=health())
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
    fails.clear()
    clients = [start(router) for _ in range(8)]
    fails.set()
    for client in clients:
        status(client)
    until(lambda: ask(router) and ejected(router) == [1, 0, 0, 0])
    assert ejections(router, bad, "closed") == 1
    now = time.monotonic()
    assert now + 3000 < router.worker(0).breaker.until <= now + 3600


def test_one_trial_and_back(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """After its ejection a worker gets one trial request; others follow once that has worked."""
    caplog.set_level(logging.WARNING, "warmroute.fleet")
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
    said = [line for line in caplog.messages if line.startswith("pool default: worker ")]
    assert [word in line for word, line in zip(("ejected", "back in"), said, strict=True)]


def test_a_stream_that_begins_is_enough_of_a_trial(stub: MakeStub, route: MakeRouter) -> None:
    """The first byte of a trial's answer ends the ejection, as the whole may take minutes; a trial
    that fails makes it longer."""
    bad, good = stub(["close"]), stub()
    settings = health(first="100ms", longest="300ms")
    router = route(bad.url, good.url, strategy="roundrobin", health=settings)
    ask(router, 6)
    serve_out(router.worker(0))
    assert 502 in ask(router, 2)
    assert (ejected(router), ejections(router, bad, "closed")) == ([1, 0], 2)
    bad.script = [SSE + CHUNK, "stall"]
    serve_out(router.worker(0))
    with post(router.port, PATH, body(stream=True)) as client:
        until(lambda: ejected(router) == [0, 0])
        assert client.recv(65536)


@pytest.mark.parametrize("answer", [400, 404, 422, 429, 501, 503])
def test_what_is_no_failure(stub: MakeStub, route: MakeRouter, answer: int) -> None:
    """Back pressure and errors that the request itself causes do not count as failures."""
    bad, good = stub(says(answer)), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health=health(failures=1))
    assert set(ask(router, 12)) <= {200, answer}
    assert bad.requests
    assert ejected(router) == [0, 0]


@pytest.mark.parametrize("script", [["stall"], [SSE + CHUNK, "stall"]], ids=["before", "within"])
def test_clients_that_leave_are_no_failures(
    stub: MakeStub, route: MakeRouter, script: list[Action]
) -> None:
    """Client disconnects are no failures, before or within an answer."""
    slow, good = stub(script), stub(script)
    router = route(slow.url, good.url, strategy="roundrobin", health=health(failures=1))
    for count in range(6):
        with post(router.port, PATH, body(stream=True)) as client:
            until(lambda: len(slow.requests) + len(good.requests) == count + 1)  # noqa: B023
            if len(script) > 1:
                assert client.recv(65536)
        until(router.idle)
    assert ejected(router) == [0, 0]


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


def test_what_the_router_lacks_is_no_failure_of_a_worker(stub: MakeStub, route: MakeRouter) -> None:
    """Running out of file descriptors in the router is no failure of a worker."""
    workers = [stub(), stub()]
    urls = [worker.url for worker in workers]
    router = route(*urls, strategy="roundrobin", health=health(failures=1))

    def lacking(_: str) -> tuple[str, ...]:
        raise OSError(errno.EMFILE, "Too many open files")

    def lack() -> None:
        addresses = Addresses("worker", lacking)
        timeouts = TimeoutSettings()
        router.worker().reach(
            Upstream("worker", 1, tls=None, timeouts=timeouts, addresses=addresses)
        )

    router.call(lack)
    assert ask(router, 6) == [200] * 6
    assert len(workers[1].requests) == 6
    assert router.worker().ready
    assert ejected(router) == [0, 0]


@pytest.mark.parametrize("script", [["close"], says(500), EVENT, EMPTY])
def test_none_is_ejected_if_all_fail_alike(
    stub: MakeStub, route: MakeRouter, script: list[Action]
) -> None:
    """What every worker fails says nothing against one of them; nor what the only one fails."""
    workers = [stub(script) for _ in range(3)]
    router = route(*(w.url for w in workers), health=health(failures=2))
    ask(router, 20)
    until(router.idle)
    assert ejected(router) == [0, 0, 0]
    assert {one["state"] for one in router.http.get("/workers").json()} == {"ready"}
    alone = route(workers[0].url, health=health(failures=1, share=1.0))
    before = len(workers[0].requests)
    ask(alone, 5)
    assert (ejected(alone), len(workers[0].requests)) == ([0], before + 5)


def test_panic(stub: MakeStub, route: MakeRouter) -> None:
    """If too few are healthy, ejected workers are used too, until others are back."""
    workers = [stub() for _ in range(4)]
    settings = {**health(failures=1), "interval": "20ms", "fall": 1}
    router = route(*(w.url for w in workers), strategy="roundrobin", health=settings)
    for worker in workers[:2]:
        worker.script, _ = FAULTS["500"]
    ask(router, 4)
    assert ejected(router) == [1, 1, 0, 0]
    asked = [len(worker.requests) for worker in workers]
    ask(router, 6)
    assert [len(worker.requests) for worker in workers[:2]] == asked[:2]

    workers[3].well = False
    until(lambda: not router.worker(3).ready)
    ask(router, 6)
    assert [len(w.requests) - n for w, n in zip(workers, asked, strict=True)] == [2, 2, 5, 3]
    assert ejected(router) == [1, 1, 0, 0]

    workers[3].well = True
    until(lambda: router.worker(3).ready)
    asked = [len(worker.requests) for worker in workers]
    ask(router, 6)
    assert [len(w.requests) - n for w, n in zip(workers, asked, strict=True)] == [0, 0, 3, 3]


def test_what_only_an_ejected_worker_can_answer(stub: MakeStub, route: MakeRouter) -> None:
    """It is asked if no other has the model, or the others are down, as it may work again."""
    bad, good = stub(["close"]), stub()
    bad.tells("/v1/models", {"data": [{"id": "m"}, {"id": "adapter"}]})
    settings = {**health(failures=1, panic=0), "interval": "20ms", "fall": 1}
    router = route(bad.url, good.url, strategy="roundrobin", health=settings)
    ask(router, 2)
    assert ejected(router) == [1, 0]
    assert ask(router, 3) == [200] * 3
    bad.script = OK
    assert router.http.post(PATH, json={**CHAT, "model": "adapter"}).status_code == 200
    good.well = False
    until(lambda: not router.worker(1).ready)
    bad.script = ["reset"]
    assert ask(router, 3) == [502] * 3  # better than a refusal
