"""A long prompt gives way to a short one of another process of the router, over real sockets."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from router.replicas.replication import Sharing
from router.replicas.sockets import Wires, Wiring
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Refused
from tests.overload.busy import PATH, Gate, ask, asked
from tests.overload.giving_way import LONG, MIDDLE, SHORT, preempted, routed, sizes
from tests.support import OK, MakeRouter, Router, Stub, until

Pair = Callable[[], tuple[Router, Router]]


@pytest.fixture
def pair(route: MakeRouter, worker: Stub, stack: ExitStack) -> Pair:
    """Two routers with one worker, which tell each other what they send, as processes do."""

    def make() -> tuple[Router, Router]:
        wiring = Wiring(2)
        stack.callback(wiring.close)
        both = routed(route, worker), routed(route, worker)
        for place, router in enumerate(both):
            join(router, wiring, place, stack)
        return both

    return make


def join(router: Router, wiring: Wiring, place: int, stack: ExitStack) -> None:
    """Let a router be the process at `place`."""
    given, door = wiring.wires(place), router.door
    inherited = Wires(os.dup(given.inbox), tuple(map(os.dup, given.outboxes)))
    sharing = Sharing(inherited, place, door.fleet, door.freed_elsewhere, door.gives_way)
    stack.callback(router.call, sharing.close)

    def begin() -> None:
        door.fleet.share(sharing)
        sharing.begin()

    router.call(begin)


@pytest.mark.parametrize("lacks", [False, True])
def test_it_gives_way_when_the_other_is_sent(
    pair: Pair,
    crowd: ThreadPoolExecutor,
    worker: Stub,
    monkeypatch: pytest.MonkeyPatch,
    lacks: bool,
) -> None:
    """As within one process, and both end with nothing booked; but not if the other cannot be sent,
    as the router lacks a file descriptor: it would be computed in two parts for nothing."""
    gate = Gate()
    worker.script = gate.script()
    one, two = pair()
    first = ask(one, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    until(lambda: two.worker().load.in_flight == 1)
    worker.script = OK

    async def lacking(*_: object) -> UpstreamConnection:
        raise Refused("no file descriptor is left", ours=True)

    if lacks:
        monkeypatch.setattr(two.worker().upstream, "ask", lacking)
    # Behind one of this length the long one waits, so that their order is certain.
    reply = two.http.post(PATH, json=asked("short", SHORT if lacks else MIDDLE))
    if lacks:
        gate.opened.set()
    assert reply.status_code == (503 if lacks else 200)
    assert preempted(first) == (not lacks)
    assert sizes(worker) == (["long"] if lacks else ["long", "short", "long"])
    for router in (one, two):
        until(router.idle)
        load = router.worker().load
        assert (load.decoding, load.uncached, load.in_flight, len(load.pending)) == (0, 0, 0, 0)
    counts = [router.metric("warmroute_preempted_requests_total") for router in (one, two)]
    assert counts == [not lacks, 0]
