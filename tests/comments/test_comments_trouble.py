"""Failures after the first comment: the status has been sent, so an event reports the error."""

import openai
import pytest

from router.proxy.relay import MAX_QUOTED_BYTES
from tests.comments.talk import (
    BODY,
    EVENTS,
    FULL,
    HEAD,
    OFTEN,
    PATH,
    STREAM,
    Gate,
    Talk,
    chunk,
    commented,
    error_in,
)
from tests.support import Action, MakeRouter, MakeStub, post, read_all, until


@pytest.mark.parametrize("end", ["close", "reset", b"nonsense\r\n"])
@pytest.mark.parametrize(
    "path", [PATH, "/v1/completions", "/v1/responses", "/v1/messages", "/endpoints/e/invocations"]
)
def test_a_worker_that_fails(stub: MakeStub, route: MakeRouter, path: str, end: Action) -> None:
    """The error is an event in the format of the stream's API."""
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
    """Comments do not count as an answer, so `first_byte` still applies."""
    worker = stub(["stall"])
    settings = {**OFTEN, "timeouts": {"comment": "20ms", "first_byte": "300ms"}}
    router = route(worker.url, **settings)
    talk = Talk(router)
    assert error_in(talk.rest())["code"] == "worker_timeout"
    assert talk.comments > 1
    until(lambda: worker.closed_by_peer == 1)
    until(router.idle)


def test_those_who_wait_in_line(stub: MakeStub, route: MakeRouter) -> None:
    """They get comments, then the answer, or an error event if there is none."""
    gate = Gate(stub, STREAM)
    router = route(
        gate.worker.url,
        **{**OFTEN, "timeouts": {**OFTEN["timeouts"], "queue": "400ms"}},
        limits={"in_flight": 1, "queue": 1},
    )
    first = Talk(router)
    first.silence(1)
    second = Talk(router)
    second.silence(2)
    assert router.metric("warmroute_queue_length") == 1
    with post(router.port, PATH, b'{"stream":true}', b"connection: close") as refused:
        assert read_all(refused).startswith(b"HTTP/1.1 429 ")  # nothing was sent before
    assert error_in(second.rest())["code"] == "overloaded"
    third = Talk(router)
    third.silence(1)
    gate.open()
    assert first.rest() == BODY
    gate.worker.script = STREAM
    assert third.rest() == BODY
    until(router.idle)


@pytest.mark.parametrize("body", ["openai", "hyperpod"])
def test_one_who_gives_way(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """A tenant with the most waiting requests gives way to another, and gets an error event.

    Events have OpenAI's shape, whatever that of other answers.
    """
    names = ("MANY", "ONE")
    for name in names:
        monkeypatch.setenv(name, name * 8)
    gate = Gate(stub, STREAM)
    keys = [{"name": name.lower(), "key": f"${{{name}}}"} for name in names]
    limits = {"in_flight": 1, "queue": 2, "overflow": {"body": body}}
    router = route(gate.worker.url, auth={"keys": keys}, limits=limits, **OFTEN)
    many = [Talk(router, key="MANY" * 8) for _ in range(3)]
    for talk in many:
        talk.silence(1)
    one = Talk(router, key="ONE" * 8)
    one.silence(1)
    gate.open()
    told = [talk.rest() for talk in many]
    assert one.rest() == BODY
    (error,) = [error_in(data) for data in told if data != BODY]
    assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_a_worker_that_refuses(stub: MakeStub, route: MakeRouter, status: int) -> None:
    """Its status and message are passed on in an event."""
    body = b'{"error":{"message":"This model\'s maximum context length is 16 tokens"}}'
    gate = Gate(stub, [b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body])
    router = route(gate.worker.url, limits={"queue": 0}, **OFTEN)
    talk = Talk(router)
    talk.silence(1)
    gate.open()
    error = error_in(talk.rest())
    assert error["code"] == str(status)
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert str(status) in error["message"]
    assert "maximum context length is 16 tokens" in error["message"]
    until(router.idle)


@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize("end", ["whole", "close", "chunked"])
def test_a_worker_that_refuses_bit_by_bit(
    stub: MakeStub, route: MakeRouter, status: int, end: str
) -> None:
    """All that came of its error is passed on, at most so much; the connection is kept if it came
    to its end."""
    body = b'{"error":{"message":"This model\'s maximum context length is 16 tokens"}}'
    body += b" " * MAX_QUOTED_BYTES + b"never read"
    framing = b"content-length: %d" % len(body)
    pieces = [body[:7], body[7:30], body[30:]]
    if end == "chunked":
        framing, pieces = b"transfer-encoding: chunked", [*map(chunk, pieces), b"0\r\n\r\n"]
    script: list[Action] = [b"HTTP/1.1 %d X\r\n%b\r\n\r\n" % (status, framing)]
    for piece in pieces[: 2 if end == "close" else None]:
        script += [0.02, piece]
    gate = Gate(stub, [*script, *(["close"] if end == "close" else [])])
    router = route(gate.worker.url, limits={"queue": 0}, **OFTEN)
    talk = Talk(router)
    talk.silence(1)
    gate.open()
    error = error_in(talk.rest())
    assert error["code"] == str(status)
    assert error["message"].startswith(f'The worker answered {status}: {{"error":{{"message')
    assert ("context length is 16 tokens" in error["message"]) == (end != "close")
    assert len(error["message"]) < MAX_QUOTED_BYTES + 50
    until(router.idle)
    kept = len(router.worker().upstream._idle)
    assert kept == (end != "close")


def test_the_official_client_raises(stub: MakeStub, route: MakeRouter) -> None:
    """It raises the error, rather than returning an empty answer."""
    body = b'{"error":{"message":"too long"}}'
    refusal = b"HTTP/1.1 400 X\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    worker = stub()
    router = route(worker.url, **OFTEN)
    worker.script = [lambda: commented(router), refusal]
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError, match="too long"):
            list(stream)


def test_another_worker_is_asked(stub: MakeStub, route: MakeRouter) -> None:
    """Comments are not an answer, so a full worker can still be replaced by another."""
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
    """If a worker fails within its first event, the client still gets a well-formed error."""
    gate = Gate(stub, [HEAD + chunk(EVENTS[0][:20]), 0.05, end])
    router = route(gate.worker.url, **OFTEN)
    talk = Talk(router)
    talk.silence(1)
    gate.open()
    assert error_in(talk.rest())["code"] == "worker_failed"


def test_a_client_that_leaves(stub: MakeStub, route: MakeRouter) -> None:
    """It is noticed and counted, and the worker stops, as in any other stream."""
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
