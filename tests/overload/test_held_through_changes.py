"""What becomes of held requests when settings change, or workers come and go."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic

import pytest

from router.kv.attach import Memories
from router.settings.model import Settings
from tests.overload.busy import QUIET, Gate, ask, busied, waits
from tests.reload.changing import change
from tests.support import MakeRouter, MakeStub, until


def test_those_that_wait_keep_their_places(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """If new settings leave fewer places, newcomers are refused, and who waits already is not."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    first = busied(router, crowd, worker)
    replies = [ask(router, crowd, f"other {number}", 8_000) for number in range(3)]
    until(waits(router, 3))
    change(router, worker.url, health=QUIET, limits={"in_flight": 1, "queue": 1})
    until(waits(router, 3))
    assert ask(router, crowd, "new", 8_000).result().status_code == 429
    gate.opened.set()
    assert [reply.result().status_code for reply in (first, *replies)] == [200] * 4
    assert router.metric("warmroute_queued_total") == 3
    until(router.idle)


def test_new_settings_do_not_send_those_that_wait(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """They are decided again, and wait on if they would still only queue at the worker; they count
    once, and their order is the same."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    first = busied(router, crowd, worker)
    replies = []
    for number in range(3):
        replies.append(ask(router, crowd, f"other{number}", 8_000))
        until(waits(router, number + 1))
    promises = router.worker().load.promises.copy()
    change(router, worker.url, health=QUIET, logs={"requests": True})
    until(lambda: router.worker().load.promises == promises)
    until(waits(router, 3))
    assert len(worker.requests) == 1
    gate.opened.set()
    assert [reply.result().status_code for reply in (first, *replies)] == [200] * 4
    order = [
        number for body in worker.requests[1:] for number in range(3) if b"other%d" % number in body
    ]
    assert order == [0, 1, 2]
    assert router.metric("warmroute_queued_total") == 3
    until(router.idle)


def test_a_new_pool_holds_what_the_old_one_held(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, although connections are still being closed: the two have the same workers, and each
    would take back what the other promises there."""
    closing, closed = Event(), Event()

    async def closes(self: Memories, settings: Settings) -> None:
        closing.set()
        await asyncio.to_thread(closed.wait, 20)

    monkeypatch.setattr(Memories, "change", closes)
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    first = busied(router, crowd, worker)
    replies = [ask(router, crowd, f"other {number}", 8_000) for number in range(2)]
    until(waits(router, 2))
    before = router.door.fleet.pools[0]
    changed = crowd.submit(change, router, worker.url, health=QUIET, strategy="leastload")
    assert closing.wait(20)
    until(lambda: router.door.fleet.pools[0] is not before)
    until(waits(router, 2))
    until(lambda: len(router.worker().load.promises) == 2)
    closed.set()
    changed.result()
    gate.opened.set()
    assert [reply.result().status_code for reply in (first, *replies)] == [200] * 3
    until(router.idle)


def test_who_joins_takes_those_held(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A worker that becomes ready takes held requests, though they were decided without it."""
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
    router = route(stays.url, goes.url, health=soon, timeouts={"queue": "25s"})
    first = ask(router, crowd, "long", 60_000, "n")
    until(lambda: len(goes.requests) == 1)
    other = ask(router, crowd, "other", 2000, "n")
    until(waits(router, 1))
    before = monotonic()
    goes.well = False
    reply = other.result()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker")
    assert monotonic() - before < 15
    gate.opened.set()
    first.result()
