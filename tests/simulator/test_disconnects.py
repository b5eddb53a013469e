"""Clients that disconnect, and workers that are full."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.worker import SimulatedWorker
from tests.support import until

Start = Callable[..., FleetThread]

#: With its answer of 15,000 tokens, too much for a cache of 16,384 tokens if a prompt of 16,000
#: other tokens is running as well.
FIRST = list(range(10**6, 10**6 + 1000))

BUSY = {
    "error": {
        "message": "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }
}


def ask(worker: SimulatedWorker, **body: Any) -> socket.socket:
    """Return a connection on which a long completion was requested."""
    connection = socket.create_connection((worker.settings.host, worker.port))
    content = json.dumps({"prompt": FIRST, "max_tokens": 15_000, **body}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: %d\r\n\r\n"
    connection.sendall(head % len(content) + content)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_decoding_frees_the_engine(start: Start, stream: bool) -> None:
    """Streamed or not, its request is aborted at once."""
    (worker,) = start().workers
    with ask(worker, stream=stream):
        until(lambda: worker.engine.totals.generation_tokens > 3)
        assert worker.engine.running == 1
    until(lambda: worker.engine.running == 0)
    assert worker.engine.cache.used == 0
    assert worker.engine.totals.generation_tokens < 15_000


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_is_forgotten(start: Start, stream: bool) -> None:
    """A queued request is dropped without ever running."""
    (worker,) = start(kv_tokens=16_384).workers
    with ask(worker) as first:
        until(lambda: worker.engine.running == 1)
        prompt = list(range(16_000))
        with ask(worker, prompt=prompt, max_tokens=5, stream=stream):
            until(lambda: worker.engine.waiting == 1)
        until(lambda: worker.engine.waiting == 0)
        assert worker.engine.running == 1
        first.close()
    until(lambda: worker.engine.running == 0)


def test_a_full_queue_answers_503(start: Start) -> None:
    """The error is worded as in vLLM, streamed or not, and the refused requests leave nothing
    behind."""
    (worker,) = start(kv_tokens=16_384, max_queued=1).workers
    with ask(worker), ThreadPoolExecutor() as pool:
        until(lambda: worker.engine.running == 1)
        body = {"prompt": list(range(16_000)), "max_tokens": 1}
        url = f"{worker.url}/v1/completions"
        with ask(worker, **body):
            until(lambda: worker.engine.waiting == 1)
            for stream in (True, False):
                answer = pool.submit(httpx.post, url, json={**body, "stream": stream}).result()
                assert (answer.status_code, answer.json()) == (503, BUSY)
            assert worker.engine.waiting == 1
            assert worker.engine.totals.rejected == 2
