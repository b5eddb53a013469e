"""Preemption over real sockets: a long prompt gives way to a short one, and is sent again."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from strategies.cost.load import Load
from tests.overload.busy import PATH, Gate, ask, asked, waits
from tests.overload.giving_way import (
    LONG,
    MIDDLE,
    SHORT,
    answer,
    long,
    overtaken,
    routed,
    short,
    sizes,
)
from tests.overload.totals import samples, total
from tests.support import MakeRouter, Stub, until


def test_a_long_prompt_gives_way_and_goes_on(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """Its connection is closed, the short one is answered, then it is sent again: its client
    notices nothing, and all bookings are released."""
    router = routed(route, worker)
    first = long(router, crowd, worker)
    reply = short(router)
    assert reply.status_code == 200
    assert "x-warmroute-preempted" not in reply.headers
    assert first.result().status_code == 200
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert sizes(worker) == ["long", "short", "long"]
    until(lambda: worker.closed_by_peer == 1)
    assert router.metric("warmroute_preempted_requests_total") == 1
    until(router.idle)
    load = router.worker().load
    assert (load.decoding, load.uncached, len(load.pending)) == (0, 0, 0)


def test_it_is_counted_as_one_request(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """It has one decision in the metrics, and one answer."""
    router = routed(route, worker)
    first = long(router, crowd, worker)
    short(router)
    first.result()
    until(router.idle)
    assert [total(router, family) for family in ("decisions", "requests")] == [2] * 2
    assert samples(router, "match_ratio", "_count") == [2]


def test_its_line_in_the_log_says_how_often(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    """For people and, as a number, for machines; a request that never gave way has no count."""
    caplog.set_level(logging.INFO, "warmroute.requests")
    router = routed(route, worker, logs={"requests": True})
    first = long(router, crowd, worker)
    short(router)
    first.result()
    until(lambda: len(caplog.records) == 2)
    fields = {line.getMessage(): vars(line)["fields"] for line in caplog.records}
    for message, given in fields.items():
        assert given.get("preempted") == (1 if message.endswith(" preempted=1") else None)
    assert sum("preempted" in given for given in fields.values()) == 1


@pytest.mark.parametrize(
    ("why", "settings"),
    [("it is turned off", {"limits": {"preemptions": 0}}), ("nobody knows of its cache", {})],
)
def test_it_does_not_if(
    why: str,
    settings: dict[str, Any],
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    worker: Stub,
) -> None:
    """The short one is held until the long one is done."""
    router = routed(route, worker, **settings)
    router.worker().reuses = bool(settings) or None
    long(router, crowd, worker)
    waiting = ask(router, crowd, "short", SHORT)
    until(waits(router, 1))
    assert sizes(worker) == ["long"], why
    worker.stop()
    assert waiting.result().status_code == 503


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},  # its first byte is its last: it may have been decoding for long
        {"echo": True},  # vLLM computes such a prompt as a whole, whatever is cached
        {"prompt_logprobs": 0},  # nor here
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"background": True},  # it goes on computing although the connection is closed
    ],
)
def test_some_requests_do_not_give_way(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, fields: dict[str, Any]
) -> None:
    """The worker would not go on with them where it was."""
    router = routed(route, worker)
    body = asked("long", LONG) | fields
    crowd.submit(httpx.post, router.url + PATH, json=body, timeout=30)
    until(lambda: len(worker.requests) == 1)
    waiting = ask(router, crowd, "short", SHORT)
    until(waits(router, 1))
    assert sizes(worker) == ["long"]
    worker.stop()
    assert waiting.result().status_code == 503


def test_no_more_often_than_it_may(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """After `limits.preemptions` times it keeps its worker, and short ones are held."""
    router = routed(route, worker, limits={"preemptions": 2})
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
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
    assert first.result().headers["x-warmroute-preempted"] == "2"
    assert reply.result().status_code == 200
    assert sizes(worker) == ["long", "short"] * 3
    until(router.idle)


def test_a_client_that_leaves_meanwhile(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub
) -> None:
    """Its request is not sent again, and nothing stays booked."""
    router = routed(route, worker)
    leaving, gate, reply = overtaken(router, crowd, worker)
    leaving.close()
    until(waits(router, 0))
    gate.opened.set()
    assert reply.result().status_code == 200
    until(router.idle)
    assert len(worker.requests) == 2


def test_a_worker_that_keeps_nothing_is_found_out(
    route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If requests find little of what they had got done, three in a row, none is preempted any
    more; one that finds it starts the count anew."""
    monkeypatch.setattr(Load, "spent", lambda *_: 2.0)
    router = routed(route, worker)
    for number, cached in enumerate((0, 0, 30_000, 0, 0, 0)):
        assert router.worker().keeps
        worker.script, before = Gate().script(), len(worker.requests)
        first = ask(router, crowd, f"long {number}", LONG)
        until(lambda count=before + 1: len(worker.requests) == count)  # type: ignore[misc]
        worker.script = answer(cached)
        assert short(router).status_code == 200
        assert first.result().headers["x-warmroute-preempted"] == "1"
        until(router.idle)
    assert not router.worker().keeps


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_a_simulated_engine_goes_on(
    route: MakeRouter, crowd: ThreadPoolExecutor, stack: ExitStack, strategy: str
) -> None:
    """The whole of it on an engine that computes: the long prompt's second attempt finds what the
    first had computed, which counts as no hit in the router's metrics."""
    settings = FleetSettings(speed=2.0, models=("m",), kv_events=False)
    fleet = stack.enter_context(FleetThread(settings))
    router = route(*fleet.urls, strategy=strategy)
    (engine,) = (one.engine for one in fleet.workers)
    until(lambda: router.worker().keeps)
    body = asked("long", LONG) | {"max_tokens": 2, "stream_options": {"include_usage": True}}
    first = crowd.submit(httpx.post, router.url + PATH, json=body, timeout=60)
    until(lambda: engine.cache.used > 100)
    assert short(router).status_code == 200
    assert not first.done()
    reply = first.result()
    assert reply.headers["x-warmroute-preempted"] == "1"
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line[:7] == "data: {"]
    usage = events[-1]["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < usage["prompt_tokens"]
    until(router.idle)
    assert router.metric("warmroute_cached_tokens_total", pool=router.door.fleet.pools[0].name) == 0
