"""Comments while a worker is silent, so that nobody on the way takes a stream for dead."""

import json
import threading
from http.client import HTTPResponse
from typing import Any

import openai
import pytest

from router.events import COMMENT
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, post, read_all, until

PATH = "/v1/chat/completions"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TEXT = ("Once", " upon", " a", " time")
EVENTS = [
    b"data: %b\n\n"
    % json.dumps(
        {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
        }
    ).encode()
    for word in TEXT
] + [b"data: [DONE]\n\n"]
BODY = b"".join(EVENTS)
#: Often enough for a test; and the only probe is the first one.
OFTEN: dict[str, Any] = {"timeouts": {"comment": "20ms"}, "health": {"interval": "1h"}}
FULL: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM: list[Action] = [HEAD, *map(chunk, EVENTS), b"0\r\n\r\n"]


class Talk:
    """A client's request and what it has read of the answer."""

    def __init__(self, router: Router, path: str = PATH, *, stream: bool = True) -> None:
        body = {"model": "m", "stream": stream, "messages": [], "input": "x", "prompt": "x"}
        self.client = post(router.port, path, json.dumps(body).encode())
        self.answer: HTTPResponse | None = None
        self.comments = 0

    def silence(self, comments: int = 3) -> None:
        """Read the header and so many comments."""
        if self.answer is None:
            self.answer = HTTPResponse(self.client)
            self.answer.begin()
        for _ in range(comments):
            assert self.answer.read(len(COMMENT)) == COMMENT
            self.comments += 1

    def rest(self) -> bytes:
        """All that follows the comments."""
        if self.answer is None:
            self.answer = HTTPResponse(self.client)
            self.answer.begin()
        data = self.answer.read()
        while data.startswith(COMMENT):
            data = data.removeprefix(COMMENT)
            self.comments += 1
        self.leave()
        return data

    def leave(self) -> None:
        """Close the connection."""
        if self.answer is not None:
            self.answer.close()
        self.client.close()


def error_in(data: bytes) -> dict[str, Any]:
    """The error of a stream that is nothing else."""
    assert data.endswith(b"\n\n")
    (event,) = data.removesuffix(b"\n\n").split(b"\n\n")
    told = event.removeprefix(b"event: error\n").removeprefix(b"data: ")
    error: dict[str, Any] = json.loads(told)["error"]
    return error


class Gate:
    """A worker that is silent until it is opened."""

    def __init__(self, stub: MakeStub, then: list[Action]) -> None:
        self._opened = threading.Event()
        self.open = self._opened.set
        self.worker: Stub = stub([self._opened.is_set, *then])


def test_the_answer_follows_unchanged(stub: MakeStub, route: MakeRouter) -> None:
    """Comments, then every byte of the worker's stream, and its end."""
    gate = Gate(stub, STREAM)
    router = route(gate.worker.url, **OFTEN)
    talk = Talk(router)
    talk.silence()
    assert talk.answer
    assert talk.answer.status == 200
    assert talk.answer.headers["content-type"].startswith("text/event-stream")
    assert talk.answer.headers["x-request-id"]
    gate.open()
    assert talk.rest() == BODY
    until(router.idle)
    labels = {"pool": "default", "worker": router.worker().name}
    assert router.metric("warmroute_requests_total", **labels, status="2xx") == 1
    assert router.worker().upstream.idle == 1


def test_the_connection_can_be_used_again(stub: MakeStub, route: MakeRouter) -> None:
    """The next answer begins where this one has ended."""
    gate = Gate(stub, STREAM)
    router = route(gate.worker.url, **OFTEN)
    talk = Talk(router)
    talk.silence(1)
    talk.client.sendall(
        b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 13\r\n\r\n"
        b'{"model":"m"}' % PATH.encode()
    )
    gate.open()
    assert talk.answer
    talk.answer.read()
    assert read_all(talk.client).startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream")
    talk.leave()


def test_the_official_client(stub: MakeStub, route: MakeRouter) -> None:
    """It sees the words, and nothing of the comments."""
    gate = Gate(stub, STREAM)
    router = route(gate.worker.url, **OFTEN)
    commented = threading.Thread(
        target=lambda: (
            until(lambda: any(c._answering and c._answering.commented for c in _clients(router))),
            gate.open(),
        )
    )
    commented.start()
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert tuple(chunk.choices[0].delta.content for chunk in stream) == TEXT
    commented.join(10)
    assert not commented.is_alive()


def _clients(router: Router) -> tuple[Any, ...]:
    return tuple(router.door.clients)


@pytest.mark.parametrize("end", ["close", "reset", b"nonsense\r\n"])
@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_worker_that_fails(stub: MakeStub, route: MakeRouter, path: str, end: Action) -> None:
    """An event in the stream's own shape says so; there is no other answer any more."""
    gate = Gate(stub, [end])
    router = route({"url": gate.worker.url, "name": "w"}, **OFTEN)
    talk = Talk(router, path)
    talk.silence(2)
    gate.open()
    data = talk.rest()
    named = path in {"/v1/responses", "/v1/messages"}
    assert data.startswith(b"event: error\n") is named
    error = error_in(data)
    assert error["code"] == "worker_failed"
    assert "Worker w " in error["message"]
    until(router.idle)
    assert router.metric("warmroute_refused_requests_total", status="502") == 1


def test_a_worker_that_stays_silent(stub: MakeStub, route: MakeRouter) -> None:
    """Comments do not count as an answer: `first_byte` holds."""
    worker = stub(["stall"])
    settings = {**OFTEN, "timeouts": {"comment": "20ms", "first_byte": "300ms"}}
    router = route(worker.url, **settings)
    talk = Talk(router)
    assert error_in(talk.rest())["code"] == "worker_timeout"
    assert talk.comments > 1
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_a_worker_that_refuses(stub: MakeStub, route: MakeRouter, status: int) -> None:
    """Its status and its words are told in an event, as there is no other way any more."""
    body = b'{"error":{"message":"This model\'s maximum context length is 16 tokens"}}'
    gate = Gate(stub, [b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body])
    router = route(gate.worker.url, **OFTEN)
    talk = Talk(router)
    talk.silence(1)
    gate.open()
    error = error_in(talk.rest())
    assert error["code"] == str(status)
    assert str(status) in error["message"]
    assert "maximum context length is 16 tokens" in error["message"]
    until(router.idle)


def test_the_official_client_raises(stub: MakeStub, route: MakeRouter) -> None:
    """It does not take the silence before an error for an empty answer."""
    body = b'{"error":{"message":"too long"}}'
    refusal = b"HTTP/1.1 400 X\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    router = route(stub([0.2, refusal]).url, **OFTEN)
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError, match="too long"):
            list(stream)


def test_another_worker_is_asked(stub: MakeStub, route: MakeRouter) -> None:
    """Comments are no answer: a worker that was full gives way, and the stream goes on."""
    gate = Gate(stub, FULL)
    good = stub(STREAM)
    router = route(gate.worker.url, good.url, strategy="roundrobin", **OFTEN)
    talk = Talk(router)
    talk.silence(1)
    gate.open()
    assert talk.rest() == BODY
    assert len(good.requests) == 1


@pytest.mark.parametrize("end", ["close", "reset"])
def test_half_an_event_is_never_seen(stub: MakeStub, route: MakeRouter, end: str) -> None:
    """A worker that fails within its first event leaves an error that can be read."""
    gate = Gate(stub, [HEAD + chunk(EVENTS[0][:20]), 0.05, end])
    router = route(gate.worker.url, **OFTEN)
    talk = Talk(router)
    talk.silence(1)
    gate.open()
    assert error_in(talk.rest())["code"] == "worker_failed"


def test_a_client_that_leaves(stub: MakeStub, route: MakeRouter) -> None:
    """It is noticed, counted, and the worker stops, as in any other stream."""
    worker = stub(["stall"])
    router = route(worker.url, **OFTEN)
    talk = Talk(router)
    talk.silence(2)
    talk.leave()
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)
    labels = {"pool": "default", "worker": router.worker().name}
    until(lambda: router.metric("warmroute_requests_total", **labels, status="499") == 1)
    assert router.worker().breaker._failures == 0


def test_not_after_the_first_byte(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that pauses in its answer gets nothing put in between."""
    worker = stub([HEAD + chunk(EVENTS[0]), 0.3, *map(chunk, EVENTS[1:]), b"0\r\n\r\n"])
    talk = Talk(route(worker.url, **OFTEN))
    assert talk.rest() == BODY


def test_not_before_it_is_time(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that answers soon is relayed with its own header and not a byte more."""
    worker = stub(STREAM)
    talk = Talk(route(worker.url, timeouts={"comment": "1m"}, health={"interval": "1h"}))
    assert talk.rest() == BODY
    assert talk.comments == 0
    assert talk.answer
    assert talk.answer.headers["x-warmroute-worker"] == worker.url[7:]


def test_not_in_an_answer_that_is_no_stream(stub: MakeStub, route: MakeRouter) -> None:
    """A JSON body has no room for comments."""
    router = route(stub([0.3, *OK]).url, **OFTEN)
    talk = Talk(router, stream=False)
    assert isinstance(OK[0], bytes)
    assert talk.rest() == OK[0].partition(b"\r\n\r\n")[2]
    assert talk.answer
    assert talk.answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("timeouts", [{}, {"comment": "off"}], ids=["default", "off"])
def test_off(stub: MakeStub, route: MakeRouter, timeouts: dict[str, str]) -> None:
    """Unless told to, nothing is put in: the answer is the worker's to the byte."""
    router = route(stub([0.3, *STREAM]).url, timeouts=timeouts, health={"interval": "1h"})
    talk = Talk(router)
    assert talk.rest() == BODY
    assert talk.comments == 0
