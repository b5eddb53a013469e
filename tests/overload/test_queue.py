"""More requests than the workers have places for: which wait, which are refused, which go next."""

import re
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from router.fleet.worker import ProbeState, Worker
from tests.overload.busy import PATH, QUIET, Gate, waits
from tests.reload.changing import change
from tests.retry.test_failover import full
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, error_of, post, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ONE = {"in_flight": 1}
#: Who is ejected stays so until the end of the test.
EJECTED: dict[str, Any] = {**QUIET, "ejection": {"first": "1h", "longest": "2h", "panic": 0}}


def ask(
    router: Router, crowd: ThreadPoolExecutor, count: int = 1, model: str = "m", **fields: str
) -> list[Future[httpx.Response]]:
    """Send requests, each on a connection of its own."""
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    body = CHAT | {"model": model}
    send = partial(httpx.post, router.url + PATH, json=body, headers=headers, timeout=30)
    return [crowd.submit(send) for _ in range(count)]


def statuses(replies: list[Future[httpx.Response]]) -> list[int]:
    """Wait for the answers."""
    return [reply.result().status_code for reply in replies]


def ids(worker: Stub) -> list[str]:
    """The ids of the requests that reached the worker, in order."""
    found = re.findall(rb"x-request-id: ([\w-]+)", b"".join(worker.requests))
    return [name.decode() for name in found]


def eject(worker: Worker) -> None:
    """Let requests to a worker fail until it is ejected."""
    while worker.breaker.closed:
        worker.breaker.failed(monotonic(), worker.breaker.began(monotonic()), "5xx")


def test_no_worker_gets_more_than_its_cap(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, no_tick: None
) -> None:
    """Requests beyond `limits.in_flight` are queued; a place that becomes free is taken at once."""
    gate = Gate()
    workers = [stub(gate.script()), stub(gate.script())]
    urls = [worker.url for worker in workers]
    router = route(*urls, limits={"in_flight": 2}, health=QUIET, strategy="leastload")
    replies = ask(router, crowd, 10)
    until(waits(router, 6))
    assert sorted(len(worker.requests) for worker in workers) == [2, 2]
    gate.opened.set()
    assert statuses(replies) == [200] * 10
    assert router.metric("warmroute_queued_total") == 6
    until(router.idle)
    assert waits(router, 0)()


@pytest.mark.parametrize("queue", [0, 2])
def test_a_full_line_refuses_at_once(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, queue: int
) -> None:
    """A full queue gives 429 in OpenAI's format with Retry-After; queued requests are not hurt."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, limits={**ONE, "queue": queue}, health=QUIET)
    replies = ask(router, crowd, 1 + queue)
    until(lambda: worker.requests and waits(router, queue)())
    refused = router.http.post(PATH, json=CHAT)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) > 0
    gate.opened.set()
    assert statuses(replies) == [200] * (1 + queue)


@pytest.mark.parametrize("status", [429, 503])
def test_how_a_full_line_refuses_can_be_set(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, dead_url: str, status: int
) -> None:
    """`limits.overflow` sets status and message in OpenAI's format, or HyperPod's whole body, which
    counts no worker that is down, drains or has other models."""
    gate, sentence = Gate(), "Come back later."
    worker = stub(gate.script())
    workers = worker.url, dead_url, {"url": stub().url, "drain": True}, stub(model="other").url
    overflow = {"status": status, "message": sentence}
    limits = {**ONE, "queue": 0, "overflow": overflow}
    router = route(*workers, limits=limits, health=QUIET)
    first = ask(router, crowd)
    until(lambda: worker.requests)
    refused = router.http.post(PATH, json=CHAT)
    assert (refused.status_code, error_of(refused)["message"]) == (status, sentence)
    assert error_of(refused)["type"] == ("rate_limit_error" if status == 429 else "server_error")
    limits = {**limits, "overflow": {**overflow, "body": "hyperpod"}}
    change(router, *workers, limits=limits, health=QUIET)
    refused = router.http.post(PATH, json=CHAT)
    counts = {"max_concurrent": 1, "max_queue_size": 0, "current": 1}
    assert (refused.status_code, refused.json()) == (status, {"error": sentence, **counts})
    assert int(refused.headers["retry-after"]) > 0
    gate.opened.set()
    assert statuses(first) == [200]


def test_one_that_is_displaced_is_told_the_limits_of_its_own_pool(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A request of a pool that has none in the full queue takes a place of the pool with most."""
    gate = Gate()
    workers = [stub(gate.script(), model) for model in ("one", "two", "two")]
    urls = [worker.url for worker in workers]
    router = route(
        pools=[
            {"name": "one", "models": ["one"], "workers": urls[:1]},
            {"name": "two", "models": ["two"], "workers": urls[1:]},
        ],
        strategy="leastload",
        limits={**ONE, "queue": 2, "overflow": {"body": "hyperpod"}},
    )
    replies = [*ask(router, crowd, 1, "one"), *ask(router, crowd, 2, "two")]
    until(lambda: all(worker.requests for worker in workers))
    waiting = []
    for place in (1, 2):
        waiting += ask(router, crowd, 1, "one")
        until(waits(router, place))
    replies += [waiting[0], *ask(router, crowd, 1, "two")]
    refused = waiting[1].result(20)
    gate.opened.set()
    assert refused.status_code == 429
    assert refused.json()["max_concurrent"] == refused.json()["current"] == 1
    assert set(statuses(replies)) == {200}


def test_tenants_take_turns(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key's request is served at most one place later, however many one key has queued."""
    gate = Gate()
    worker = stub(gate.script())
    keys = {"greedy": "g" * 16, "modest": "m" * 16}
    for name, key in keys.items():
        monkeypatch.setenv(name.upper(), key)
    auth = {"keys": [{"name": name, "key": f"${{{name.upper()}}}"} for name in keys]}
    router = route(worker.url, limits=ONE, health=QUIET, auth=auth)
    replies = []
    for place, name in enumerate(["greedy"] * 6 + ["modest"]):
        replies += ask(router, crowd, authorization=f"Bearer {keys[name]}", x_request_id=name)
        until(lambda place=place: worker.requests and waits(router, place)())  # type: ignore[misc]
    gate.opened.set()
    assert set(statuses(replies)) == {200}
    assert ids(worker).index("modest") <= 2


def test_places_that_two_models_share_leave_both_in_order(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """None is called for a place that another has got: it would come back as the last in line."""
    gate = Gate()
    worker = stub(gate.script())
    entry = {"url": worker.url, "models": ["m", "n"]}
    router = route(entry, limits=ONE, strategy="leastload")
    replies = []
    for place, name in enumerate(("m0", "m1", "m2", "n0", "n1", "n2")):
        replies += ask(router, crowd, 1, name[0], x_request_id=name)
        until(lambda place=place: worker.requests and waits(router, place)())  # type: ignore[misc]
    change(router, entry, limits={"in_flight": 3}, strategy="leastload")
    until(lambda: len(worker.requests) == 3)
    change(router, entry, limits=ONE, strategy="leastload")
    gate.opened.set()
    assert set(statuses(replies)) == {200}
    assert sorted(ids(worker)[:3]) == ["m0", "m1", "m2"]
    assert ids(worker)[3:] == ["n0", "n1", "n2"]
    assert router.metric("warmroute_queued_total") == 5


def test_a_worker_that_joins_takes_from_the_line(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Queued requests go to a worker that becomes ready; they do not wait for the busy one."""
    gate = Gate()
    busy, fresh = stub(gate.script()), stub()
    fresh.well = False
    router = route(busy.url, fresh.url, limits=ONE, health={"interval": "100ms", "fall": 1})
    until(lambda: not router.worker(1).ready and router.worker(0).ready)
    replies = ask(router, crowd, 4)
    until(waits(router, 3))
    fresh.well = True
    until(waits(router, 0))
    gate.opened.set()
    assert statuses(replies) == [200] * 4
    assert len(fresh.requests) >= 3


def test_others_are_refused_while_all_are_gone(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """When the only worker dies, all requests fail well before `timeouts.queue`."""
    worker = stub([lambda: False])
    soon = {"interval": "50ms", "fall": 1}
    router = route(worker.url, limits=ONE, health=soon, timeouts={"queue": "1h"})
    replies = ask(router, crowd, 3)
    until(waits(router, 2))
    worker.stop()
    assert set(statuses(replies)) <= {502, 503}


def test_a_full_worker_does_not_draw_the_requests(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that refuses at once never looks busy, so it must rest for a while instead."""
    busy, good = stub(full(b"x")), stub()
    router = route(busy.url, good.url, strategy="leastload", limits={"retries": 0}, health=QUIET)
    answers = [router.http.post(PATH, json=CHAT).status_code for _ in range(40)]
    assert answers.count(200) >= 30
    assert len(good.requests) == answers.count(200)
    assert set(answers) <= {200, 503}
    busy.script = OK
    until(lambda: router.http.post(PATH, json=CHAT).status_code == 200 and len(busy.requests) > 1)


def test_nobody_is_sent_to_a_full_worker_while_others_may_end(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, backs_off: None
) -> None:
    """Requests wait for a place on a well worker rather than go to one that has said it is full."""
    gate = Gate()
    busy, good = stub(full(b"x")), stub(OK)
    router = route(busy.url, good.url, limits=ONE, health=QUIET)
    while not busy.requests:
        assert router.http.post(PATH, json=CHAT).status_code == 200
    good.script = gate.script()
    replies = ask(router, crowd, 4)
    until(waits(router, 3))
    sleep(0.2)  # the queue is checked four times, and nothing is released
    gate.opened.set()
    assert statuses(replies) == [200] * 4
    assert len(busy.requests) == 1


def test_a_second_attempt_goes_to_one_that_is_not_known_to_be_full(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, backs_off: None
) -> None:
    """A worker that another request has found full since the decision is skipped at failover."""
    gate = Gate()
    late, busy, good = stub([gate.opened.is_set, *full(b"x")]), stub(full(b"x")), stub()
    urls = [late.url, busy.url, good.url]
    router = route(*urls, strategy="roundrobin", limits={"attempts": 2}, health=QUIET)
    replies = ask(router, crowd)
    until(lambda: late.requests)
    assert router.http.post(PATH, json=CHAT).status_code == 200
    gate.opened.set()
    assert statuses(replies) == [200]
    assert len(busy.requests) == 1


def test_a_worker_that_is_gone_loses_nobody_while_another_is_well(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """If the only worker with a place is dead, the request is queued for the other one.

    A client that disconnects then is counted like any other that was queued.
    """
    gate = Gate()
    good, gone = stub(gate.script()), stub()
    router = route(good.url, gone.url, strategy="leastload", limits=ONE, health=QUIET)
    replies = ask(router, crowd)
    while not good.requests:
        if replies[-1].done():
            replies += ask(router, crowd)
    gone.stop()
    with post(router.port, PATH, b'{"model":"m","messages":[]}'):
        until(waits(router, 1))
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    router.worker(1).become(ProbeState.READY, "as far as is known")
    replies += ask(router, crowd)
    until(waits(router, 1))
    gate.opened.set()
    assert set(statuses(replies)) == {200}
    until(router.idle)


@pytest.mark.parametrize("drains", [True, False])
def test_places_on_a_worker_that_gets_nothing_new_are_no_places(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, drains: bool
) -> None:
    """A worker that drains, or is ejected, gets nobody who waits, also when its answers end."""
    gates = Gate(), Gate()
    stays, goes = (stub(gate.script()) for gate in gates)
    rest: dict[str, Any] = {"limits": {"in_flight": 2}, "health": EJECTED, "strategy": "leastload"}
    router = route(stays.url, goes.url, **rest)
    replies = ask(router, crowd, 7)
    until(waits(router, 3))
    if drains:
        change(router, stays.url, {"url": goes.url, "drain": True}, **rest)
    else:
        router.call(lambda: eject(router.worker(1)))
    gates[1].opened.set()
    until(lambda: router.worker(1).load.in_flight == 0)
    sleep(0.2)  # they are looked at four times
    assert waits(router, 3)()
    gates[0].opened.set()
    assert statuses(replies) == [200] * 7
    assert len(goes.requests) == 2


@pytest.mark.parametrize("why", ["its time is over", "too few are healthy"])
def test_who_waits_goes_to_an_ejected_worker_that_is_let_in(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, why: str
) -> None:
    """Until then nobody is sent there; and nobody has to come who would find that out."""
    gate = Gate()
    busy, ejected = [stub(gate.script()) for _ in range(3)], stub()
    health = {**QUIET, "ejection": {"first": "1h", "longest": "2h"}}
    router = route(*(one.url for one in (*busy, ejected)), limits=ONE, health=health)
    router.call(lambda: eject(router.worker(3)))
    replies = ask(router, crowd, 5)
    until(waits(router, 2))
    assert not ejected.requests
    if why == "its time is over":
        router.worker(3).breaker.until = monotonic()
    else:
        for place in range(2):
            router.call(partial(router.worker(place).become, ProbeState.DOWN, "it was unplugged"))
    until(lambda: ejected.requests)
    gate.opened.set()
    assert statuses(replies) == [200] * 5


def test_when_all_are_full_they_say_so_themselves(stub: MakeStub, route: MakeRouter) -> None:
    """What a full worker refused has not made it busy."""
    worker = stub(full(b"busy"))
    router = route(worker.url, limits={"queue": 0}, health=QUIET)
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content, len(worker.requests)) == (503, b"busy", 1)
    until(router.idle)
    assert router.worker().load.given_s == 0.0
