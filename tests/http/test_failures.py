"""What clients get when workers fail."""

import json

import httpx
import pytest

from router.proxy.relay import MAX_HELD_BYTES
from tests.cancel.leaving import counted
from tests.support import Action, MakeRouter, MakeStub, Stub, error_of, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","choices":[]}\n\n'
FULL = b'{"error":{"message":"The engine is currently busy"}}'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n" % len(FULL) + FULL


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_a_refusal_costs_nothing(stub: MakeStub, route: MakeRouter) -> None:
    """If a worker refuses connections, the next one answers, and the first gets no more."""
    first, second = stub(), stub()
    router = route(first.url, second.url, strategy="roundrobin", health={"interval": "1h"})
    first.stop()
    replies = [router.http.post("/v1/chat/completions", json=CHAT) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200] * 4
    assert len(second.requests) == 4
    assert router.http.get("/workers").json()[0]["state"] == "down"
    assert router.metric("warmroute_worker_errors_total", **_labels(first, "connect")) == 1
    until(router.idle)


def _labels(worker: Stub, kind: str) -> dict[str, str]:
    return {"pool": "default", "worker": worker.url[7:], "kind": kind}


#: What a worker does before the first byte of a body, and what the client and operators are told.
EARLY: dict[str, tuple[list[Action], int, str]] = {
    "words": ([b"SMTP ready\r\n"], 502, "garbled"),
    "upgrade": (
        [b"HTTP/1.1 101 No\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
        502,
        "garbled",
    ),
    "huge header": ([b"HTTP/1.1 200 OK\r\nx: ", *[b"a" * 65536] * 100], 502, "garbled"),
    "no status": ([b"HTTP/1.1 700 What\r\ncontent-length: 0\r\n\r\n"], 502, "garbled"),
    "close": (["close"], 502, "closed"),
    "reset": (["reset"], 502, "closed"),
    "no body": ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", 0.05, "close"], 502, "closed"),
    "silence": (["stall"], 504, "timeout"),
    "silence after the head": ([SSE, "stall"], 504, "timeout"),
}


@pytest.mark.parametrize("how", EARLY)
def test_failures_before_the_first_byte(stub: MakeStub, route: MakeRouter, how: str) -> None:
    """The client gets an OpenAI error with a status, and no other worker is asked."""
    script, status, kind = EARLY[how]
    bad, good = stub(script), stub()
    router = route(
        bad.url,
        good.url,
        strategy="roundrobin",
        timeouts={"first_byte": "300ms" if status == 504 else "30s"},
        health={"interval": "1h"},
    )
    reply = router.http.post("/v1/chat/completions", json=CHAT)
    assert reply.status_code == status
    assert error_of(reply)["type"] == "server_error"
    assert good.requests == []
    assert router.metric("warmroute_worker_errors_total", **_labels(bad, kind)) == 1
    assert counted(router, "requests") == {}
    assert counted(router, "refused_requests") == {str(status): 1}
    until(router.idle)
    # The router still serves requests.
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize("death", ["close", "reset", "stall", "garbage"])
def test_stream_that_breaks_ends_with_an_error(
    stub: MakeStub, route: MakeRouter, death: str
) -> None:
    """After the first event the stream ends cleanly with an error event, and without [DONE]."""
    last: Action = b"not a chunk\r\n" if death == "garbage" else death
    router = route(stub([SSE, chunk(EVENT), 0.05, last]).url, timeouts={"idle": "300ms"})
    text = router.http.post("/v1/chat/completions", json={**CHAT, "stream": True}).content
    events = text.split(b"\n\n")
    assert events[0] + b"\n\n" == EVENT
    error = json.loads(events[1].removeprefix(b"data: "))["error"]
    assert error["code"] == "worker_failed"
    assert events[2:] == [b""]
    until(router.idle)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\r\n"])
def test_half_an_event_is_never_seen(stub: MakeStub, route: MakeRouter, end: bytes) -> None:
    """A partial event is held back; if it never ends, the error follows the last complete one."""
    whole, half = b'data: {"id":"1"}' + end, b'data: {"id":"2"}'
    router = route(stub([SSE, chunk(whole + half[:9]), 0.05, "close"]).url)
    text = router.http.post("/v1/chat/completions", json=CHAT).content
    assert text.startswith(whole + b'data: {"error"')


@pytest.mark.parametrize("first", [b"", EVENT], ids=["alone", "after another"])
def test_half_a_very_long_event_is_cut_off(stub: MakeStub, route: MakeRouter, first: bytes) -> None:
    """A very long event is not held back; if it breaks off, no error event can follow it."""
    half = b'data: {"text":"' + b"x" * (2 * MAX_HELD_BYTES)
    router = route(stub([SSE, chunk(first + half), 0.05, chunk(b"y"), 0.05, "close"]).url)
    read: list[bytes] = []
    stream = router.http.stream("POST", "/v1/chat/completions", json=CHAT)
    with stream as reply, pytest.raises(httpx.RemoteProtocolError):
        read.extend(reply.iter_raw())
    text = b"".join(read)
    assert text.startswith(first + half[:9])
    assert b"error" not in text


def test_after_a_very_long_event_an_error_can_follow(stub: MakeStub, route: MakeRouter) -> None:
    """After a very long event has ended, an error event can follow."""
    half = b'data: {"text":"' + b"x" * (2 * MAX_HELD_BYTES)
    router = route(stub([SSE, chunk(half), 0.05, chunk(b'"}\n\n'), 0.05, "close"]).url)
    text = router.http.post("/v1/chat/completions", json=CHAT).content
    assert text.startswith(half + b'"}\n\ndata: {"error"')


@pytest.mark.parametrize("death", ["close", "reset"])
def test_body_that_breaks_is_cut_not_completed(
    stub: MakeStub, route: MakeRouter, death: str
) -> None:
    """A JSON answer that breaks halfway reaches the client as a connection error."""
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 50
    router = route(stub([half, 0.05, death]).url)
    with pytest.raises(httpx.RemoteProtocolError):
        router.http.post("/v1/chat/completions", json=CHAT)
    until(router.idle)
    assert router.http.get("/health/live").status_code == 200


def test_a_full_worker_passes_the_request_on(stub: MakeStub, route: MakeRouter) -> None:
    """A worker's 503 is backpressure: another worker answers, and the full one stays ready."""
    full, free = stub([BUSY]), stub()
    router = route(full.url, free.url, strategy="roundrobin", health={"interval": "1h"})
    replies = [router.http.post("/v1/chat/completions", json=CHAT) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200] * 4
    assert len(free.requests) == 4
    assert router.worker(0).ready
    assert counted(router, "worker_errors") == {"full": len(full.requests)}
    assert counted(router, "requests") == {"2xx": 4}


def test_a_kept_connection_that_died_is_replaced(stub: MakeStub, route: MakeRouter) -> None:
    """If a worker closes an idle connection as a request arrives, the request is sent again."""
    worker = stub()
    router = route(worker.url, health={"interval": "1h"})
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    worker.close_next = True
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert len(worker.requests) == 3  # the second request was sent twice
    until(router.idle)


def test_a_new_connection_that_died_is_not_asked_again(stub: MakeStub, route: MakeRouter) -> None:
    """On a new connection the worker may have begun: the client gets 502; no second attempt."""
    worker = stub()
    router = route(worker.url, health={"interval": "1h"})
    worker.close_next = True
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 502
    assert len(worker.requests) == 1


def test_a_worker_dies_and_comes_back(stub: MakeStub, route: MakeRouter) -> None:
    """Probes notice that a worker is down and back; its prefixes are forgotten."""
    worker = stub()
    router = route(worker.url, health={"interval": "20ms"})
    long = {"model": "m", "messages": [{"role": "user", "content": "word " * 1000}]}
    router.http.post("/v1/chat/completions", json=long)
    worker.well = False
    until(lambda: not router.worker().ready)
    assert router.http.get("/workers").json()[0]["reason"] == "/health answered 500"
    assert router.http.post("/v1/chat/completions", json=long).status_code == 503
    worker.well = True
    until(lambda: router.worker().ready)
    reply = router.http.post("/v1/chat/completions", json=long)
    assert reply.headers["x-warmroute-decision"].startswith("cold")
