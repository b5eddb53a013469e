"""Requests that a hanging worker never answers are moved to another one, over real sockets."""

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from time import monotonic
from typing import Any

import httpx
import pytest

from router import rescue
from router.attempt import Attempt
from router.pool import Pool
from router.worker import Worker
from strategies import rescue as rules
from strategies.base import Candidate, Outcome, Prompt
from strategies.prefixaware import PrefixAware
from tests.overload.busy import PATH, QUIET, Gate, ask, asked
from tests.overload.test_preemption import answer
from tests.reload.changing import answered_by, change
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, Router, Stub, post, until

NEVER: list[Action] = [lambda: False]
BAD: list[Action] = [b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n"]
Hurry = Callable[[], None]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Hurry:
    """From the call on, a worker is found stuck within a fraction of a second."""
    monkeypatch.setattr(rules, "STUCK_S", 3600.0)
    monkeypatch.setattr(rescue, "TICK_S", 0.02)

    def now() -> None:
        monkeypatch.setattr(rules, "STUCK_S", 0.1)

    return now


def routed(route: MakeRouter, *workers: Stub, **settings: Any) -> Router:
    """A router that knows how fast its workers are."""
    router = route(*(one.url for one in workers), **({"health": QUIET} | settings))
    router.worker().pace.curve.seen = 1
    return router


def both(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    script: list[Action] | None = None,
    **settings: Any,
) -> tuple[Router, Future[httpx.Response], Stub, Stub]:
    """Send a request to one of two workers, which hangs; return it and the workers, that one first.

    The other would answer.
    """
    pair = [stub(script or NEVER) for _ in range(2)]
    router = routed(route, *pair, **settings)
    first = ask(router, crowd, "first", 100)
    until(lambda: any(one.requests for one in pair))
    hung, other = sorted(pair, key=lambda one: not one.requests)
    other.script = OK
    return router, first, hung, other


def worker_of(router: Router, stub: Stub) -> Worker:
    """The router's view of a worker."""
    return next(one for one in router.door.fleet.workers if one.url == stub.url)


def moved(router: Router, stub: Stub) -> float:
    """How many requests were moved away from a worker."""
    labels = {"pool": "default", "worker": stub.url[7:], "kind": "stuck"}
    return router.metric("warmroute_worker_errors_total", **labels)


def look(router: Router, times: int = 3) -> None:
    """Look for stuck workers at once, several times."""
    for _ in range(times):
        router.call(router.door._proxy._rescue._look)


def test_another_worker_answers_it(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """Its client gets one clean answer. It is counted, and the next request does not go to the
    worker that hangs, though nothing is booked there."""
    router, first, hung, other = both(route, crowd, stub)
    probes = len(hung.probes)
    hurry()
    assert answered_by(first.result()) == other.url[7:]
    assert first.result().content == JSON
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert (moved(router, hung), moved(router, other)) == (1, 0)
    assert router.metric("warmroute_preempted_requests_total") == 0
    until(lambda: hung.closed_by_peer == 1)
    until(router.idle)
    for words in ("second", "third", "fourth"):
        assert answered_by(ask(router, crowd, words, 100).result()) == other.url[7:]
    assert len(hung.requests) == 1
    until(lambda: len(hung.probes) > probes)
    until(router.idle)


def test_it_does_not_go_back(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if the worker that hangs would be the cheapest by now."""
    router, first, hung, other = both(route, crowd, stub)
    worker_of(router, other).pace.slower = 1e5
    monkeypatch.setattr(rescue, "better", lambda _, __, decision, ___: decision.candidates[0])
    hurry()
    until(lambda: moved(router, hung) == 1)
    assert answered_by(first.result()) == other.url[7:]
    assert len(hung.requests) == 1
    until(router.idle)


def test_it_is_counted_as_one_request(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """It has one decision and one answer, and what its worker reports counts as of any other:
    nothing of it was computed before."""
    router, first, _, other = both(route, crowd, stub)
    other.script = answer(cached=50, prompt=100)
    hurry()
    first.result()
    until(router.idle)
    families = {family.name: family.samples for family in router.door.metrics.collect()}
    for name in ("decisions", "requests"):
        told = families[f"warmroute_{name}"]
        assert sum(one.value for one in told if one.name.endswith("_total")) == 1
    assert router.metric("warmroute_prompt_tokens_total", pool="default") == 100
    assert router.metric("warmroute_cached_tokens_total", pool="default") == 50
    assert len(other.requests) == 1


def test_what_a_stuck_worker_has_computed_does_not_count(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """It is believed to hold no more than before."""
    router, first, hung, other = both(route, crowd, stub)

    def held() -> dict[str, bool]:
        found = router.http.post("/explain", json=asked("first", 100)).json()["workers"]
        return {one["worker"]: one["held_tokens"] > 0 for one in found}

    assert held() == {hung.url[7:]: True, other.url[7:]: False}
    hurry()
    first.result()
    assert held() == {hung.url[7:]: False, other.url[7:]: True}


def test_all_that_wait_there_are_moved(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As soon as there is a worker that takes them, one after the other. The worker is ejected as
    after other failures, and the log says once that it is stuck."""
    caplog.set_level(logging.WARNING, "warmroute.fleet")
    health = {**QUIET, "ejection": {"failures": 3, "first": "1h", "longest": "2h"}}
    hung, other = stub(NEVER), stub()
    router = routed(route, hung, health=health)
    replies = [ask(router, crowd, f"words{number}", 100) for number in range(3)]
    until(lambda: len(hung.requests) == 3)
    hurry()
    look(router)
    assert moved(router, hung) == 0, "there is no other worker"
    change(router, hung.url, other.url, health=health)
    assert {answered_by(reply.result()) for reply in replies} == {other.url[7:]}
    assert moved(router, hung) == 3
    labels = {"pool": "default", "worker": hung.url[7:], "kind": "stuck"}
    assert router.metric("warmroute_ejections_total", **labels) == 1
    stuck = [said for said in caplog.messages if "is stuck" in said]
    assert len(stuck) == 1
    assert stuck[0].startswith(f"worker {hung.url[7:]} is stuck: its oldest request is ")
    assert "; 1 of 3 that wait there sent elsewhere" in stuck[0]
    until(router.idle)


def test_a_worker_that_answers_others_is_not_ejected(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """Whatever the requests that are moved wait for: it works."""
    health = {**QUIET, "ejection": {"failures": 3, "first": "1h", "longest": "2h"}}
    slow, other = stub(NEVER), stub()
    router = routed(route, slow, health=health)
    replies = [ask(router, crowd, f"words{number}", 100) for number in range(3)]
    until(lambda: len(slow.requests) == 3)
    slow.script = OK
    assert answered_by(ask(router, crowd, "others", 100).result()) == slow.url[7:]
    change(router, slow.url, other.url, health=health)
    hurry()
    assert {answered_by(reply.result()) for reply in replies} == {other.url[7:]}
    assert moved(router, slow) == 3
    assert not worker_of(router, slow).breaker.ejections
    until(router.idle)


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
    look(router)
    assert (len(hung.requests), len(other.requests)) == (1, 1)
    assert moved(router, hung) == moved(router, other) == 0
    gate.opened.set()
    assert [one.result().status_code for one in (first, second)] == [200] * 2
    until(router.idle)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"stream": False}, {}),
        ({"echo": True}, {}),
        ({"kv_transfer_params": {"do_remote_decode": True}}, {}),
        ({"background": True}, {}),
        ({}, {"limits": {"preemptions": 0}}),
    ],
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
    """Those that cannot be resumed, and all if that is turned off."""
    gate = Gate()
    pair = [stub(gate.script()), stub(gate.script())]
    router = routed(route, *pair, **settings)
    body = asked("first", 100) | fields
    reply = crowd.submit(httpx.post, router.url + PATH, json=body, timeout=30)
    until(lambda: any(one.requests for one in pair))
    hurry()
    for worker in router.door.fleet.workers:
        worker.load.head_since -= 60.0
    look(router)
    assert sum(len(one.requests) for one in pair) == 1
    assert sum(moved(router, one) for one in pair) == 0
    gate.opened.set()
    assert reply.result().status_code == 200
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
    look(router)
    assert (len(hung.requests), len(other.requests)) == (1, 1)
    assert moved(router, other) == 0
    gate.opened.set()
    assert answered_by(first.result()) == other.url[7:]
    until(router.idle)


class Told:
    """What the router's other processes would hear."""

    def __init__(self) -> None:
        self.booked_s: list[float] = []
        self.ended_with: list[tuple[int, int | None]] = []
        """The number of each request that ended, and what its worker kept of it."""

    def booked(self, _: Pool, __: Prompt, ___: Candidate, now: float) -> int:
        """Count it."""
        self.booked_s.append(now)
        return len(self.booked_s)

    def began(self, number: int, now: float) -> None:
        """Do nothing."""

    def ended(self, number: int, outcome: Outcome, _: float) -> None:
        """Note it."""
        self.ended_with.append((number, outcome.kept_tokens))


def test_other_processes_hear_of_it(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """It is told to have ended there, once: else it would stay booked there for ever."""
    hung, told = stub(NEVER), Told()
    router = routed(route, hung)
    router.door.fleet.pools[0].tells = told
    reply = ask(router, crowd, "first", 100)
    until(lambda: hung.requests)
    change(router, hung.url, stub().url, health=QUIET)
    hurry()
    assert reply.result().status_code == 200
    until(router.idle)
    assert told.ended_with == [(1, 0)]  # (new settings: nobody else hears of the second)


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
    move = Attempt.rescue

    def leaving(self: Attempt, *, suspected: bool) -> None:
        exchange = self.job.exchange
        if not leaves_before:
            move(self, suspected=suspected)
        exchange.leave()
        assert exchange.task is not None
        exchange.task.cancel()
        if leaves_before:
            move(self, suspected=suspected)

    monkeypatch.setattr(Attempt, "rescue", leaving)
    router, _, hung, other = both(route, crowd, stub)
    hurry()
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    until(router.idle)
    until(lambda: hung.closed_by_peer == 1)
    assert other.requests == []
    assert router.door._proxy._admission.in_flight == 0
    assert len(router.door._proxy._failover.preempting) == 0


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


def test_a_trial_of_an_ejected_worker_is_moved(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """If the worker hangs still, the trial fails, and its client does not wait for it."""
    health = {**QUIET, "ejection": {"failures": 1, "first": "100ms", "longest": "2h"}}
    router, first, hung, other = both(route, crowd, stub, health=health)
    hurry()
    first.result()
    breaker = worker_of(router, hung).breaker
    assert router.door.fleet.pools[0].breakers.any_open

    words = map(str, count())

    def tried() -> bool:
        router.call(worker_of(router, hung).load.answers)
        assert answered_by(ask(router, crowd, next(words), 100).result()) == other.url[7:]
        return len(hung.requests) > 1

    until(tried)
    assert breaker.ejections == {"stuck": 2}
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


def test_nothing_looks_while_nothing_waits(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """No timer runs in an idle router."""
    router = routed(route, stub())
    watching = router.door._proxy._rescue
    assert watching._looking is None
    assert ask(router, crowd, "first", 100).result().status_code == 200
    until(lambda: watching._looking is None)
