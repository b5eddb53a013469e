"""Clients that leave while their request is moved, or afterwards."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from router.dispatch.lease import Lease
from router.http.exchange import Exchange
from tests.overload.busy import PATH, asked
from tests.overload.hanging import NEVER, Hurry, both, routed
from tests.support import MakeRouter, MakeStub, post, until


@pytest.mark.parametrize("leaves_before", [True, False])
def test_a_client_that_leaves_meanwhile(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    monkeypatch: pytest.MonkeyPatch,
    *,
    leaves_before: bool,
) -> None:
    """In the same turn of the loop: it is sent to nobody, and nothing stays booked."""
    move = Lease.rescue

    def leaving(self: Lease, *, suspected: bool) -> None:
        exchange = cast("Exchange", self.request.source)
        if not leaves_before:
            move(self, suspected=suspected)
        exchange.leave()
        assert exchange.task is not None
        exchange.task.cancel()
        if leaves_before:
            move(self, suspected=suspected)

    monkeypatch.setattr(Lease, "rescue", leaving)
    router, _, hung, other = both(route, crowd, stub)
    hurry()
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    until(router.idle)
    until(lambda: hung.closed_by_peer == 1)
    assert other.requests == []
    assert router.door.dispatcher.scheduler.in_flight == 0
    assert len(router.door.dispatcher.preempting) == 0


def test_a_client_that_leaves_once_it_was_moved(
    route: MakeRouter, stub: MakeStub, hurry: Hurry
) -> None:
    """It leaves the second worker like any other."""
    pair = [stub(NEVER), stub(NEVER)]
    router = routed(route, *pair)
    body = json.dumps(asked("first", 100)).encode()
    client = post(router.port, PATH, body, b"content-type: application/json")
    hurry()
    until(lambda: all(one.requests for one in pair))
    client.close()
    until(lambda: all(one.closed_by_peer for one in pair))
    until(router.idle)
