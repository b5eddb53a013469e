"""Requests and answers are relayed unchanged."""

import hashlib
import os
import re

import pytest

from tests.support import Action, MakeRouter, MakeStub, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(body: bytes, *headers: bytes) -> list[Action]:
    """A complete answer with a Content-Length."""
    lines = [b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *headers, b"", b""]
    return [b"\r\n".join(lines) + body]


def test_body_passes_byte_for_byte(stub: MakeStub, route: MakeRouter) -> None:
    """A megabyte of random bytes arrives unchanged, with its Content-Length."""
    body = os.urandom(1 << 20)
    router = route(stub(answer(body)).url)
    reply = router.http.post("/v1/chat/completions", json=CHAT)
    assert hashlib.sha256(reply.content).digest() == hashlib.sha256(body).digest()
    assert reply.headers["content-length"] == str(len(body))


def test_request_body_passes_byte_for_byte(stub: MakeStub, route: MakeRouter) -> None:
    """The worker gets exactly the client's bytes, odd spacing and query included."""
    worker = stub()
    router = route(worker.url)
    raw = b'{ "model":"m",\n  "messages": [ {"role":"user", "content":"\\u00e9"} ], "x":  1e3}'
    assert router.http.post("/v1/chat/completions?a=1&b=%20", content=raw).status_code == 200
    assert worker.requests[0].startswith(b"POST /v1/chat/completions?a=1&b=%20 HTTP/1.1\r\n")
    assert worker.requests[0].endswith(b"\r\n\r\n" + raw)


def test_chunked_request_is_given_a_length(stub: MakeStub, route: MakeRouter) -> None:
    """A chunked request body reaches the worker with a Content-Length instead."""
    worker = stub()
    router = route(worker.url)
    pieces = iter([b'{"model":"m",', b'"prompt":"hi"}'])
    assert router.http.post("/v1/completions", content=pieces).status_code == 200
    head, _, body = worker.requests[0].partition(b"\r\n\r\n")
    assert body == b'{"model":"m","prompt":"hi"}'
    assert b"content-length: 27" in head
    assert b"transfer-encoding" not in head


@pytest.mark.parametrize("end", ["length", "chunks", "close"])
def test_every_framing_of_an_answer(stub: MakeStub, route: MakeRouter, end: str) -> None:
    """Answers that end by length, by chunks or by a close all arrive complete."""
    scripts: dict[str, list[Action]] = {
        "length": answer(b"hello"),
        "chunks": [
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"hel"),
            0.01,
            chunked(b"lo") + b"0\r\n\r\n",
        ],
        "close": [b"HTTP/1.1 200 OK\r\n\r\nhel", 0.01, b"lo", "close"],
    }
    router = route(stub(scripts[end]).url)
    assert router.http.post("/v1/chat/completions", json=CHAT).content == b"hello"
    until(router.idle)


def test_events_pass_as_they_come(stub: MakeStub, route: MakeRouter) -> None:
    """The first event reaches the client before the worker has sent the second."""
    router = route(stub([SSE + chunked(b"data: 1\n\n"), "stall"]).url)
    with router.http.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
        assert next(reply.iter_raw()) == b"data: 1\n\n"
    until(router.idle)


def test_hop_by_hop_headers_stay_behind(stub: MakeStub, route: MakeRouter) -> None:
    """In both directions, hop-by-hop fields and those named by Connection stay behind."""
    hop = [b"keep-alive: timeout=5", b"proxy-connection: a", b"trailer: x-b", b"upgrade: h2c"]
    worker = stub(
        answer(b"x", *hop, b"connection: x-hop, X-Too", b"x-hop: 1", b"x-too: 1", b"x-end: 2")
    )
    router = route(worker.url)
    sent = {
        "connection": "X-Private",
        "x-private": "1",
        "te": "trailers",
        "keep-alive": "timeout=5",
        "upgrade": "h2c",
        "proxy-authorization": "Basic eA==",
        "authorization": "Bearer client",
        "x-custom": "kept",
    }
    reply = router.http.post("/v1/chat/completions", json=CHAT, headers=sent)
    got = worker.requests[0].lower()
    for gone in (b"x-private", b"\r\nte:", b"proxy-authorization", b"keep-alive", b"upgrade"):
        assert gone not in got
    assert b"x-custom: kept" in got
    assert b"authorization: bearer client" in got
    assert b"via: 1.1 warmroute" in got
    for name in ("x-hop", "x-too", "keep-alive", "proxy-connection", "trailer", "upgrade"):
        assert name not in reply.headers
    assert reply.headers.get("connection", "keep-alive") == "keep-alive"
    assert reply.headers["x-end"] == "2"


def test_worker_key_replaces_the_clients(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configured worker key replaces the client's own key."""
    monkeypatch.setenv("WORKER_KEY", "s3cret")
    worker = stub()
    router = route({"url": worker.url, "api_key": "${WORKER_KEY}"})
    router.http.post("/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer mine"})
    assert b"authorization: Bearer s3cret" in worker.requests[0]
    assert b"mine" not in worker.requests[0]


@pytest.mark.parametrize(
    ("sent", "kept"), [("abc-1.2_3", True), ("a b", False), ("x" * 200, False), ("é", False)]
)
def test_request_id_in_out_and_upstream(
    stub: MakeStub, route: MakeRouter, sent: str, kept: bool
) -> None:
    """A valid request id is kept, any other is replaced; client and worker see the same one."""
    worker = stub()
    reply = route(worker.url).http.post(
        "/v1/chat/completions", json=CHAT, headers={b"x-request-id": sent.encode("latin-1")}
    )
    identity = reply.headers["x-request-id"]
    assert (identity == sent) is kept
    assert f"x-request-id: {identity}\r\n".encode() in worker.requests[0]


def test_decision_is_told(stub: MakeStub, route: MakeRouter) -> None:
    """Answer headers name the worker, the reason, the tokens held and the predicted wait."""
    router = route({"url": stub().url, "name": "gpu-1"})
    long = {"model": "m", "messages": [{"role": "user", "content": "word " * 1000}]}
    first = router.http.post("/v1/chat/completions", json=long)
    again = router.http.post("/v1/chat/completions", json=long)
    assert first.headers["x-warmroute-worker"] == "gpu-1"
    assert first.headers["x-warmroute-decision"].startswith("cold; held=0; wait=")
    assert re.match(r"prefix; held=[1-9]\d+; wait=", again.headers["x-warmroute-decision"])


def test_only_the_router_speaks_of_its_decision(stub: MakeStub, route: MakeRouter) -> None:
    """What a worker says under those names stays behind: it may be a router itself."""
    names = ("worker", "decision", "preempted", "session")
    fields = [b"x-warmroute-%b: theirs" % name.encode() for name in names]
    reply = route(stub(answer(b"x", *fields)).url).http.post("/v1/chat/completions", json=CHAT)
    assert [reply.headers.get(f"x-warmroute-{name}") for name in names[2:]] == [None] * 2
    assert not any("theirs" in value for value in reply.headers.values())


def test_connections_to_workers_are_reused(stub: MakeStub, route: MakeRouter) -> None:
    """Ten requests in a row use one connection to the worker."""
    worker = stub()
    router = route(worker.url, health={"interval": "1h"})
    before = worker.connections
    for _ in range(10):
        assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert worker.connections == before + 1


def test_interim_answers_are_dropped(stub: MakeStub, route: MakeRouter) -> None:
    """Interim answers such as 103 Early Hints are dropped."""
    script = [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", *answer(b"real")]
    reply = route(stub(script).url).http.post("/v1/chat/completions", json=CHAT)
    assert (reply.status_code, reply.content) == (200, b"real")
