"""What becomes of a worker from which requests are moved, and what shows that it works."""

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import monotonic

import httpx
import pytest

from tests.overload.busy import PATH, QUIET, ask, asked
from tests.overload.hanging import NEVER, Hurry, both, look, moved, routed, worker_of
from tests.reload.changing import answered_by, change
from tests.support import OK, Action, MakeRouter, MakeStub, until

BAD: list[Action] = [b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n"]


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
