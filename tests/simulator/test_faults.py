"""Faults on demand, as clients experience them."""

import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from simulator.worker import SimulatedWorker
from tests.support import until

Start = Callable[..., FleetThread]

BODY = {"prompt": "hello", "max_tokens": 20}


def order(worker: SimulatedWorker, **fault: Any) -> None:
    """Activate a fault."""
    answer = httpx.post(f"{worker.url}/simulator/fault", json=fault)
    assert answer.status_code == 200, answer.text
    assert answer.json()["fault"]["kind"] == fault["kind"]


def complete(worker: SimulatedWorker, **more: Any) -> httpx.Response:
    """Return the response to a completion."""
    return httpx.post(f"{worker.url}/v1/completions", json={**BODY, **more})


def collect(answer: httpx.Response, got: bytearray) -> None:
    """Append the bytes of a response's body to `got` as they arrive."""
    for part in answer.iter_raw():
        got += part


def refused(worker: SimulatedWorker) -> bool:
    """Return whether a connection is refused."""
    try:
        socket.create_connection((worker.settings.host, worker.port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_an_error_befalls_as_many_requests_as_ordered(start: Start) -> None:
    """After `count` requests all is well again; other paths are not affected."""
    (worker,) = start().workers
    order(worker, kind="error", status=502, count=2)
    assert httpx.get(f"{worker.url}/health").status_code == 200
    assert [complete(worker).status_code for _ in range(3)] == [502, 502, 200]
    assert httpx.get(f"{worker.url}/simulator/fault").json() == {"fault": None}


def test_a_slow_worker_takes_its_time(start: Start) -> None:
    """The worker's clock is set slower by the factor, and back when the fault is cleared."""
    (worker,) = start().workers
    order(worker, kind="slow", factor=7)
    assert worker.clock.slowdown == 7
    assert complete(worker).status_code == 200
    httpx.delete(f"{worker.url}/simulator/fault")
    assert worker.clock.slowdown == 1


def test_garbage_is_not_http(start: Start) -> None:
    """A client cannot parse the response."""
    (worker,) = start().workers
    order(worker, kind="garbage", count=1)
    with pytest.raises(httpx.RemoteProtocolError):
        complete(worker)
    assert complete(worker).status_code == 200


def test_a_reset_may_come_before_the_status_line(start: Start) -> None:
    """Nothing was answered, so the request is safe to send elsewhere."""
    (worker,) = start().workers
    order(worker, kind="reset", count=2)
    url = f"{worker.url}/v1/completions"
    for stream in (True, False):
        body = {**BODY, "stream": stream}
        with pytest.raises(httpx.ReadError), httpx.stream("POST", url, json=body) as sent:
            pytest.fail(f"it was answered: {sent.status_code}")
    assert complete(worker).status_code == 200
    assert worker.engine.running == 0


@pytest.mark.parametrize("after", [0, 1, 100, 2000])
def test_a_stream_is_reset_after_so_many_bytes(start: Start, after: int) -> None:
    """Exactly `after_bytes` bytes of the body arrive, beginning like an undisturbed stream."""
    (worker,) = start().workers
    order(worker, kind="reset", after_bytes=after, count=1)
    url, got = f"{worker.url}/v1/completions", bytearray()
    with httpx.stream("POST", url, json={**BODY, "stream": True}) as sent:
        assert sent.status_code == 200
        with pytest.raises(httpx.ReadError):
            collect(sent, got)
    assert len(got) == after
    assert b'data: {"id":"cmpl-'.startswith(got[:18])
    until(lambda: worker.engine.running == 0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [None, 0, 30])
def test_a_stalled_answer_says_nothing_more(start: Start, after: int | None, stream: bool) -> None:
    """The connection stays open until the client gives up; then nothing of it is left."""
    (worker,) = start().workers
    order(worker, kind="stall", after_bytes=after)
    url, body, got = f"{worker.url}/v1/completions", {**BODY, "stream": stream}, bytearray()

    def listen() -> None:
        with httpx.stream("POST", url, json=body, timeout=0.2) as sent:
            assert after is not None, "there is a status line"
            collect(sent, got)

    with pytest.raises(httpx.ReadTimeout):
        listen()
    assert len(got) <= (after or 0)
    until(lambda: not worker.connections)
    assert worker.engine.running == 0


def test_a_worker_that_refuses_comes_back(start: Start) -> None:
    """The order itself is answered; then connections are refused for a while, and accepted again on
    the same port."""
    (worker,) = start().workers
    url = worker.url
    order(worker, kind="refuse", seconds=1)
    until(lambda: refused(worker))
    until(lambda: worker.fault is None and not refused(worker))
    assert worker.url == url
    assert complete(worker).status_code == 200


def test_a_restart_cuts_off_everything_and_forgets(start: Start) -> None:
    """Streams are reset, the cache is cold, and counters are zero."""
    (worker,) = start().workers
    prompt = list(range(64))
    complete(worker, prompt=prompt)
    old = worker.engine
    body = {"prompt": prompt, "max_tokens": 15_000, "stream": True}
    with httpx.stream("POST", f"{worker.url}/v1/completions", json=body) as running:
        assert running.status_code == 200
        order(worker, kind="restart", seconds=0.1)
        with pytest.raises(httpx.ReadError):
            running.read()
    until(lambda: worker.engine is not old and worker.fault is None and not refused(worker))
    assert worker.engine.totals.prompt_tokens == 0
    usage = complete(worker, prompt=prompt).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("kind", ["stall", "refuse", "restart", "slow"])
def test_a_fleet_stops_under_any_fault(kind: str) -> None:
    """It stops whatever fault is active, with a client still connected."""
    with FleetThread(FleetSettings(profile="toy", models=("toy",))) as fleet:
        (worker,) = fleet.workers
        connection = socket.create_connection((worker.settings.host, worker.port))
        order(worker, kind=kind, seconds=100)
        body = b'{"prompt":"a"}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: s\r\ncontent-length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)
    with connection, pytest.raises(ConnectionRefusedError):
        socket.create_connection((worker.settings.host, worker.port))
