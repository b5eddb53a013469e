"""When no request is moved away from a worker that may hang."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from strategies.policies.prefix_aware import PrefixAware
from tests.overload.busy import PATH, Gate, ask, asked
from tests.overload.hanging import Hurry, both, look, moved, routed, worker_of
from tests.reload.changing import answered_by
from tests.support import OK, MakeRouter, MakeStub, until


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


def test_nothing_looks_while_nothing_waits(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """No timer runs in an idle router."""
    router = routed(route, stub())
    watching = router.door.dispatcher.rescue
    assert watching._looking is None
    assert ask(router, crowd, "first", 100).result().status_code == 200
    until(lambda: watching._looking is None)
