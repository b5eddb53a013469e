"""What happens at the very moment at which a prompt gives way, or just before or after."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import cast

import pytest

from router.dispatch.lease import Lease
from router.http.exchange import Exchange
from router.upstream.errors import Gone
from tests.overload.busy import ANSWER, QUIET, ask
from tests.overload.giving_way import LONG, SHORT, long, routed, short, sizes
from tests.reload.changing import CHUNK, END, SSE
from tests.retry.test_failover import full
from tests.support import OK, MakeRouter, MakeStub, Stub, until


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Lease], object]) -> None:
    """Let something happen in the same turn of the loop in which an lease is preempted."""
    preempt = Lease.preempt

    def preempted(self: Lease, kept_tokens: int) -> None:
        happens(self)
        preempt(self, kept_tokens)

    monkeypatch.setattr(Lease, "preempt", preempted)


def fails(lease: Lease) -> None:
    """The worker closes the connection."""
    for connection in lease.worker.upstream.in_use:
        connection._fail(Gone("closed the connection"))


def answers(lease: Lease) -> None:
    """The worker's whole answer arrives."""
    for connection in lease.worker.upstream.in_use:
        connection.data_received(ANSWER)


def refuses(lease: Lease) -> None:
    """The worker says that it is full."""
    for connection in lease.worker.upstream.in_use:
        connection.data_received(b"".join(part for part in full(b"x") if isinstance(part, bytes)))


@pytest.mark.parametrize("happens", [fails, answers, refuses])
def test_what_its_worker_does_then_is_of_no_interest(
    happens: Callable[[Lease], object],
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    worker: Stub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has given way, so it is sent again, and its client gets that answer."""
    router = routed(route, worker)
    first = long(router, crowd, worker)
    meanwhile(monkeypatch, happens)
    assert short(router).status_code == 200
    assert first.result().status_code == 200
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert sizes(worker) == ["long", "short", "long"]
    until(router.idle)


def test_a_client_that_leaves_then_is_counted(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under no worker, as it was not at one any more."""

    def leaves(lease: Lease) -> None:
        exchange = cast("Exchange", lease.request.source)
        exchange.leave()
        assert exchange.task is not None
        exchange.task.cancel()

    router = routed(route, worker)
    long(router, crowd, worker)
    meanwhile(monkeypatch, leaves)
    assert short(router).status_code == 200
    until(router.idle)
    assert router.metric("warmroute_refused_requests_total", status="499") == 1
    assert sizes(worker) == ["long", "short"]


@pytest.mark.parametrize("begins", [True, False])
def test_on_failover_it_counts_what_is_there_by_then(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, *, begins: bool
) -> None:
    """Not what was there when the workers were compared: a long prompt whose answer has begun
    meanwhile does not give way to a short one that another worker has refused."""
    begin, end, refuse = Event(), Event(), Event()
    both = [stub([begin.is_set, SSE + CHUNK, end.is_set, CHUNK + END]) for _ in range(2)]
    router = route(*(one.url for one in both), health=QUIET)
    for one in router.door.fleet.workers:
        one.reuses = True
    first = ask(router, crowd, "long", LONG)
    until(lambda: any(one.requests for one in both))
    other, there = sorted(both, key=lambda one: len(one.requests))
    other.script, there.script = [refuse.is_set, *full(b"x")], OK
    reply = ask(router, crowd, "short", SHORT)
    until(lambda: other.requests)
    if begins:
        begin.set()
        until(lambda: any(one.load.decoding for one in router.door.fleet.workers))
    refuse.set()
    assert reply.result().headers["x-warmroute-worker"] == there.url[7:]
    end.set()
    assert first.result().status_code == 200
    assert ("x-warmroute-preempted" in first.result().headers) != begins
    assert router.metric("warmroute_preempted_requests_total") == (not begins)
    assert sizes(there) == ["long", "short"] + ([] if begins else ["long"])
    until(router.idle)
