"""A client that leaves, at every point of a request: the worker stops, and nobody is blamed."""

import gc
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from router.connection import Connection
from router.openai import ENDPOINTS, Endpoint
from tests.support import Action, MakeRouter, MakeStub, Router, Stub, head, post, send, until

CHAT = "/v1/chat/completions"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","choices":[]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
#: No timeout and no probe of ours ends anything within a test.
PATIENT = {
    "timeouts": {"connect": "1m", "first_byte": "10m", "idle": "10m"},
    "health": {"interval": "1h"},
}

Leave = Callable[[socket.socket], None]


def close(client: socket.socket) -> None:
    """Leave politely."""
    client.close()


def reset(client: socket.socket) -> None:
    """Leave as a process that was killed."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def chat(*, stream: bool) -> bytes:
    """A chat of one message."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return json.dumps(body).encode()


def counted(router: Router, family: str) -> dict[str, float]:
    """The values of a counter by its status or kind, over all workers."""
    found: dict[str, float] = {}
    for metric in router.door.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == f"warmroute_{family}_total":
                label = sample.labels.get("status") or sample.labels["kind"]
                found[label] = found.get(label, 0) + sample.value
    return found


def assert_gone(router: Router, worker: Stub | None = None) -> None:
    """The worker was let go, the leaving was counted once, and nobody was blamed."""
    if worker is not None:
        until(lambda: worker.closed_by_peer == 1)
        assert len(worker.requests) == 1
    until(router.idle)
    until(lambda: counted(router, "requests") == {"499": 1})
    assert counted(router, "refused_requests") == {}
    assert counted(router, "worker_errors") == {}
    assert all(each.ready for each in router.door.fleet.workers)
    assert all(each.upstream.idle == 0 for each in router.door.fleet.workers)


def heads_seen() -> int:
    """Open connections to workers on which the head of an answer has arrived, and not its end."""
    return sum(
        c._head is not None and not c._closed and not c._complete
        for c in gc.get_objects()
        if isinstance(c, Connection)
    )


@pytest.mark.parametrize("leave", [close, reset])
@pytest.mark.parametrize(
    "sent",
    [
        head(CHAT, 100),
        head(CHAT, 100) + b'{"model":"m",',
        b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{" % CHAT.encode(),
    ],
    ids=["no-body", "half-a-body", "half-a-chunk"],
)
def test_while_sending(stub: MakeStub, route: MakeRouter, sent: bytes, leave: Leave) -> None:
    """A client that leaves within its own request never reaches a worker."""
    worker = stub()
    router = route(worker.url, **PATIENT)
    leave(send(router.port, sent))
    until(lambda: counted(router, "refused_requests") == {"499": 1})
    assert counted(router, "requests") == {}
    assert worker.requests == []
    assert router.idle()
    assert router.http.post(CHAT, content=chat(stream=False)).status_code == 200


@contextmanager
def unreachable(worker: Stub) -> Iterator[None]:
    """In place of the stub a socket that accepts nobody: connecting to it takes for ever."""
    host, port = worker.url.removeprefix("http://").split(":")
    worker.stop()
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind((host, int(port)))
        full.listen(0)
        for _ in range(8):  # one fits the queue, the next ones show that it is full
            knock = stack.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex((host, int(port)))
        yield


@pytest.mark.parametrize("leave", [close, reset])
@pytest.mark.parametrize("stream", [True, False])
def test_while_connecting(stub: MakeStub, route: MakeRouter, stream: bool, leave: Leave) -> None:
    """A client that leaves before the worker has accepted takes the attempt with it."""
    worker = stub()
    router = route(worker.url, **PATIENT)
    with unreachable(worker):
        client = post(router.port, CHAT, chat(stream=stream))
        until(lambda: router.worker().load.in_flight == 1)
        leave(client)
        assert_gone(router)


def request_to(endpoint: Endpoint, *, stream: bool) -> tuple[bytes, list[bytes]]:
    """A body that the endpoint takes, and the header fields it needs."""
    if endpoint.form:
        form = (
            b'--xx\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
            b'--xx\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
            b"\x00\x01\x02\r\n--xx--\r\n"
        )
        return form, [b"content-type: multipart/form-data; boundary=xx"]
    fields = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    return json.dumps({"model": "m", "stream": stream, **fields}).encode(), []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda endpoint: endpoint.path)
def test_before_the_answer(
    stub: MakeStub, route: MakeRouter, endpoint: Endpoint, stream: bool
) -> None:
    """On every path, a client that leaves while the worker computes makes it stop."""
    worker = stub(["stall"])
    router = route(worker.url, **PATIENT)
    body, fields = request_to(endpoint, stream=stream)
    client = post(router.port, endpoint.path, body, *fields)
    until(lambda: len(worker.requests) == 1)
    assert worker.closed_by_peer == 0
    client.close()
    assert_gone(router, worker)


@pytest.mark.parametrize("leave", [close, reset])
@pytest.mark.parametrize("answer", [SSE, WHOLE], ids=["stream", "whole"])
def test_after_the_head(stub: MakeStub, route: MakeRouter, answer: bytes, leave: Leave) -> None:
    """The worker has sent its header, and no byte of a body yet."""
    worker = stub([answer, "stall"])
    router = route(worker.url, **PATIENT)
    client = post(router.port, CHAT, chat(stream=answer == SSE))
    until(heads_seen)
    leave(client)
    assert_gone(router, worker)


@pytest.mark.parametrize("leave", [close, reset])
@pytest.mark.parametrize(
    ("answer", "piece"), [(SSE + CHUNK, EVENT), (WHOLE + b"{" * 500, b"{" * 500)],
    ids=["stream", "whole"],
)  # fmt: skip
def test_in_the_middle(
    stub: MakeStub, route: MakeRouter, answer: bytes, piece: bytes, leave: Leave
) -> None:
    """A client that has read half of its answer does not need the rest."""
    worker = stub([answer, "stall"])
    router = route(worker.url, **PATIENT)
    client = post(router.port, CHAT, chat(stream=answer.startswith(SSE)))
    got = b""
    while piece not in got:
        got += client.recv(65536)
    leave(client)
    assert_gone(router, worker)


def test_while_the_worker_sends(stub: MakeStub, route: MakeRouter) -> None:
    """An answer that never pauses is stopped as well."""
    endless: list[Action] = [CHUNK, 0.001] * 20_000
    worker = stub([SSE, *endless])
    router = route(worker.url, **PATIENT)
    client = post(router.port, CHAT, chat(stream=True))
    assert client.recv(65536)
    client.close()
    until(router.idle)
    until(lambda: counted(router, "requests") == {"499": 1})
    assert counted(router, "worker_errors") == {}


def test_a_client_that_stopped_reading(stub: MakeStub, route: MakeRouter) -> None:
    """One that left after it had been held back by its own slowness is noticed too."""
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    worker = stub([SSE, *[piece] * 2000])
    router = route(worker.url, **PATIENT)
    client = post(router.port, CHAT, chat(stream=True))
    until(lambda: any(c._paused for c in gc.get_objects() if isinstance(c, Connection)))
    client.close()
    until(router.idle)
    until(lambda: counted(router, "requests") == {"499": 1})
    assert counted(router, "worker_errors") == {}


def test_at_the_second_worker(stub: MakeStub, route: MakeRouter) -> None:
    """A client that leaves after a failover is counted on the worker that was at work."""
    full, slow = stub([FULL]), stub(["stall"])
    router = route(full.url, slow.url, strategy="roundrobin", **PATIENT)
    client = post(router.port, CHAT, chat(stream=True))
    until(lambda: len(slow.requests) == 1)
    client.close()
    until(lambda: slow.closed_by_peer == 1)
    until(router.idle)
    assert counted(router, "requests") == {"499": 1}
    assert counted(router, "worker_errors") == {"full": 1}
    assert all(each.ready for each in router.door.fleet.workers)


def test_nobody_is_asked_in_place_of_the_first(stub: MakeStub, route: MakeRouter) -> None:
    """A client that is gone is not a reason to try another worker."""
    first, second = stub(["stall"]), stub(["stall"])
    router = route(first.url, second.url, strategy="roundrobin", **PATIENT)
    client = post(router.port, CHAT, chat(stream=False))
    until(lambda: first.requests or second.requests)
    client.close()
    until(router.idle)
    assert len(first.requests) + len(second.requests) == 1


def test_a_crowd_that_leaves(stub: MakeStub, route: MakeRouter) -> None:
    """Fifty clients leave at once: fifty connections are closed, and fifty are counted."""
    workers = [stub(["stall"]), stub(["stall"])]
    router = route(*(worker.url for worker in workers), **PATIENT)
    clients = [post(router.port, CHAT, chat(stream=bool(number % 2))) for number in range(50)]
    until(lambda: sum(len(worker.requests) for worker in workers) == 50)
    for client in clients:
        client.close()
    until(lambda: sum(worker.closed_by_peer for worker in workers) == 50)
    until(router.idle)
    assert counted(router, "requests") == {"499": 50}
    assert counted(router, "worker_errors") == {}


def test_leaving_after_the_end_is_not_leaving(stub: MakeStub, route: MakeRouter) -> None:
    """A client that closes once it has its answer was served, and the connection is kept."""
    worker = stub()
    router = route(worker.url, **PATIENT)
    for number in range(10):
        with post(router.port, CHAT, chat(stream=False), b"connection: close") as client:
            while client.recv(65536):
                pass
        until(lambda done=number + 1: counted(router, "requests") == {"2xx": done})  # type: ignore[misc]
    until(router.idle)
    assert router.worker().upstream.idle == 1
    assert counted(router, "refused_requests") == {}
