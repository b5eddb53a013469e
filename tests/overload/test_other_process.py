"""A long prompt gives way to a short one of another process of the router, over real sockets."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from router.replicas.replication import Sharing
from router.replicas.sockets import Line, Wires, Wiring
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Refused
from router.upstream.pool import Upstream
from tests.overload.busy import PATH, Gate, ask, asked
from tests.overload.giving_way import LONG, MIDDLE, SHORT, routed, sizes
from tests.support import OK, MakeRouter, Router, Stub, until

Pair = Callable[[], tuple[Router, Router]]


@pytest.fixture
def pair(route: MakeRouter, worker: Stub, stack: ExitStack) -> Pair:
    """Two routers with one worker, which tell each other what they send, as processes do."""

    def make() -> tuple[Router, Router]:
        wiring = Wiring(2)
        stack.callback(wiring.close)
        both = routed(route, worker), routed(route, worker)
        found = [joined(router, wiring, place) for place, router in enumerate(both)]
        for router, sharing in zip(both, found, strict=True):
            stack.callback(router.call, sharing.close)
        until(lambda: all(o.line is Line.OPEN for one in found for o in one._outboxes.values()))
        return both

    return make


def joined(router: Router, wiring: Wiring, place: int) -> Sharing:
    """Let a router be the process at `place`."""
    given, door = wiring.wires(place), router.door
    inherited = Wires(os.dup(given.inbox), tuple(map(os.dup, given.outboxes)))
    sharing = Sharing(inherited, place, door.fleet, door.freed_elsewhere, door.gives_way)
    sharing._pid = place

    def begin() -> None:
        door.fleet.share(sharing)
        sharing.begin()

    router.call(begin)
    return sharing


def test_it_gives_way_and_goes_on(pair: Pair, crowd: ThreadPoolExecutor, worker: Stub) -> None:
    """As within one process; both end with nothing booked."""
    one, two = pair()
    first = ask(one, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    until(lambda: two.worker().load.in_flight == 1)
    worker.script = OK
    # Behind one of this length the long one waits, so that their order is certain.
    reply = two.http.post(PATH, json=asked("short", MIDDLE))
    assert reply.status_code == 200
    assert "x-warmroute-preempted" not in reply.headers
    assert first.result().status_code == 200
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert sizes(worker) == ["long", "short", "long"]
    until(lambda: worker.closed_by_peer == 1)
    for router in (one, two):
        until(router.idle)
        load = router.worker().load
        assert (load.decoding, load.uncached, load.in_flight, len(load.pending)) == (0, 0, 0, 0)
    preempted = [router.metric("warmroute_preempted_requests_total") for router in (one, two)]
    assert preempted == [1, 0]


def test_it_gives_way_when_the_other_is_sent(
    pair: Pair, crowd: ThreadPoolExecutor, worker: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while that still has no connection: the long one could be sent again before it."""
    one, two = pair()
    first = ask(one, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    until(lambda: two.worker().load.in_flight == 1)
    upstream, pending = two.worker().upstream, two.worker().load.pending
    dial, may = upstream._dial, list[bool]()

    async def noting() -> UpstreamConnection:
        connection = await dial()
        may.extend(booking.since is not None for booking in pending if booking.elsewhere)
        return connection

    monkeypatch.setattr(upstream, "_dial", noting)
    worker.script = OK
    assert two.http.post(PATH, json=asked("short", SHORT)).status_code == 200
    assert may == [True]  # it has not been asked yet
    assert first.result().headers["x-warmroute-preempted"] == "1"
    for router in (one, two):
        until(router.idle)


def test_it_goes_on_if_the_other_cannot_be_sent(
    pair: Pair, crowd: ThreadPoolExecutor, worker: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be computed in two parts for nothing."""
    gate = Gate()
    worker.script = gate.script()
    one, two = pair()
    first = ask(one, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    until(lambda: two.worker().load.in_flight == 1)
    upstream = two.worker().upstream
    monkeypatch.setattr(upstream, "_dial", partial(lacking, upstream))
    reply = two.http.post(PATH, json=asked("short", SHORT))
    assert reply.status_code == 503
    (theirs,) = two.worker().load.pending
    assert theirs.since is not None
    gate.opened.set()
    assert first.result().status_code == 200
    assert "x-warmroute-preempted" not in first.result().headers
    for router in (one, two):
        until(router.idle)


async def lacking(self: Upstream, *_: object) -> UpstreamConnection:
    """Fail as if the system had no file descriptor left."""
    raise Refused("no file descriptor is left", ours=True)
