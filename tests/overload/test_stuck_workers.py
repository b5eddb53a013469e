"""Requests that a hanging worker never answers are moved to another one, over real sockets."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic, sleep
from typing import Any, cast
from unittest.mock import Mock

import httpx
import pytest

from router.dispatch.lease import Lease
from router.http.exchange import Exchange
from strategies.policies.prefix_aware import PrefixAware
from tests.overload.busy import PATH, QUIET, Gate, ask, asked
from tests.overload.giving_way import answer
from tests.overload.hanging import NEVER, Hurry, both, moved, routed, worker_of
from tests.overload.totals import total
from tests.reload.changing import answered_by, change
from tests.support import OK, Action, MakeRouter, MakeStub, post, until

BAD: list[Action] = [b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n"]
EJECTS = {**QUIET, "ejection": {"failures": 3, "first": "1h", "longest": "2h"}}


def test_another_worker_answers_it(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """Its client gets one clean answer, and it counts as one request, of which nothing was computed
    before. The next ones do not go to the worker that hangs, though nothing is booked there: it is
    probed, and believed to hold no more than before."""
    router, first, hung, other = both(route, crowd, stub)
    other.script, probes = answer(cached=50, prompt=100), len(hung.probes)

    def held() -> list[bool]:
        found = router.http.post("/explain", json=asked("first", 100)).json()["workers"]
        held = {one["worker"]: one["held_tokens"] > 0 for one in found}
        return [held[hung.url[7:]], held[other.url[7:]]]

    assert held() == [True, False]
    hurry()
    assert answered_by(first.result()) == other.url[7:]
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert (moved(router, hung), moved(router, other)) == (1, 0)
    assert router.metric("warmroute_preempted_requests_total") == 0
    until(lambda: hung.closed_by_peer == 1)
    until(router.idle)
    assert held() == [False, True]
    assert [total(router, family) for family in ("decisions", "requests")] == [1] * 2
    assert router.metric("warmroute_prompt_tokens_total", pool="default") == 100
    assert router.metric("warmroute_cached_tokens_total", pool="default") == 50
    for words in ("second", "third", "fourth"):
        assert answered_by(ask(router, crowd, words, 100).result()) == other.url[7:]
    assert (len(hung.requests), len(other.requests)) == (1, 4)
    until(lambda: len(hung.probes) > probes)
    until(router.idle)


def test_all_that_wait_there_are_moved(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As soon as there is a worker that takes them, one after the other. The worker is ejected as
    after other failures, and the log says once that it is stuck. Other processes are told once that
    each has ended: else it would stay booked there for ever."""
    caplog.set_level(logging.WARNING, "warmroute.fleet")
    hung, other, told = stub(NEVER), stub(), Mock()
    told.booked.side_effect = count(1)
    router = routed(route, hung, health=EJECTS)
    router.door.fleet.pools[0].tells = told
    replies = [ask(router, crowd, f"words{number}", 100) for number in range(3)]
    until(lambda: len(hung.requests) == 3)
    hurry()
    sleep(0.2)  # stuck workers are looked for ten times
    assert moved(router, hung) == 0, "there is no other worker"
    change(router, hung.url, other.url, health=EJECTS)
    assert {answered_by(reply.result()) for reply in replies} == {other.url[7:]}
    assert moved(router, hung) == 3
    labels = {"pool": "default", "worker": hung.url[7:], "kind": "stuck"}
    assert router.metric("warmroute_ejections_total", **labels) == 1
    stuck = [said for said in caplog.messages if "is stuck" in said]
    assert len(stuck) == 1
    assert "; 1 of 3 that wait there sent elsewhere" in stuck[0]
    until(router.idle)
    ended = [(call.args[0], call.args[1].kept_tokens) for call in told.ended.call_args_list]
    assert sorted(ended) == [(number, 0) for number in (1, 2, 3)]


def test_a_worker_that_answers_others_is_not_ejected(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """Whatever the requests that are moved wait for: it works."""
    slow, other = stub(NEVER), stub()
    router = routed(route, slow, health=EJECTS)
    replies = [ask(router, crowd, f"words{number}", 100) for number in range(3)]
    until(lambda: len(slow.requests) == 3)
    slow.script = OK
    assert answered_by(ask(router, crowd, "others", 100).result()) == slow.url[7:]
    change(router, slow.url, other.url, health=EJECTS)
    hurry()
    assert {answered_by(reply.result()) for reply in replies} == {other.url[7:]}
    assert moved(router, slow) == 3
    assert not worker_of(router, slow).breaker.ejections
    until(router.idle)


def test_a_trial_of_an_ejected_worker_is_moved(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """If the worker hangs still, the trial fails, and its client does not wait for it."""
    health = {**QUIET, "ejection": {"failures": 1, "first": "100ms", "longest": "2h"}}
    router, first, hung, other = both(route, crowd, stub, health=health)
    hurry()
    first.result()
    assert router.door.fleet.pools[0].breakers.any_open
    words = map(str, count())

    def tried() -> bool:
        router.call(worker_of(router, hung).load.answers)
        assert answered_by(ask(router, crowd, next(words), 100).result()) == other.url[7:]
        return len(hung.requests) > 1

    until(tried)
    assert worker_of(router, hung).breaker.ejections == {"stuck": 2}
    until(router.idle)


@pytest.mark.parametrize(("script", "late"), [(OK, False), (BAD, True)])
def test_an_answer_shows_that_a_worker_does_not_hang(
    route: MakeRouter, stub: MakeStub, script: list[Action], *, late: bool
) -> None:
    """But not an error that its front process may have written without the engine."""
    router = routed(route, stub(script))
    load = router.worker().load
    router.call(lambda: load.moved(monotonic()))
    httpx.post(router.url + PATH, json=asked("first", 100), timeout=30)
    until(router.idle)
    assert bool(load.late_until) is late


def test_none_moves_if_all_workers_are_late(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """Then the fleet is overloaded, or slower than thought."""
    gate = Gate()
    router, first, hung, other = both(route, crowd, stub, gate.script())
    other.script = gate.script()
    second = ask(router, crowd, "second", 100)
    until(lambda: other.requests)
    for worker in router.door.fleet.workers:
        worker.load.head_since -= 60.0
    hurry()
    sleep(0.2)  # stuck workers are looked for ten times
    assert (len(hung.requests), len(other.requests)) == (1, 1)
    assert moved(router, hung) == moved(router, other) == 0
    gate.opened.set()
    assert [one.result().status_code for one in (first, second)] == [200] * 2
    until(router.idle)


def test_one_that_may_be_what_workers_hang_on_is_moved_once(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """If the next worker hangs on it as well, it stays there; those behind it are moved."""
    router, first, hung, other = both(route, crowd, stub)
    gate = Gate()
    other.script = gate.script()
    hurry()
    until(lambda: other.requests)
    hung.script = OK
    router.call(worker_of(router, hung).load.answers)
    load = worker_of(router, other).load
    until(lambda: load.pending)
    load.head_since -= 60.0
    sleep(0.2)  # stuck workers are looked for ten times
    assert (len(hung.requests), len(other.requests)) == (1, 1)
    assert moved(router, other) == 0
    gate.opened.set()
    assert answered_by(first.result()) == other.url[7:]
    until(router.idle)


@pytest.mark.parametrize(
    ("fields", "settings"), [({"stream": False}, {}), ({}, {"limits": {"preemptions": 0}})]
)
def test_some_requests_stay(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    *,
    fields: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    """Those that cannot be resumed, and all if that is turned off: none is looked for."""
    gate = Gate()
    pair = [stub(gate.script()), stub(gate.script())]
    router = routed(route, *pair, **settings)
    body = asked("first", 100) | fields
    reply = crowd.submit(httpx.post, router.url + PATH, json=body, timeout=30)
    until(lambda: any(one.requests for one in pair))
    hurry()
    for worker in router.door.fleet.workers:
        worker.load.head_since -= 60.0
    assert len(router.door.dispatcher.preempting) == 0
    gate.opened.set()
    assert reply.result().status_code == 200
    assert sum(len(one.requests) for one in pair) == 1
    until(router.idle)


def test_a_strategy_that_raises_an_error_moves_nothing(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    *,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged, and looking goes on."""
    router, first, hung, other = both(route, crowd, stub)
    with monkeypatch.context() as patched:
        patched.setattr(PrefixAware, "rank", lambda *_: 1 / 0)
        hurry()
        until(lambda: caplog.text.count("could not be moved") >= 2)
        assert moved(router, hung) == 0
    assert answered_by(first.result()) == other.url[7:]


def test_a_client_that_leaves_meanwhile(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the same turn of the loop: it is sent to nobody, and nothing stays booked."""
    move = Lease.rescue

    def leaving(lease: Lease, *, suspected: bool) -> None:
        exchange = cast("Exchange", lease.request.source)
        exchange.leave()
        assert exchange.task is not None
        exchange.task.cancel()
        move(lease, suspected=suspected)

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
    with post(router.port, PATH, body, b"content-type: application/json"):
        hurry()
        until(lambda: all(one.requests for one in pair))
    until(lambda: all(one.closed_by_peer for one in pair))
    until(router.idle)
