"""The retry budget: further attempts are limited to a share of the requests in flight."""

import select
import threading
from time import sleep
from unittest.mock import Mock

import pytest

from tests.cancel.leaving import counted, unreachable
from tests.health.failing import CHAT, PATH, QUIET, ask, body, says, start, status
from tests.support import OK, MakeRouter, MakeStub, Router, error_of, post, until

FULL = says(503)


def denied(router: Router) -> float:
    """The number of denied retries, from the metrics."""
    return router.metric("warmroute_retries_denied_total")


@pytest.mark.parametrize(
    ("crowd", "share", "allowed"),
    [(10, 0.2, 3), (40, 0.2, 8), (40, 0.01, 3), (40, 1.0, 20), (40, 0.0, 0)],
)
def test_half_a_fleet_that_is_full(
    stub: MakeStub,
    route: MakeRouter,
    monkeypatch: pytest.MonkeyPatch,
    *,
    crowd: int,
    share: float,
    allowed: int,
) -> None:
    """At once max(3, share of those in flight) are retried, the others later; none if it is 0."""
    refuses, answers = threading.Event(), threading.Event()
    bad, good = stub([refuses.is_set, *FULL]), stub([answers.is_set, *OK])
    router = route(
        bad.url, good.url, strategy="roundrobin", limits={"retries": share}, health=QUIET
    )
    budget, pool = router.door.dispatcher.budget, router.door.fleet.pools[0]
    half = crowd // 2
    clients = [start(router) for _ in range(crowd)]
    until(lambda: len(bad.requests) == len(good.requests) == half)
    refuses.set()
    until(lambda: len(good.requests) == half + allowed)
    if share:
        until(lambda: router.metric("warmroute_queue_length") == half - allowed)
        assert budget.used == allowed
        strategy = Mock(wraps=pool.strategy)
        monkeypatch.setattr(pool, "strategy", strategy)
        sleep(0.2)
        assert not strategy.rank.called, "none is decided again before there is a retry for it"
        assert not select.select(clients, [], [], 0)[0]
    else:
        until(lambda: denied(router) == half)
    answers.set()
    statuses = [status(client) for client in clients]
    assert statuses.count(200) == (crowd if share else half)
    assert denied(router) == (0 if share else half)
    until(lambda: budget.used == 0)
    until(router.idle)


def test_half_a_fleet_that_cannot_be_reached(stub: MakeStub, route: MakeRouter) -> None:
    """A failed connection attempt sent nothing, so trying another worker costs no budget."""
    bad, good = stub(), stub()
    router = route(
        bad.url,
        good.url,
        strategy="roundrobin",
        timeouts={"connect": "2s"},
        limits={"retries": 0},
        health=QUIET,
    )
    with unreachable(bad):
        clients = [start(router) for _ in range(40)]
        assert [status(client) for client in clients] == [200] * 40
    labels = {"pool": "default", "worker": bad.url[7:], "kind": "connect"}
    assert router.metric("warmroute_worker_errors_total", **labels) > 3
    assert not router.worker(0).ready
    assert denied(router) == 0
    until(router.idle)


def test_a_denied_one_hears_when_to_come_back(stub: MakeStub, route: MakeRouter) -> None:
    """With `retries: 0` no other worker is asked: 503 in OpenAI's format with Retry-After."""
    full, good = stub(FULL), stub()
    router = route(full.url, good.url, strategy="roundrobin", limits={"retries": 0}, health=QUIET)
    reply = router.http.post(PATH, json=CHAT)
    assert reply.status_code == 503
    assert error_of(reply)["code"] == "no_worker"
    assert int(reply.headers["retry-after"]) > 0
    assert (len(full.requests), len(good.requests)) == (1, 0)
    assert denied(router) == 1
    assert router.worker(0).ready


@pytest.mark.parametrize("end", ["stall", "close", "reset"])
def test_what_was_taken_is_given_back(stub: MakeStub, route: MakeRouter, end: str) -> None:
    """A retry returns its share of the budget if the client disconnects or the worker fails."""
    full, other = stub(FULL), stub([end])
    router = route(full.url, other.url, strategy="roundrobin", health=QUIET)
    with start(router):
        until(lambda: other.requests)
        if end == "stall":
            assert router.door.dispatcher.budget.used == 1
    until(router.idle)
    until(lambda: router.door.dispatcher.budget.used == 0)


def test_one_request_takes_one(stub: MakeStub, route: MakeRouter) -> None:
    """A request takes from the budget once, however many workers are full."""
    full, good = [stub(FULL) for _ in range(6)], stub()
    urls = [worker.url for worker in (*full, good)]
    router = route(*urls, strategy="roundrobin", limits={"attempts": 10}, health=QUIET)
    assert ask(router) == [200]
    assert denied(router) == 0


def test_who_leaves_before_a_second_attempt_is_counted(stub: MakeStub, route: MakeRouter) -> None:
    """A client that disconnects while its request waits for the retry budget is counted as 499."""
    refuses, answers = threading.Event(), threading.Event()
    bad, good = stub([refuses.is_set, *FULL]), stub([answers.is_set, *OK])
    router = route(bad.url, good.url, strategy="roundrobin", limits={"retries": 0.01}, health=QUIET)
    sent = body(stream=False)
    clients = {
        b"x-request-id: %d\r\n" % n: post(router.port, PATH, sent, b"x-request-id: %d" % n)
        for n in range(10, 22)
    }
    until(lambda: len(bad.requests) == len(good.requests) == 6)
    refuses.set()
    until(lambda: len(good.requests) == 6 + 3)
    asked = b"".join(good.requests)
    waiting = [client for field, client in clients.items() if field not in asked]
    assert len(waiting) == 3
    until(lambda: router.metric("warmroute_queue_length") == 3)
    for client in waiting:
        client.close()
    until(lambda: counted(router, "refused_requests") == {"499": 3})
    for client in clients.values():
        client.close()
    until(router.idle)
    assert counted(router, "refused_requests") == {"499": 3}
    assert counted(router, "requests") == {"499": 9}
    assert router.door.dispatcher.budget.used == 0
