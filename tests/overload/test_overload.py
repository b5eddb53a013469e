"""More requests than the workers have places for: which wait, which are refused, which go next."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from router.dispatch import scheduler
from router.fleet import breaker as rests
from router.fleet.worker import ProbeState
from strategies.policies.prefix_aware import PrefixAware
from tests.overload.busy import PATH, QUIET, Gate
from tests.reload.changing import change
from tests.support import OK, MakeRouter, MakeStub, Router, error_of, post, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ask(router: Router, crowd: ThreadPoolExecutor, count: int = 1) -> list[Future[httpx.Response]]:
    """Send requests, each on a connection of its own."""
    return [
        crowd.submit(httpx.post, router.url + PATH, json=CHAT, timeout=30) for _ in range(count)
    ]


def line_is(router: Router, length: int) -> bool:
    """Whether that many requests are queued."""
    return waiting(router) == length


def waiting(router: Router) -> float:
    """The number of queued requests."""
    return router.metric("warmroute_queue_length")


def test_no_worker_gets_more_than_its_cap(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Requests beyond `limits.in_flight` are queued, and all are answered once there are places."""
    gate = Gate()
    workers = [stub(gate.script()), stub(gate.script())]
    router = route(
        *(worker.url for worker in workers),
        limits={"in_flight": 2},
        health=QUIET,
        strategy="leastload",
    )
    replies = ask(router, crowd, 10)
    until(lambda: waiting(router) == 6)
    assert sorted(len(worker.requests) for worker in workers) == [2, 2]
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 10
    assert router.metric("warmroute_queued_total") == 6
    until(router.idle)
    assert waiting(router) == 0


def test_a_full_line_refuses_at_once(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A full queue gives 429 in OpenAI's format with Retry-After; queued requests are not hurt."""
    gate = Gate()
    router = route(stub(gate.script()).url, limits={"in_flight": 1, "queue": 2}, health=QUIET)
    replies = ask(router, crowd, 3)
    until(lambda: waiting(router) == 2)
    refused = router.http.post(PATH, json=CHAT)
    assert refused.status_code == 429
    assert error_of(refused)["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) > 0
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 3


@pytest.mark.parametrize("status", [429, 503])
def test_how_a_full_line_refuses_can_be_set(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, status: int
) -> None:
    """`limits.overflow` sets status and message in OpenAI's format, or HyperPod's whole body."""
    gate, sentence = Gate(), "Come back later."
    worker = stub(gate.script())
    overflow = {"status": status, "message": sentence}
    limits = {"in_flight": 1, "queue": 0, "overflow": overflow}
    router = route(worker.url, limits=limits, health=QUIET)
    first = ask(router, crowd)[0]
    until(lambda: worker.requests)
    refused = router.http.post(PATH, json=CHAT)
    assert (refused.status_code, error_of(refused)["message"]) == (status, sentence)
    assert error_of(refused)["type"] == ("rate_limit_error" if status == 429 else "server_error")
    limits = {**limits, "overflow": {**overflow, "body": "hyperpod"}}
    change(router, worker.url, limits=limits, health=QUIET)
    refused = router.http.post(PATH, json=CHAT)
    counts = {"max_concurrent": 1, "max_queue_size": 0, "current": 1}
    assert (refused.status_code, refused.json()) == (status, {"error": sentence, **counts})
    assert int(refused.headers["retry-after"]) > 0
    gate.opened.set()
    assert first.result().status_code == 200


def test_only_workers_that_could_answer_are_counted(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, dead_url: str
) -> None:
    """HyperPod's body counts no worker that is down, drains or has other models."""
    gate = Gate()
    worker, draining = stub(gate.script()), stub(model="m")
    router = route(
        worker.url,
        dead_url,
        {"url": draining.url, "drain": True},
        stub(model="other").url,
        limits={"in_flight": 1, "queue": 0, "overflow": {"body": "hyperpod"}},
        health=QUIET,
    )
    first = ask(router, crowd)[0]
    until(lambda: worker.requests)
    refused = router.http.post(PATH, json=CHAT).json()
    assert (refused["max_concurrent"], refused["current"]) == (1, 1)
    gate.opened.set()
    assert first.result().status_code == 200


def test_without_a_line_nobody_waits(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """With `queue: 0`, a request that finds no place is refused."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, limits={"in_flight": 1, "queue": 0}, health=QUIET)
    first = ask(router, crowd)[0]
    until(lambda: worker.requests)
    assert router.http.post(PATH, json=CHAT).status_code == 429
    gate.opened.set()
    assert first.result().status_code == 200


def test_tenants_take_turns(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key's request is served at most one place later, however many one key has queued."""
    gate = Gate()
    worker = stub(gate.script())
    keys = {"greedy": "g" * 16, "modest": "m" * 16}
    for name, key in keys.items():
        monkeypatch.setenv(name.upper(), key)
    router = route(
        worker.url,
        limits={"in_flight": 1},
        health=QUIET,
        auth={"keys": [{"name": name, "key": f"${{{name.upper()}}}"} for name in keys]},
    )

    def as_tenant(name: str) -> Future[httpx.Response]:
        headers = {"authorization": f"Bearer {keys[name]}", "x-request-id": name}
        return crowd.submit(httpx.post, router.url + PATH, json=CHAT, headers=headers, timeout=30)

    replies = [as_tenant("greedy")]
    until(lambda: worker.requests)
    for place in range(5):
        replies.append(as_tenant("greedy"))
        until(partial(line_is, router, place + 1))
    replies.append(as_tenant("modest"))
    until(lambda: waiting(router) == 6)
    gate.opened.set()
    assert {reply.result().status_code for reply in replies} == {200}
    order = [b"x-request-id: modest" in request for request in worker.requests]
    assert order.index(True) <= 2


def test_a_worker_that_joins_takes_from_the_line(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Queued requests go to a worker that becomes ready; they do not wait for the busy one."""
    gate = Gate()
    busy, fresh = stub(gate.script()), stub()
    fresh.well = False
    router = route(
        busy.url, fresh.url, limits={"in_flight": 1}, health={"interval": "100ms", "fall": 1}
    )
    until(lambda: not router.worker(1).ready and router.worker(0).ready)
    replies = ask(router, crowd, 4)
    until(lambda: waiting(router) == 3)
    fresh.well = True
    until(lambda: waiting(router) == 0)
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 4
    assert len(fresh.requests) >= 3


def test_others_are_refused_while_all_are_gone(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """When the only worker dies, all requests fail well before `timeouts.queue`."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, limits={"in_flight": 1}, health={"interval": "50ms", "fall": 1})
    replies = ask(router, crowd, 3)
    until(lambda: waiting(router) == 2)
    began = time.monotonic()
    worker.stop()
    assert {reply.result().status_code for reply in replies} <= {502, 503}
    assert time.monotonic() - began < 25  # `timeouts.queue` is longer


def test_a_full_worker_does_not_draw_the_requests(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that refuses at once never looks busy, so it must rest for a while instead."""
    full = stub([b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"])
    good = stub()
    router = route(full.url, good.url, strategy="leastload", limits={"retries": 0}, health=QUIET)
    answers = [router.http.post(PATH, json=CHAT).status_code for _ in range(40)]
    assert answers.count(200) >= 30
    assert len(good.requests) == answers.count(200)
    assert set(answers) <= {200, 503}
    full.script = OK
    until(lambda: router.http.post(PATH, json=CHAT).status_code == 200 and len(full.requests) > 1)


def test_when_all_are_full_they_say_so_themselves(stub: MakeStub, route: MakeRouter) -> None:
    """If all workers are full and none may wait, the last worker's own refusal is relayed."""
    said = b'{"error":{"message":"busy"}}'
    worker = stub([b"HTTP/1.1 503 Full\r\ncontent-length: %d\r\n\r\n" % len(said) + said])
    router = route(worker.url, limits={"queue": 0}, health=QUIET)
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (503, said)
    assert len(worker.requests) == 1
    until(router.idle)
    assert router.worker().load.given_s == 0.0, "what it refused has not made it busy"


def test_nobody_is_sent_to_a_full_worker_while_others_may_end(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests wait for a place on a well worker rather than go to one that has said it is full."""
    monkeypatch.setattr(rests, "MIN_BACKOFF_S", 3600.0)
    gate = Gate()
    full = stub([b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"])
    good = stub(gate.script())
    router = route(full.url, good.url, limits={"in_flight": 1}, health=QUIET)
    gate.opened.set()
    while not full.requests:
        assert router.http.post(PATH, json=CHAT).status_code == 200
    gate.opened.clear()
    replies = ask(router, crowd, 4)
    until(lambda: waiting(router) == 3)
    time.sleep(0.3)  # the queue is checked six times, and nothing is released
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 4
    assert len(full.requests) == 1


def test_how_busy_the_fleet_is_is_not_told_by_one_that_is_full(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resting worker's booked load does not count in the strategy's measure of fleet demand."""
    monkeypatch.setattr(rests, "MIN_BACKOFF_S", 3600.0)
    full = stub([b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"])
    router = route(full.url, stub().url, stub().url, health=QUIET)
    while not full.requests:
        assert router.http.post(PATH, json=CHAT).status_code == 200
    strategy = router.door.fleet.pools[0].strategy
    assert isinstance(strategy, PrefixAware)
    demand = strategy.costs._demand
    before = demand._prompts
    assert demand._busy == 0.0
    router.worker(0).load.book(time.monotonic(), 60.0, 60_000)
    until(lambda: not any(router.worker(number).load.pending for number in (1, 2)))
    assert router.http.post(PATH, json=CHAT).status_code == 200
    assert demand._busy == 0.0
    assert demand._prompts > before
    assert len(full.requests) == 1


def test_a_second_attempt_goes_to_one_that_is_not_known_to_be_full(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that another request has found full since the decision is skipped at failover."""
    monkeypatch.setattr(rests, "MIN_BACKOFF_S", 3600.0)
    gate = Gate()
    said = b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"
    late = stub([gate.opened.is_set, said])
    full, good = stub([said]), stub()
    urls = [late.url, full.url, good.url]
    router = route(*urls, strategy="roundrobin", limits={"attempts": 2}, health=QUIET)
    (reply,) = ask(router, crowd)
    until(lambda: late.requests)
    assert router.http.post(PATH, json=CHAT).status_code == 200
    assert len(full.requests) == 1
    gate.opened.set()
    assert reply.result().status_code == 200
    assert len(full.requests) == 1


def test_a_worker_that_is_gone_loses_nobody_while_another_is_well(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """If the only worker with a place is dead, the request is queued for the other one.

    A client that disconnects then is counted like any other that was queued.
    """
    gate = Gate()
    good, gone = stub(gate.script()), stub()
    router = route(good.url, gone.url, strategy="leastload", limits={"in_flight": 1}, health=QUIET)
    first = ask(router, crowd)
    while not good.requests:
        if first[-1].done():
            first += ask(router, crowd)
    gone.stop()
    with post(router.port, PATH, b'{"model":"m","messages":[]}'):
        until(lambda: waiting(router) == 1)
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    router.worker(1).become(ProbeState.READY, "as far as is known")
    second = ask(router, crowd)
    until(lambda: waiting(router) == 1)
    gate.opened.set()
    assert [reply.result().status_code for reply in (*first, *second)] == [200] * (len(first) + 1)
    until(router.idle)


def test_a_place_is_handed_on_at_once(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that becomes free is taken at once, not only at the next periodic check."""
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)
    gate = Gate()
    router = route(stub(gate.script()).url, limits={"in_flight": 1}, health=QUIET)
    replies = ask(router, crowd, 3)
    until(lambda: waiting(router) == 2)
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 3
