"""A request that was running and gave way is not refused because its worker is full by then."""

from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

import httpx
import pytest

from router import vacancies
from router.admission import AGAIN_S
from router.connection import Connection
from router.job import Plea
from router.upstream import Upstream
from router.worker_errors import Refused
from tests.health.failing import health, says
from tests.overload.busy import PATH, Gate, ask, asked, held
from tests.overload.giving_way import LONG, MIDDLE, given_way, overtaken, routed, sizes
from tests.reload.changing import CHUNK, END, SSE, change
from tests.retry.test_failover import breaker_of, full
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, until


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what ends makes a request try again."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 3600.0)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request soon tries again though nothing ends."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 0.02)


@pytest.fixture
def pleas(monkeypatch: pytest.MonkeyPatch) -> list[Plea]:
    """The requests that have given way."""
    found: list[Plea] = []
    gave_way = Plea.gave_way

    def noted(self: Plea, *args: object) -> None:
        gave_way(self, *args)  # type: ignore[arg-type]
        found.append(self)

    monkeypatch.setattr(Plea, "gave_way", noted)
    return found


def waiting(router: Router) -> float:
    """How many requests wait for a worker that said that it is full."""
    return router.metric("warmroute_crowded")


def refused(
    router: Router, crowd: ThreadPoolExecutor, worker: Stub
) -> list[Future[httpx.Response]]:
    """Let a request give way, and its worker be full afterwards; return its reply and the other."""
    gate, replies = given_way(router, crowd, worker)
    worker.script = full(b"x")
    gate.opened.set()
    return replies


def test_it_is_tried_again_after_a_while(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, often: None
) -> None:
    """Until its worker takes it: its client notices nothing."""
    router = routed(route, worker)
    replies = refused(router, crowd, worker)
    until(lambda: len(worker.requests) >= 5)
    worker.script = OK
    assert [reply.result().status_code for reply in replies] == [200] * 2
    assert replies[0].result().headers["x-warmroute-preempted"] == "1"
    assert sizes(worker)[2:] == ["long"] * (len(worker.requests) - 2)
    until(router.idle)
    assert waiting(router) == 0
    assert router.metric("warmroute_crowded_requests_total") == 1
    labels = {"pool": "default", "worker": worker.url[7:], "kind": "full"}
    refusals = len(worker.requests) - 3
    assert router.metric("warmroute_worker_errors_total", **labels) == refusals


def test_it_is_tried_again_once_an_answer_has_ended(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, seldom: None
) -> None:
    """Then the worker has a place again; but a refusal ends no answer, so none is asked without
    pause."""
    last = Gate()
    worker.script = [SSE + CHUNK, last.opened.is_set, CHUNK + END]
    router = routed(route, worker)
    with router.http.stream("POST", PATH, json=asked("other", 100)) as other:
        parts = other.iter_bytes()
        next(parts)
        worker.requests.clear()
        worker.script = [lambda: False]
        replies = refused(router, crowd, worker)
        until(lambda: waiting(router) == 1)
        for _ in range(2):
            assert router.http.post(PATH, json=asked("new", 100)).status_code == 503
        assert sizes(worker) == ["long", "short", "long", "short", "short"]
        worker.script = OK
        last.opened.set()
        assert list(parts)
    assert [reply.result().status_code for reply in replies] == [200] * 2
    assert sizes(worker)[5:] == ["long"]
    until(router.idle)


def test_it_goes_on_waiting_under_other_settings(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, often: None
) -> None:
    """Even if it has to be parsed again, for another strategy."""
    router = routed(route, worker)
    replies = refused(router, crowd, worker)
    until(lambda: waiting(router) == 1)
    change(router, worker.url, strategy="roundrobin")
    worker.requests.clear()
    until(lambda: len(worker.requests) >= 3)
    worker.script = OK
    assert [reply.result().status_code for reply in replies] == [200] * 2
    until(router.idle)
    assert router.metric("warmroute_crowded_requests_total") == 1


def test_only_until_its_time_is_over(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    worker: Stub,
    often: None,
    pleas: list[Plea],
) -> None:
    """Then its client gets the worker's refusal."""
    router = routed(route, worker)
    replies = refused(router, crowd, worker)
    until(lambda: waiting(router) == 1)
    (plea,) = pleas
    assert plea.late > monotonic() + AGAIN_S / 2
    plea.late = monotonic()
    reply = replies[0].result()
    assert (reply.status_code, reply.content) == (503, b"x")
    until(router.idle)


def test_a_client_that_leaves_meanwhile(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, seldom: None
) -> None:
    """It is counted under no worker, as it was not at one, and does not wait any more."""
    router = routed(route, worker)
    leaving, gate, reply = overtaken(router, crowd, worker)
    worker.script = full(b"x")
    gate.opened.set()
    until(lambda: waiting(router) == 1)
    leaving.close()
    until(lambda: waiting(router) == 0)
    assert reply.result().status_code == 200
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    until(router.idle)
    assert len(worker.requests) == 3
    assert router.metric("warmroute_crowded_requests_total") == 1


def test_no_budget_for_another_worker(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, often: None
) -> None:
    """It also waits if one worker is full and the others may not be asked."""
    router = routed(route, worker)
    gate, replies = given_way(router, crowd, worker)
    second = stub(full(b"x"))
    change(router, worker.url, second.url, limits={"retries": 0})
    until(lambda: len(second.requests) >= 3)
    second.script = OK
    assert replies[0].result().status_code == 200
    gate.opened.set()
    assert replies[1].result().status_code == 200
    until(router.idle)


def test_other_workers_are_asked_first(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, seldom: None
) -> None:
    """It waits only if none of them has room."""
    router = routed(route, worker)
    gate, replies = given_way(router, crowd, worker)
    second = stub(full(b"x"))
    change(router, worker.url, second.url)
    reply = replies[0].result()
    assert (reply.status_code, reply.headers["x-warmroute-worker"]) == (200, worker.url[7:])
    assert len(second.requests) == 1
    gate.opened.set()
    assert replies[1].result().status_code == 200
    until(router.idle)
    assert router.metric("warmroute_crowded_requests_total") == 0


def test_it_is_no_trial_of_an_ejected_worker(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, often: None
) -> None:
    """That is the last resort of those that would be refused; if it fails, it costs a request."""
    bad = stub(says(500))
    settings = health(failures=1, first="10ms", panic=0)
    router = route(worker.url, bad.url, health=settings)
    router.worker().reuses = True
    doubt = breaker_of(router, bad)
    router.call(lambda: doubt.failed(monotonic(), doubt.began(monotonic()), "5xx"))
    doubt.until += 3600
    until(lambda: doubt.near(monotonic()))
    replies = refused(router, crowd, worker)
    until(lambda: len(worker.requests) >= 5 or bad.requests)
    worker.script = OK
    assert [reply.result().status_code for reply in replies] == [200] * 2
    assert not bad.requests
    until(router.idle)


def test_one_that_has_become_part_of_a_session_does_not_wait(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, often: None
) -> None:
    """New settings have made it one: a session's request gets its worker's refusal at once."""
    router = routed(route, worker)
    named = {"x-session-id": "a"}
    body = asked("long", LONG)
    first = crowd.submit(httpx.post, router.url + PATH, json=body, headers=named, timeout=30)
    until(lambda: len(worker.requests) == 1)
    gate = Gate()
    worker.script = gate.script()
    second = ask(router, crowd, "short", MIDDLE)
    until(lambda: len(worker.requests) == 2)
    until(held(router, 1))
    worker.script = full(b"x")
    change(router, worker.url, strategy="session")
    assert (first.result().status_code, first.result().content) == (503, b"x")
    gate.opened.set()
    assert second.result().status_code == 200
    until(router.idle)


def test_only_full_workers_are_waited_for(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    worker: Stub,
    seldom: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the router itself cannot make a connection, the client is told so at once."""
    router = routed(route, worker)
    gate, replies = given_way(router, crowd, worker)
    monkeypatch.setattr(Upstream, "ask", lacking)
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [503, 200]
    assert waiting(router) == 0
    until(router.idle)


async def lacking(self: Upstream, *_: object) -> Connection:
    """Fail as if the system had no file descriptor left."""
    raise Refused("no file descriptor is left", ours=True)
