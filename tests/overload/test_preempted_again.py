"""How a request that gave way is sent again, and what may change until then."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.fleet.worker import LOSSES
from strategies.cost.load import Load
from tests.overload.busy import ask, waits
from tests.overload.giving_way import SHORT, answer, given_way, long, routed, short, sizes
from tests.reload.changing import change
from tests.support import MakeRouter, Router, Stub, until


def check_held(router: Router, crowd: ThreadPoolExecutor, worker: Stub) -> None:
    """Check that the long prompt keeps its worker, and a short one is held meanwhile."""
    waiting = ask(router, crowd, "short", SHORT)
    until(waits(router, 1))
    assert sizes(worker) == ["long"]
    worker.stop()
    assert waiting.result().status_code == 503


def test_its_worker_is_told_another_id(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """An engine that has not yet forgotten the first request does not mistake it for that one; its
    client is told the id without the number."""
    router = routed(route, worker)
    first = long(router, crowd, worker)
    short(router)
    identity = first.result().headers["x-request-id"].encode()
    found = [re.search(rb"x-request-id: (\S+)\r\n", request) for request in worker.requests]
    assert [one and one[1] for one in found][::2] == [identity, identity + b"-1"]


def test_it_is_not_refused_although_no_place_is_left(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """It was sent already, so it waits for a place even if none may queue any more."""
    router = routed(route, worker)
    gate, replies = given_way(router, crowd, worker)
    change(router, worker.url, limits={"in_flight": 1, "queue": 0})
    until(lambda: router.metric("warmroute_queue_length") == 1)
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 2
    until(router.idle)


def test_none_gives_way_once_that_is_turned_off(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """Those that were sent before keep their worker, too."""
    router = routed(route, worker)
    long(router, crowd, worker)
    change(router, worker.url, limits={"preemptions": 0})
    check_held(router, crowd, worker)


def test_none_gives_way_once_its_worker_is_found_out(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """Not even those that it was sent before."""
    router = routed(route, worker)
    long(router, crowd, worker)
    preempting = router.door.dispatcher.preempting
    for _ in range(LOSSES):
        router.call(lambda: preempting.judge(router.worker(), 4000, 100))
    check_held(router, crowd, worker)


def test_a_prompt_that_is_shorter_than_thought_shows_no_loss(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was taken to hold more tokens than the prompt has kept it if it held nearly
    all of them."""
    monkeypatch.setattr(Load, "spent", lambda *_: 2.0)
    router = routed(route, worker)
    router.worker().losses = 2
    first = long(router, crowd, worker)
    worker.script = answer(cached=5_000, prompt=5_100)
    assert short(router).status_code == 200
    assert first.result().headers["x-warmroute-preempted"] == "1"
    until(router.idle)
    assert router.worker().losses == 0


def test_the_last_place_is_enough(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """Where a worker has one place left, who takes it may still go first."""
    router = routed(route, worker, limits={"in_flight": 2, "queue": 1})
    first = long(router, crowd, worker)
    assert short(router).status_code == 200
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert sizes(worker) == ["long", "short", "long"]
    until(router.idle)
