"""Clients that disconnect from a simulated engine: its running and waiting requests end."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from simulator.worker import SimulatedWorker
from tests.support import MakeRouter, Router, post, until

TEXT = [{"role": "user", "content": "Tell me everything."}]
#: Requests whose answers would keep a toy worker busy for many seconds.
LONG: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TEXT, "max_tokens": 15_000, "ignore_eos": True},
    "/v1/completions": {"prompt": "All", "max_tokens": 15_000, "ignore_eos": True},
    "/v1/responses": {"input": "All", "max_output_tokens": 15_000},
    "/v1/messages": {"messages": TEXT, "max_tokens": 15_000},
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetThread]:
    """One slow worker: each token takes a tenth of a second."""
    settings = FleetSettings(profile="toy", models=("toy",), kv_events=False, speed=0.01)
    with FleetThread(settings) as started:
        yield started


@pytest.fixture(scope="module")
def router(fleet: FleetThread) -> Iterator[Router]:
    """The router in front of the fleet."""
    with ExitStack() as stack:
        started = Router({"workers": fleet.urls})
        stack.callback(started.stop)
        yield started


def rests(worker: SimulatedWorker) -> bool:
    """Whether nothing runs, nothing waits, and no KV block is in use."""
    engine = worker.engine
    return engine.running == engine.waiting == engine.cache.used == 0


@pytest.mark.parametrize(("path", "stream"), list(zip(LONG, (True, False) * 2, strict=True)))
def test_the_engine_stops(fleet: FleetThread, router: Router, path: str, stream: bool) -> None:
    """The engine drops a request while it decodes, streamed or not, on every generating path."""
    (worker,) = fleet.workers
    until(lambda: rests(worker))
    made = worker.engine.totals.generation_tokens
    body = json.dumps({"model": "toy", "stream": stream, **LONG[path]}).encode()
    with post(router.port, path, body) as client:
        until(lambda: worker.engine.totals.generation_tokens > made)
        assert worker.engine.running == 1
        if stream:
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
    until(lambda: rests(worker))
    until(router.idle)
    assert router.worker().ready


def test_the_engine_stops_during_prefill(fleet: FleetThread, router: Router) -> None:
    """The engine drops a request before it has produced a first token."""
    (worker,) = fleet.workers
    until(lambda: rests(worker))
    made = worker.engine.totals.generation_tokens
    body = {"model": "toy", "prompt": list(range(15_000)), "max_tokens": 5, "stream": True}
    with post(router.port, "/v1/completions", json.dumps(body).encode()):
        until(lambda: worker.engine.running == 1)
    until(lambda: rests(worker))
    assert worker.engine.totals.generation_tokens == made
    until(router.idle)


def test_the_queue_forgets(route: MakeRouter) -> None:
    """A request that waits in the engine is dropped without running; the one before it goes on.

    With `roundrobin`, because other strategies would hold the request in the router.
    """
    settings = FleetSettings(profile="toy", models=("toy",), kv_events=False, kv_tokens=16_384)
    with FleetThread(settings) as fleet:
        (worker,) = fleet.workers
        router = route(worker.url, strategy="roundrobin")
        body: dict[str, Any] = {"model": "toy", "max_tokens": 15_000, "ignore_eos": True}
        first = json.dumps({**body, "prompt": list(range(10**6, 10**6 + 1000))}).encode()
        with post(router.port, "/v1/completions", first):
            until(lambda: worker.engine.running == 1)
            second = json.dumps({**body, "prompt": list(range(16_000)), "max_tokens": 5}).encode()
            with post(router.port, "/v1/completions", second):
                until(lambda: worker.engine.waiting == 1)
            until(lambda: worker.engine.waiting == 0)
            assert worker.engine.running == 1
            assert router.worker().load.in_flight == 1
        until(lambda: rests(worker))
        until(router.idle)
