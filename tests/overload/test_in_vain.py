"""Requests that wait are not sent to workers that are to get nothing new."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, sleep
from typing import Any

import pytest

from router.fleet.worker import ProbeState, Worker
from tests.overload.busy import QUIET, Gate
from tests.overload.test_overload import ask, line_is
from tests.reload.changing import change
from tests.support import MakeRouter, MakeStub, until

#: Who is ejected stays so until the end of the test.
EJECTED: dict[str, Any] = {**QUIET, "ejection": {"first": "1h", "longest": "2h"}}


def eject(worker: Worker) -> None:
    """Let requests to a worker fail until it is ejected."""
    while worker.breaker.closed:
        worker.breaker.failed(monotonic(), worker.breaker.began(monotonic()), "5xx")


@pytest.mark.parametrize("drains", [True, False])
def test_places_on_a_worker_that_gets_nothing_new_are_no_places(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, drains: bool
) -> None:
    """An idle worker that drains, or is ejected, gets nobody who waits for the other one."""
    gate = Gate()
    busy, idle = stub(gate.script()), stub()
    router = route(
        busy.url, {"url": idle.url, "drain": drains}, limits={"in_flight": 2}, health=EJECTED
    )
    if not drains:
        router.call(lambda: eject(router.worker(1)))
    replies = ask(router, crowd, 5)
    until(lambda: line_is(router, 3))
    sleep(0.2)  # they are looked at four times
    assert line_is(router, 3)
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 5
    assert not idle.requests


@pytest.mark.parametrize("drains", [True, False])
def test_nor_are_places_that_come_free_there(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, drains: bool
) -> None:
    """The last answers of a worker that drains, or is ejected, let nobody go there either."""
    gates = Gate(), Gate()
    stays, goes = (stub(gate.script()) for gate in gates)
    health = {**QUIET, "ejection": {**EJECTED["ejection"], "panic": 0}}
    rest: dict[str, Any] = {"limits": {"in_flight": 2}, "health": health, "strategy": "leastload"}
    router = route(stays.url, goes.url, **rest)
    replies = ask(router, crowd, 7)
    until(lambda: line_is(router, 3))
    if drains:
        change(router, stays.url, {"url": goes.url, "drain": True}, **rest)
    else:
        router.call(lambda: eject(router.worker(1)))
    gates[1].opened.set()
    until(lambda: router.worker(1).load.in_flight == 0)
    sleep(0.2)  # they are looked at four times
    assert line_is(router, 3)
    gates[0].opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 7
    assert len(goes.requests) == 2


def test_who_waits_is_the_trial_of_a_worker_whose_time_is_over(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Until then nobody is sent there."""
    gate = Gate()
    bad, busy = stub(), stub(gate.script())
    router = route(bad.url, busy.url, limits={"in_flight": 1}, health=EJECTED)
    router.call(lambda: eject(router.worker(0)))
    replies = ask(router, crowd, 2)
    until(lambda: line_is(router, 1) and busy.requests)
    assert not bad.requests
    router.worker(0).breaker.until = monotonic()
    until(lambda: bad.requests)
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 2


def test_an_ejected_worker_has_places_once_too_few_are_healthy(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Who waits already goes there, though nobody comes who would find ejections ignored."""
    gate = Gate()
    busy = [stub(gate.script()) for _ in range(3)]
    ejected = stub()
    router = route(
        *(worker.url for worker in (*busy, ejected)), limits={"in_flight": 1}, health=EJECTED
    )
    router.call(lambda: eject(router.worker(3)))
    replies = ask(router, crowd, 5)
    until(lambda: line_is(router, 2))
    for place in range(2):
        router.call(partial(router.worker(place).become, ProbeState.DOWN, "it was unplugged"))
    until(lambda: len(ejected.requests) == 2)
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 5
