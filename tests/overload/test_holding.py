"""Requests held in the router until a worker is about to be free, over real sockets."""

import json
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from strategies.policies.prefix_aware import PrefixAware
from tests.overload.busy import ANSWER, PATH, QUIET, Gate, ask, asked, busied, waits
from tests.reload.changing import change
from tests.support import MakeRouter, MakeStub, post, until


def test_who_would_only_queue_is_held_here(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """While a long prompt is computed, further requests are held; afterwards they are sent. One
    whose client leaves meanwhile is never sent, and the strategy forgets it."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    strategy = router.door.fleet.pools[0].strategy
    assert isinstance(strategy, PrefixAware)
    under_way = strategy.tree.root
    first = busied(router, crowd, worker)
    body = json.dumps(asked("gone", 2000)).encode()
    with post(router.port, PATH, body, b"content-type: application/json"):
        until(waits(router, 1))
        assert under_way.users == 2
    until(waits(router, 0))
    assert under_way.users == 1
    others = [ask(router, crowd, f"other{number}", 2000) for number in range(3)]
    until(waits(router, 3))
    assert len(worker.requests) == 1
    gate.opened.set()
    assert [answer.result().status_code for answer in (first, *others)] == [200] * 4
    assert router.metric("warmroute_queued_total") == 4
    until(router.idle)
    assert (router.worker().load.promised_s, under_way.users) == (0.0, 0)
    assert len(worker.requests) == 4


def test_what_ends_elsewhere_lets_them_go(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, no_tick: None
) -> None:
    """If another process of the router sent the long prompt, its report releases held requests."""
    router = route(stub().url, health=QUIET, timeouts={"queue": "1h"})
    load = router.worker().load
    theirs = load.book(monotonic(), 60.0, 60_000, elsewhere=True)
    answer = ask(router, crowd, "ours", 2000)
    until(waits(router, 1))
    load.release(theirs, monotonic())
    router.call(router.door.freed_elsewhere)
    assert answer.result().status_code == 200
    until(router.idle)


def test_a_worker_for_another_model_takes_its_own(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """In one pool, requests held for a busy model do not block those for a free one."""
    gate = Gate()
    busy, free = stub(gate.script(), "m"), stub(model="n")
    router = route(busy.url, free.url, health=QUIET)
    replies = [busied(router, crowd, busy), ask(router, crowd, "mine", 2000)]
    until(waits(router, 1))
    assert ask(router, crowd, "other", 2000, "n").result().status_code == 200
    assert waits(router, 1)()
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 2


@pytest.mark.parametrize(
    ("bounds", "held"), [({"timeouts": {"queue": "300ms"}}, 0), ({"limits": {"queue": 1}}, 1)]
)
def test_how_many_are_held_and_for_how_long(
    stub: MakeStub,
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    bounds: dict[str, dict[str, object]],
    held: int,
) -> None:
    """After `timeouts.queue`, and beyond `limits.queue`, requests are sent and wait at the worker,
    as it has places for them."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, **bounds)
    answers = [busied(router, crowd, worker)]
    answers += [ask(router, crowd, f"other{number}", 2000) for number in range(3)]
    until(lambda: len(worker.requests) == 4 - held)
    assert waits(router, held)()
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 4


def test_holding_and_queueing_take_no_longer_than_one_of_them_may(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A held request without a place at its deadline gets 503 and is not sent beyond the cap."""
    begun, ended = Gate(), Gate()
    worker = stub([begun.opened.is_set, ANSWER[:-1], ended.opened.is_set, ANSWER[-1:]])
    router = route(
        {"url": worker.url, "models": ["m", "n"]},
        health=QUIET,
        limits={"in_flight": 2},
        timeouts={"queue": "1s"},
    )
    answers = [busied(router, crowd, worker), ask(router, crowd, "other", 2000)]
    until(waits(router, 1))
    late = ask(router, crowd, "late", 2000, "n")
    until(waits(router, 2))
    begun.opened.set()
    assert late.result().status_code == 503
    assert len(worker.requests) == 2
    ended.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2
    until(router.idle)


def test_an_explanation_says_what_would_be_waited_for(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """`/explain` says whether the request would be held, would wait for a place, or neither."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, limits={"in_flight": 2})

    def explained() -> tuple[str, bool]:
        found = router.http.post("/explain", json=asked("explained", 2000)).json()
        return found["waits"], "Before that it would" in found["words"]

    assert explained() == ("", False)
    answers = [busied(router, crowd, worker)]
    assert explained() == ("held", True)
    answers.append(ask(router, crowd, "other", 2000))
    until(waits(router, 1))
    assert explained() == ("place", True)
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2


@pytest.mark.parametrize("strategy", ["prefixaware", "leastload"])
def test_new_settings_do_not_send_those_that_wait(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, strategy: str
) -> None:
    """They are decided again, and wait on if they would still only queue at the worker, even in a
    new pool with less room; they count once, and their order is the same. Newcomers are refused."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    replies = [busied(router, crowd, worker)]
    for number in range(3):
        replies.append(ask(router, crowd, f"other{number}", 8_000))
        until(waits(router, number + 1))
    limits = {"in_flight": 1, "queue": 1}
    change(router, worker.url, health=QUIET, limits=limits, strategy=strategy)
    until(waits(router, 3))
    assert ask(router, crowd, "new", 8_000).result().status_code == 429
    assert len(worker.requests) == 1
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 4
    order = [n for body in worker.requests[1:] for n in range(3) if b"other%d" % n in body]
    assert order == [0, 1, 2]
    assert router.metric("warmroute_queued_total") == 3
    until(router.idle)


def test_who_joins_takes_those_held(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A worker that becomes ready takes held requests, though they were decided without it; while
    both are there, nothing is held."""
    gate = Gate()
    workers = stub(gate.script()), stub(gate.script())
    workers[1].well = False
    router = route(*(worker.url for worker in workers), health={"interval": "50ms"})
    first = ask(router, crowd, "long", 60_000)
    until(lambda: len(workers[0].requests) == 1)
    other = ask(router, crowd, "other", 2000)
    until(waits(router, 1))
    workers[1].well = True
    until(lambda: len(workers[1].requests) == 1)
    gate.opened.set()
    assert [answer.result().status_code for answer in (first, other)] == [200] * 2


def test_those_held_hear_that_their_model_is_gone(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Held requests get 503 early if no worker has their model any more, like queued ones."""
    gate = Gate()
    stays, goes = (stub(gate.script(), model) for model in "mn")
    soon = {"interval": "50ms", "fall": 1}
    router = route(stays.url, goes.url, health=soon, timeouts={"queue": "1h"})
    first = ask(router, crowd, "long", 60_000, "n")
    until(lambda: len(goes.requests) == 1)
    other = ask(router, crowd, "other", 2000, "n")
    until(waits(router, 1))
    goes.well = False
    reply = other.result()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker")
    gate.opened.set()
    first.result()
