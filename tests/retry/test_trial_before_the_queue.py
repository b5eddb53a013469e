"""An early trial while others queue: it is for whoever the other workers refused first."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import monotonic

import httpx
import pytest

from router import breaker, resort
from tests.health.failing import CHAT, PATH, health
from tests.overload.busy import ask as prompted
from tests.overload.busy import held
from tests.overload.test_overload import line_is
from tests.retry.test_failover import breaker_of, full
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, until


def say(router: Router, crowd: ThreadPoolExecutor, text: str) -> Future[httpx.Response]:
    """Send a request with that text, on a connection of its own."""
    asked = {**CHAT, "messages": [{"role": "user", "content": text}]}
    return crowd.submit(httpx.post, router.url + PATH, json=asked, timeout=30)


def ejected(
    route: MakeRouter, busy: Stub, well: Stub, in_flight: int, strategy: str = "roundrobin"
) -> Router:
    """Return a router for two workers, the second of which is ejected and may be tried early."""
    router = route(
        busy.url,
        well.url,
        strategy=strategy,
        health=health(failures=1, first="10ms", panic=0),
        limits={"in_flight": in_flight},
        timeouts={"queue": "10m"},
    )
    eject(router, well)
    return router


def eject(router: Router, well: Stub) -> None:
    """Eject that worker; it may be tried early."""
    doubt = breaker_of(router, well)
    router.call(lambda: doubt.failed(monotonic(), doubt.began(monotonic()), "5xx"))
    doubt.until += 3600
    until(lambda: doubt.near(monotonic()))


def test_one_that_was_left_out_although_others_queue(stub: MakeStub, route: MakeRouter) -> None:
    """The first that is refused is the trial; then come those in the queue, and newcomers last."""
    events = refuses, later, trial = threading.Event(), threading.Event(), threading.Event()
    busy, well = stub([refuses.is_set, *full(b"a")]), stub([trial.is_set, *OK])
    router = ejected(route, busy, well, 1)
    with ThreadPoolExecutor(5) as crowd:
        try:
            clients = [say(router, crowd, "first")]
            until(lambda: busy.requests)
            for place in (1, 2, 3):
                clients.append(say(router, crowd, f"queued {place}"))
                until(partial(line_is, router, place))
            busy.script = [later.is_set, *full(b"a")]
            refuses.set()
            until(lambda: well.requests)
            assert b"first" in well.requests[0]
            until(lambda: len(busy.requests) == 2)  # the place there is free for the next
            clients.append(say(router, crowd, "newcomer"))
            until(lambda: line_is(router, 3))
            trial.set()
            until(lambda: sum(client.done() for client in clients) == 4)
            later.set()
            assert [client.result().status_code for client in clients] == [200] * 5
        finally:
            for event in events:
                event.set()
    words = (b"first", b"queued 2", b"queued 3", b"newcomer", b"queued 1")
    assert [word in body for word, body in zip(words, well.requests, strict=True)] == [True] * 5


def test_nobody_waits_for_a_trial_in_a_place_that_others_wait_for(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is refused during a trial gives its place at the full worker to the queue at once."""
    for module in (breaker, resort):
        monkeypatch.setattr(module, "TRIAL_S", 3600.0)
    events = long, refuses, trial = threading.Event(), threading.Event(), threading.Event()
    busy, well = stub([long.is_set, *OK]), stub([trial.is_set, *OK])
    router = ejected(route, busy, well, 2)
    with ThreadPoolExecutor(4) as crowd:
        try:
            first = say(router, crowd, "long")
            until(lambda: busy.requests)
            busy.script = [*full(b"a")]
            tried = say(router, crowd, "trial")
            until(lambda: well.requests)
            busy.script = [refuses.is_set, *full(b"a")]
            refused = say(router, crowd, "refused")
            until(lambda: len(busy.requests) == 3)
            queued = say(router, crowd, "queued")
            until(partial(line_is, router, 1))
            busy.script = [*OK]
            refuses.set()
            until(queued.done)
            assert refused.result().status_code == 503
            assert not tried.done()
        finally:
            for event in events:
                event.set()
    assert [one.result().status_code for one in (first, tried, queued)] == [200] * 3


def test_who_is_tried_was_not_passed_over_by_turn(stub: MakeStub, route: MakeRouter) -> None:
    """It holds as much and costs less, but comes last as it is ejected: the explanation does not
    say that it was the other one's turn."""
    busy, well = stub(), stub()
    router = ejected(route, busy, well, 100, "prefixaware")
    chat = {**CHAT, "messages": [{"role": "user", "content": "long " * 2_000}]}
    whole = {"x-warmroute-decision": "1"}
    assert router.http.post(PATH, json=chat).status_code == 200
    busy.script = full(b"a")
    assert router.http.post(PATH, json=chat).status_code == 200
    assert (len(busy.requests), len(well.requests)) == (2, 1)
    until(router.idle)
    eject(router, well)
    router.worker().load.decoding += 20
    told = router.http.post(PATH, json=chat, headers=whole).headers["x-warmroute-reason"]
    assert len(well.requests) == 2
    assert "and costs least" in told
    assert "did not take the request" in told


def test_who_was_refused_during_a_trial_does_not_give_way(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt whose worker has answered that it is full cannot be taken back from it: a
    short one is held, and both are answered."""
    for module in (breaker, resort):
        monkeypatch.setattr(module, "TRIAL_S", 3600.0)
    trial = threading.Event()
    busy, well = stub(full(b"a")), stub([trial.is_set, *OK])
    router = ejected(route, busy, well, 100, "prefixaware")
    for worker in router.door.fleet.workers:
        worker.reuses = True
    with ThreadPoolExecutor(3) as crowd:
        try:
            tried = say(router, crowd, "trial")
            until(lambda: well.requests)
            long = prompted(router, crowd, "long", 60_000)
            until(lambda: len(busy.requests) == 2)
            load = router.worker().load
            until(lambda: load.pending and all(one.since is None for one in load.pending))
            busy.script = [*OK]
            short = prompted(router, crowd, "short", 500)
            until(lambda: short.done() or held(router, 1)())
            assert not short.done()
            assert router.metric("warmroute_preempted_requests_total") == 0
        finally:
            trial.set()
    assert [one.result().status_code for one in (tried, long, short)] == [200] * 3
    until(router.idle)
