"""Preemption over real sockets: a long prompt gives way to a short one, and is sent again."""

import json
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any, cast

import httpx
import pytest

from router.dispatch.lease import Lease
from router.fleet.worker import LOSSES
from router.http.exchange import Exchange
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.overload.busy import ANSWER, PATH, QUIET, Gate, ask, asked, waits
from tests.overload.giving_way import (
    LONG,
    MIDDLE,
    SHORT,
    answer,
    long,
    preempted,
    routed,
    short,
    sizes,
)
from tests.overload.totals import samples, total
from tests.reload.changing import CHUNK, END, SSE, change
from tests.retry.test_failover import full
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, post, until


def test_a_long_prompt_gives_way_and_goes_on(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is closed, the short one is answered, then it is sent again: its client
    notices nothing, and all bookings are released.

    It counts as one request, its line in the log says how often it gave way, and its worker is told
    another id: an engine that has not yet forgotten the first does not mistake it for that one.
    """
    caplog.set_level(logging.INFO, "warmroute.requests")
    router = routed(route, worker, logs={"requests": True})
    first = long(router, crowd, worker)
    reply = short(router)
    assert reply.status_code == 200
    assert "x-warmroute-preempted" not in reply.headers
    assert preempted(first) == 1
    assert sizes(worker) == ["long", "short", "long"]
    until(lambda: worker.closed_by_peer == 1)
    assert router.metric("warmroute_preempted_requests_total") == 1
    until(router.idle)
    load = router.worker().load
    assert (load.decoding, load.uncached, len(load.pending)) == (0, 0, 0)
    assert [total(router, family) for family in ("decisions", "requests")] == [2] * 2
    assert samples(router, "match_ratio", "_count") == [2]
    until(lambda: len(caplog.records) == 2)
    fields = {line.getMessage(): vars(line)["fields"] for line in caplog.records}
    for message, given in fields.items():
        assert given.get("preempted") == (1 if message.endswith(" preempted=1") else None)
    assert sum("preempted" in given for given in fields.values()) == 1
    identity = first.result().headers["x-request-id"].encode()
    ids = [re.search(rb"x-request-id: (\S+)\r\n", request) for request in worker.requests]
    assert [one and one[1] for one in ids][::2] == [identity, identity + b"-1"]


@pytest.mark.parametrize(
    ("fields", "settings", "reuses"),
    [
        ({}, {"limits": {"preemptions": 0}}, True),
        ({}, {}, None),  # nobody knows of its worker's cache
        ({"stream": False}, {}, True),  # its first byte is its last: it may be decoding for long
        ({"echo": True}, {}, True),  # vLLM computes such a prompt as a whole, whatever is cached
        ({"prompt_logprobs": 0}, {}, True),  # nor here
        ({"kv_transfer_params": {"do_remote_decode": True}}, {}, True),
        ({"background": True}, {}, True),  # it goes on although the connection is closed
    ],
)
def test_some_requests_do_not_give_way(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    worker: Stub,
    *,
    fields: dict[str, Any],
    settings: dict[str, Any],
    reuses: bool | None,
) -> None:
    """The worker would not go on with them where it was; the short one is held."""
    router = routed(route, worker, **settings)
    router.worker().reuses = reuses
    body = asked("long", LONG) | fields
    crowd.submit(httpx.post, router.url + PATH, json=body, timeout=30)
    until(lambda: len(worker.requests) == 1)
    check_held(router, crowd, worker)


def check_held(router: Router, crowd: ThreadPoolExecutor, worker: Stub) -> None:
    """Check that the long prompt keeps its worker, and a short one is held meanwhile."""
    waiting = ask(router, crowd, "short", SHORT)
    until(waits(router, 1))
    assert sizes(worker) == ["long"]
    worker.stop()
    assert waiting.result().status_code == 503


@pytest.mark.parametrize("why", ["that is turned off", "its worker is found out"])
def test_none_gives_way_once(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, why: str
) -> None:
    """Those that were sent before keep their worker, too."""
    router = routed(route, worker)
    long(router, crowd, worker)
    if why == "that is turned off":
        change(router, worker.url, limits={"preemptions": 0})
    else:
        preempting = router.door.dispatcher.preempting
        for _ in range(LOSSES):
            router.call(lambda: preempting.judge(router.worker(), 4000, 100))
    check_held(router, crowd, worker)


def test_no_more_often_than_it_may(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """After `limits.preemptions` times it keeps its worker, and short ones are held."""
    router = routed(route, worker, limits={"preemptions": 2})
    first = long(router, crowd, worker)
    for count in (2, 4):
        gate = Gate()
        worker.script = gate.script()
        reply = ask(router, crowd, f"short {count}", MIDDLE)
        until(lambda count=count: len(worker.requests) == count)  # type: ignore[misc]
        until(waits(router, 1))
        worker.script = (last := Gate()).script()
        gate.opened.set()
        assert reply.result().status_code == 200
        until(lambda count=count: len(worker.requests) == count + 1)  # type: ignore[misc]
    reply = ask(router, crowd, "short", MIDDLE)
    until(waits(router, 1))
    last.opened.set()
    assert preempted(first) == 2
    assert reply.result().status_code == 200
    assert sizes(worker) == ["long", "short"] * 3
    until(router.idle)


@pytest.mark.parametrize("leaves", [True, False])
def test_it_waits_again(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, leaves: bool
) -> None:
    """It was sent already, so it waits for a place even if none may queue any more. If its client
    leaves meanwhile, it is not sent again, and nothing stays booked."""
    router, gate = routed(route, worker), Gate()
    body = json.dumps(asked("long", LONG)).encode()
    with post(router.port, PATH, body, b"content-type: application/json") as client:
        until(lambda: len(worker.requests) == 1)
        worker.script = gate.script()
        reply = ask(router, crowd, "short", MIDDLE)
        until(lambda: len(worker.requests) == 2)
        until(waits(router, 1))
        worker.script = OK
        if not leaves:
            change(router, worker.url, limits={"in_flight": 1, "queue": 0})
            until(waits(router, 1))
            gate.opened.set()
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    until(waits(router, 0))
    gate.opened.set()
    assert reply.result().status_code == 200
    until(router.idle)
    assert len(worker.requests) == (2 if leaves else 3)


def test_a_worker_that_keeps_nothing_is_found_out(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """If requests find little of what they had got done, three in a row, none is preempted any
    more; one that finds it starts the count anew."""
    router = routed(route, worker)
    for number, cached in enumerate((0, 0, 30_000, 0, 0, 0)):
        assert router.worker().keeps
        worker.script = [lambda: False]
        first = long(router, crowd, worker, f"long {number}")
        router.worker().load.head_since -= 2.0
        worker.script = answer(cached)
        assert short(router).status_code == 200
        assert preempted(first) == 1
        until(router.idle)
    assert not router.worker().keeps


def test_the_last_place_is_enough(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """Where a worker has one place left, who takes it may still go first."""
    router = routed(route, worker, limits={"in_flight": 2, "queue": 1})
    first = long(router, crowd, worker)
    assert short(router).status_code == 200
    assert preempted(first) == 1
    assert sizes(worker) == ["long", "short", "long"]
    until(router.idle)


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_a_simulated_engine_goes_on(
    route: MakeRouter, crowd: ThreadPoolExecutor, stack: ExitStack, strategy: str
) -> None:
    """The whole of it on an engine that computes: the long prompt's second attempt finds what the
    first had computed, which counts as no hit in the router's metrics."""
    settings = FleetSettings(speed=4.0, models=("m",), kv_events=False)
    fleet = stack.enter_context(FleetThread(settings))
    router = route(*fleet.urls, strategy=strategy)
    (engine,) = (one.engine for one in fleet.workers)
    until(lambda: router.worker().keeps)
    body = asked("long", LONG) | {"max_tokens": 2, "stream_options": {"include_usage": True}}
    first = crowd.submit(httpx.post, router.url + PATH, json=body, timeout=60)
    until(lambda: engine.cache.used > 100)
    assert short(router).status_code == 200
    assert not first.done()
    assert preempted(first) == 1
    lines = first.result().text.splitlines()
    usage = [json.loads(line[6:]) for line in lines if line[:7] == "data: {"][-1]["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    until(router.idle)
    assert router.metric("warmroute_cached_tokens_total", pool=router.door.fleet.pools[0].name) == 0


# What happens at the very moment at which a prompt gives way, or just before or after.


def answers(lease: Lease) -> None:
    """The worker's whole answer arrives."""
    for connection in lease.worker.upstream.in_use:
        connection.data_received(ANSWER)


def fails(lease: Lease) -> None:
    """The worker closes the connection."""
    for connection in lease.worker.upstream.in_use:
        connection.connection_lost(None)


def leaves(lease: Lease) -> None:
    """Its client does."""
    exchange = cast("Exchange", lease.request.source)
    exchange.leave()
    assert exchange.task is not None
    exchange.task.cancel()


@pytest.mark.parametrize("happens", [answers, fails, leaves])
def test_what_happens_in_the_same_turn_of_the_loop(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    worker: Stub,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[Lease], object],
) -> None:
    """What its worker does is of no interest: it has given way, so it is sent again. A client that
    leaves is counted under no worker, as it was not at one any more."""
    preempt = Lease.preempt

    def preempted_then(lease: Lease, kept_tokens: int) -> None:
        happens(lease)
        preempt(lease, kept_tokens)

    router = routed(route, worker)
    first = long(router, crowd, worker)
    monkeypatch.setattr(Lease, "preempt", preempted_then)
    assert short(router).status_code == 200
    if happens is not leaves:
        assert preempted(first) == 1
    until(router.idle)
    left = router.metric("warmroute_refused_requests_total", status="499")
    assert left == (happens is leaves)
    assert sizes(worker) == ["long", "short"] + ["long"] * (happens is not leaves)


@pytest.mark.parametrize("begins", [True, False])
def test_on_failover_it_counts_what_is_there_by_then(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, *, begins: bool
) -> None:
    """Not what was there when the workers were compared: a long prompt whose answer has begun
    meanwhile does not give way to a short one that another worker has refused."""
    begin, end, refuse = Event(), Event(), Event()
    both = [stub([begin.is_set, SSE + CHUNK, end.is_set, CHUNK + END]) for _ in range(2)]
    router = route(*(one.url for one in both), health=QUIET)
    for one in router.door.fleet.workers:
        one.reuses = True
    first = ask(router, crowd, "long", LONG)
    until(lambda: any(one.requests for one in both))
    other, there = sorted(both, key=lambda one: len(one.requests))
    other.script, there.script = [refuse.is_set, *full(b"x")], OK
    reply = ask(router, crowd, "short", SHORT)
    until(lambda: other.requests)
    if begins:
        begin.set()
        until(lambda: any(one.load.decoding for one in router.door.fleet.workers))
    refuse.set()
    assert reply.result().headers["x-warmroute-worker"] == there.url[7:]
    end.set()
    assert preempted(first) == (not begins)
    assert router.metric("warmroute_preempted_requests_total") == (not begins)
    assert sizes(there) == ["long", "short"] + ([] if begins else ["long"])
    until(router.idle)


class Once(list[Action]):
    """A script for workers of which only the very first that is asked is full."""

    refused = False

    def __iter__(self) -> Iterator[Action]:
        """Answer, or refuse once."""
        script, self.refused = (OK if self.refused else full(b"x")), True
        return iter(script)


def test_one_that_others_gave_way_to_is_sent_again(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """As soon as its worker takes others again, at which those are not yet gone; the refusal is
    counted, and both are answered."""
    router = routed(route, worker)
    first: Future[httpx.Response] = long(router, crowd, worker)
    worker.script = once = Once()
    reply = ask(router, crowd, "short", SHORT)
    assert preempted(reply) == 0
    assert once.refused
    assert first.result().status_code == 200
    labels = {"pool": "default", "worker": worker.url[7:], "kind": "full"}
    assert router.metric("warmroute_worker_errors_total", **labels) == 1
    assert total(router, "decisions") == 2
    until(router.idle)
