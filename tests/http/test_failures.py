"""What clients get when workers fail."""

import json
from typing import Any

import httpx
import openai
import pytest

from router.proxy.relay import MAX_HELD_BYTES
from tests.support import Action, MakeRouter, MakeStub, Stub, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","choices":[]}\n\n'
FULL = b'{"error":{"message":"The engine is currently busy"}}'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: %d\r\n\r\n" % len(FULL) + FULL


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """Return the error object; check that it has OpenAI's four fields."""
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


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


def test_nobody_left(stub: MakeStub, route: MakeRouter) -> None:
    """If every worker refuses: 503 with Retry-After, and the router is not ready."""
    workers = [stub(), stub()]
    router = route(*(worker.url for worker in workers), health={"interval": "1h"})
    for worker in workers:
        worker.stop()
    reply = router.http.post("/v1/chat/completions", json=CHAT)
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) > 0
    assert error_of(reply)["code"] == "no_worker"
    assert router.http.get("/health/ready").status_code == 503
    assert router.http.get("/health/live").status_code == 200


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        ([b"SMTP ready\r\n"], 502, "garbled"),
        ([b"\x16\x03\x01\x00" * 50], 502, "garbled"),
        (
            [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
            502,
            "garbled",
        ),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n"], 502, "garbled"),
        (["close"], 502, "closed"),
        (["reset"], 502, "closed"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "close"], 502, "closed"),
        (["stall"], 504, "timeout"),
        ([SSE, "stall"], 504, "timeout"),
    ],
    ids=[
        "words",
        "tls",
        "upgrade",
        "huge-header",
        "close",
        "reset",
        "headless",
        "silent",
        "no-body",
    ],
)
def test_failures_before_the_first_byte(
    stub: MakeStub,
    route: MakeRouter,
    script: list[Action],
    status: int,
    kind: str,
) -> None:
    """The client gets an OpenAI error with a status, and no other worker is asked."""
    bad, good = stub(script), stub()
    router = route(
        bad.url,
        good.url,
        strategy="roundrobin",
        timeouts={"first_byte": "1s" if status == 504 else "30s"},
        health={"interval": "1h"},
    )
    reply = router.http.post("/v1/chat/completions", json=CHAT)
    assert reply.status_code == status
    assert error_of(reply)["type"] == "server_error"
    assert good.requests == []
    assert router.metric("warmroute_worker_errors_total", **_labels(bad, kind)) == 1
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


def test_openai_client_raises_on_a_broken_stream(stub: MakeStub, route: MakeRouter) -> None:
    """OpenAI's client raises an error instead of accepting half an answer."""
    router = route(stub([SSE, chunk(EVENT), 0.05, "reset"]).url)
    with openai.OpenAI(base_url=router.url + "/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError, match="failed in the middle"):
            list(stream)


def test_messages_stream_breaks_in_its_own_shape(stub: MakeStub, route: MakeRouter) -> None:
    """On `/v1/messages` the error is a named event, as all events are there."""
    router = route(stub([SSE, chunk(b"event: ping\ndata: {}\n\n"), 0.05, "close"]).url)
    text = router.http.post("/v1/messages", json=CHAT).content
    assert text.split(b"\n\n")[1].startswith(b'event: error\ndata: {"type":"error","error":{')


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


def test_an_event_in_pieces_arrives_whole(stub: MakeStub, route: MakeRouter) -> None:
    """However a worker splits its events, no byte is lost or changed."""
    long = b"data: " + b"x" * 200_000
    pieces = [
        b"da",
        b'ta: {"id"',
        b':"1"}\n',
        b"\n: comment\r\n\r\nda",
        b"ta: 2\n\n",
        long,
        b"\n\nend",
    ]
    pieces.append(b"\n\nend")
    script: list[Action] = [SSE]
    for piece in pieces:
        script += [chunk(piece), 0.01]
    router = route(stub([*script, b"0\r\n\r\n"]).url)
    assert router.http.post("/v1/chat/completions", json=CHAT).content == b"".join(pieces)


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
    assert router.metric("warmroute_worker_errors_total", **_labels(full, "full")) > 0


def test_when_all_are_full_the_client_hears_it(stub: MakeStub, route: MakeRouter) -> None:
    """If all workers are full and none may wait, the last one's own 503 is relayed."""
    router = route(stub([BUSY]).url, stub([BUSY]).url, limits={"queue": 0})
    reply = router.http.post("/v1/chat/completions", json=CHAT)
    assert (reply.status_code, reply.content) == (503, FULL)


def test_attempts_are_bounded(stub: MakeStub, route: MakeRouter) -> None:
    """At most `limits.attempts` workers are asked."""
    workers = [stub([BUSY]) for _ in range(4)]
    router = route(*(w.url for w in workers), limits={"attempts": 2, "queue": 0})
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 503
    assert sum(len(w.requests) for w in workers) == 2


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


def test_workers_that_are_not_up_yet_do_not_stop_the_start(
    route: MakeRouter, dead_url: str
) -> None:
    """Without a worker the router starts, is live but not ready, and answers 503, not 404."""
    router = route(dead_url)
    assert router.http.get("/health/live").status_code == 200
    assert router.http.get("/health/ready").json()["status"] == "down"
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 503
