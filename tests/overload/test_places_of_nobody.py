"""Requests that wait while a worker drains or is ejected: its places are not for them."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from router.queue import Queue
from tests.overload.busy import Gate
from tests.overload.test_overload import ask, line_is, waiting
from tests.reload.changing import QUIET, change
from tests.support import MakeRouter, MakeStub, until

FEW = {"limits": {"in_flight": 1}, "timeouts": {"queue": "10m"}, "strategy": "roundrobin"}


def test_those_in_line_hear_that_every_worker_drains(stub: MakeStub, route: MakeRouter) -> None:
    """Queued requests get 503, as new ones do, before the running one has freed its place."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, **FEW)
    with ThreadPoolExecutor(3) as crowd:
        replies = ask(router, crowd, 3)
        try:
            until(lambda: waiting(router) == 2)
            change(router, {"url": worker.url, "drain": True}, **FEW)
            until(lambda: sum(reply.done() for reply in replies) == 2)
        finally:
            gate.opened.set()
        assert sorted(reply.result().status_code for reply in replies) == [200, 503, 503]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the queue was looked through, and how often a request came back to it."""
    found: Counter[str] = Counter()
    for name in ("expired", "come_back"):
        monkeypatch.setattr(Queue, name, counted(found, name))
    return found


def test_nobody_is_called_for_the_places_of_a_worker_that_drains(
    stub: MakeStub, route: MakeRouter, seen: Counter[str]
) -> None:
    """Whoever is called there could only come back, ten times a second."""
    gates = Gate(), Gate()
    drains, busy = (stub(gate.script()) for gate in gates)
    router = route(drains.url, busy.url, health=QUIET, **FEW)
    with ThreadPoolExecutor(3) as crowd:
        replies = ask(router, crowd, 3)
        try:
            until(lambda: line_is(router, 1) and drains.requests and busy.requests)
            change(router, {"url": drains.url, "drain": True}, busy.url, **FEW)
            gates[0].opened.set()
            until(lambda: sum(reply.done() for reply in replies) == 1)
            begun = seen["expired"]
            until(lambda: seen["expired"] > begun + 2)
            assert seen["come_back"] == 0
        finally:
            for gate in gates:
                gate.opened.set()
        assert [reply.result().status_code for reply in replies] == [200] * 3
    assert len(busy.requests) == 2


def test_nobody_is_called_for_the_places_of_a_worker_that_is_ejected(
    stub: MakeStub, route: MakeRouter, seen: Counter[str]
) -> None:
    """The same; once its time is over, one of those who wait is the trial."""
    gate = Gate()
    bad, busy = stub(), stub(gate.script())
    long = {"failures": 1, "first": "10m", "longest": "10m"}
    router = route(bad.url, busy.url, health={**QUIET, "ejection": long}, **FEW)
    breaker = router.worker(0).breaker
    router.call(lambda: breaker.failed(monotonic(), breaker.began(monotonic()), "5xx"))
    with ThreadPoolExecutor(2) as crowd:
        replies = ask(router, crowd, 2)
        try:
            until(lambda: line_is(router, 1) and busy.requests)
            begun = seen["expired"]
            until(lambda: seen["expired"] > begun + 2)
            assert seen["come_back"] == 0
            breaker.until = monotonic()
            until(lambda: bad.requests)
        finally:
            gate.opened.set()
        assert [reply.result().status_code for reply in replies] == [200] * 2


def counted(seen: Counter[str], name: str) -> object:
    """Return that method of the queue, which counts its calls."""
    method = getattr(Queue, name)

    def call(*args: object, **named: object) -> object:
        seen[name] += 1
        return method(*args, **named)

    return call
