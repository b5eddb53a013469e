"""Requests held in the router until a worker is about to be free, over real sockets."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import httpx
import pytest

from router.dispatch import scheduler
from strategies.policies.prefix_aware import PrefixAware
from tests.overload.busy import PATH, QUIET, Gate, ask, asked, busied, waits
from tests.support import MakeRouter, MakeStub, send, until


def test_who_would_only_queue_is_held_here(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """While a long prompt is computed, further requests are held; afterwards they are sent."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    first = busied(router, crowd, worker)
    others = [ask(router, crowd, f"other{number}", 2000) for number in range(3)]
    until(waits(router, 3))
    assert len(worker.requests) == 1
    gate.opened.set()
    assert [answer.result().status_code for answer in (first, *others)] == [200] * 4
    assert router.metric("warmroute_queue_length") == 0
    assert router.metric("warmroute_queued_total") == 3
    assert router.worker().load.promised_s == 0.0
    until(router.idle)


def test_what_ends_elsewhere_lets_them_go(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process of the router sent the long prompt, its report releases held requests."""
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)
    router = route(stub().url, health=QUIET, timeouts={"queue": "1h"})
    load, loop = router.worker().load, router.server.loop
    assert loop is not None
    theirs = load.book(monotonic(), 60.0, 60_000, elsewhere=True)
    answer = ask(router, crowd, "ours", 2000)
    until(waits(router, 1))
    load.release(theirs, monotonic())
    for _ in range(3):  # processes report often
        loop.call_soon_threadsafe(router.door.freed_elsewhere)
    assert answer.result().status_code == 200
    until(router.idle)


def test_who_leaves_while_held_is_never_sent(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A held request whose client disconnects is never sent to a worker. The strategy knows of it
    for as long as it is held."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    strategy = router.door.fleet.pools[0].strategy
    assert isinstance(strategy, PrefixAware)
    under_way = strategy.tree.root
    first = busied(router, crowd, worker)
    request = httpx.Request("POST", router.url + PATH, json=asked("gone", 2000))
    request.read()
    port = httpx.URL(router.url).port
    assert port is not None
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(request.content)}\r\n\r\n"
    leaving = send(port, head.encode() + request.content)
    until(waits(router, 1))
    assert under_way.users == 2
    leaving.close()
    until(waits(router, 0))
    assert under_way.users == 1
    gate.opened.set()
    assert first.result().status_code == 200
    until(router.idle)
    assert under_way.users == 0
    assert len(worker.requests) == 1


def test_another_worker_that_is_free_is_taken(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """If another worker is free, nothing is held."""
    gate = Gate()
    busy, free = stub(gate.script()), stub()
    router = route(busy.url, free.url, health=QUIET)
    first = ask(router, crowd, "long", 60_000)
    until(lambda: busy.requests or free.requests)
    taken = (busy, free) if busy.requests else (free, busy)
    gate.opened.set() if taken[0] is free else None
    assert ask(router, crowd, "other", 2000).result().status_code == 200
    gate.opened.set()
    assert first.result().status_code == 200
    assert router.metric("warmroute_queued_total") == 0


def test_a_worker_for_another_model_takes_its_own(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """In one pool, requests held for a busy model do not block those held for a free one."""
    gates = Gate(), Gate()
    workers = [stub(gate.script(), model) for gate, model in zip(gates, "mn", strict=True)]
    router = route(*(worker.url for worker in workers), health=QUIET)
    answers = []
    for worker, model in zip(workers, "mn", strict=True):
        answers.append(ask(router, crowd, "long", 60_000, model))
        until(lambda: len(worker.requests) == 1)  # noqa: B023 - looked at before the next
    answers.append(ask(router, crowd, "mine", 2000, "m"))
    until(waits(router, 1))
    answers.append(ask(router, crowd, "other", 2000, "n"))
    until(waits(router, 2))
    gates[0].opened.set()
    until(lambda: len(workers[0].requests) == 2)
    gates[1].opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 4
