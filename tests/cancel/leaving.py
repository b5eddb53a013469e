"""Clients that disconnect, and what must be true of the router afterwards."""

import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS, Endpoint, Prompted
from router.fleet.worker import Worker
from tests.support import Router, Stub, accepting_nobody, until

CHAT = "/v1/chat/completions"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","choices":[]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
#: OpenAI's and vLLM's own paths, and SageMaker's, whose answers the router may re-encode.
PATHS = [
    *ENDPOINTS.values(),
    *(
        Endpoint(path, Prompted.CHAT, answers=True)
        for path in (
            "/invocations",
            "/endpoints/e/invocations",
            "/endpoints/e/invocations-response-stream",
            "/endpoints/e/openai/v1/chat/completions",
        )
    ),
]
#: One of each kind: a stream of each API, a list of inputs, an upload, and SageMaker's two forms.
_KINDS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/generate",
        "/v1/embeddings",
        "/rerank",
        "/v1/audio/transcriptions",
        "/invocations",
        "/endpoints/e/invocations-response-stream",
    )
)
everywhere = pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param(each, id=each.path, marks=() if each.path in _KINDS else pytest.mark.long)
        for each in PATHS
    ],
)
#: No timeout and no probe of the router ends anything during a test.
PATIENT: dict[str, Any] = {
    "timeouts": {"connect": "1m", "first_byte": "10m", "idle": "10m", "queue": "10m"},
    "health": {"interval": "1h", "timeout": "10s"},
}

Leave = Callable[[socket.socket], None]


def close(client: socket.socket) -> None:
    """Close the connection normally."""
    client.close()


def reset(client: socket.socket) -> None:
    """Close the connection with a TCP reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: socket.socket) -> None:
    """Close the sending side only; this router, like nginx, treats that as a disconnect."""
    client.shutdown(socket.SHUT_WR)


def chat(*, stream: bool, model: str = "m") -> bytes:
    """A chat request with one message."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return json.dumps(body).encode()


def request_to(
    endpoint: Endpoint, *, stream: bool, model: str = "m", text: str = "x"
) -> tuple[bytes, list[bytes]]:
    """A body that the endpoint accepts, and the header fields it needs."""
    if endpoint.form:
        parts = (
            f'form-data; name="model"\r\n\r\n{model}',
            f'form-data; name="stream"\r\n\r\n{str(stream).lower()}',
            f'form-data; name="file"; filename="a.wav"\r\n\r\n{text}',
        )
        form = "".join(f"--xx\r\ncontent-disposition: {part}\r\n" for part in parts) + "--xx--\r\n"
        return form.encode(), [b"content-type: multipart/form-data; boundary=xx"]
    fields = {"messages": [{"role": "user", "content": text}], "prompt": text, "input": text}
    return json.dumps({"model": model, "stream": stream, **fields}).encode(), []


def counted(router: Router, family: str) -> Counter[str]:
    """A counter's values by status or kind, summed over all workers, without zeros."""
    found: Counter[str] = Counter()
    for metric in router.door.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == f"warmroute_{family}_total":
                found[sample.labels.get("status") or sample.labels["kind"]] += int(sample.value)
    return +found


def assert_blameless(worker: Worker) -> None:
    """Check that no failure was counted against the worker."""
    assert worker.ready
    assert worker.breaker.closed


def assert_gone(router: Router, worker: Stub | None = None) -> None:
    """Check that the worker was released, one 499 was counted, and no worker was blamed."""
    if worker is not None:
        until(lambda: worker.closed_by_peer == 1)
        assert len(worker.requests) == 1
    until(router.idle)
    until(lambda: counted(router, "requests") == {"499": 1})
    assert counted(router, "refused_requests") == {}
    assert counted(router, "worker_errors") == {}
    for each in router.door.fleet.workers:
        assert_blameless(each)
        assert each.upstream.idle == 0


def head_seen(worker: Worker) -> bool:
    """Return true once the head of an answer of this worker has arrived."""
    with suppress(AssertionError):  # it has not
        return any(connection.head for connection in tuple(worker.upstream.in_use))
    return False


@contextmanager
def unreachable(worker: Stub) -> Iterator[Callable[[], int]]:
    """Replace the stub with a socket that never accepts: connecting to it takes forever.

    Yield a function that returns how many connections to it are still being established.
    """
    host, port = worker.url.removeprefix("http://").split(":")
    worker.stop()
    with accepting_nobody(host, int(port)) as others:
        yield lambda: len(_connecting(host, int(port)) - others)


def _connecting(host: str, port: int) -> set[int]:
    """The local ports of connections that are being established to that address."""
    address = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    remote, syn_sent = f"{address:08X}:{port:04X}", "02"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[2:4] == [remote, syn_sent]}
