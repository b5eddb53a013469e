"""SSE comments while a worker is silent, so that no proxy takes the stream for dead."""

import openai
import pytest

from tests.comments.talk import (
    BODY,
    EVENTS,
    HEAD,
    OFTEN,
    PATH,
    QUIET,
    STREAM,
    TEXT,
    Gate,
    Talk,
    chunk,
    commented,
)
from tests.support import OK, MakeRouter, MakeStub, head, post, read_all, until


def test_the_answer_follows_unchanged(stub: MakeStub, route: MakeRouter) -> None:
    """After the comments come every byte of the worker's stream, and its end."""
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
    """The next answer begins where this one ends."""
    gate = Gate(stub, STREAM)
    router = route(gate.worker.url, **OFTEN)
    body = b'{"model":"m","stream":true,"prompt":"x"}'
    with post(router.port, PATH, body) as client:
        until(lambda: commented(router))
        client.sendall(head(PATH, len(body), b"connection: close") + body)
        gate.open()
        data = read_all(client)
    assert data.count(b"HTTP/1.1 200 OK\r\n") == 2
    first, _, second = data.partition(b"\r\n0\r\n\r\n")
    assert first.endswith(EVENTS[-1])
    assert second.startswith(b"HTTP/1.1 200 OK\r\n")


def test_the_official_client(stub: MakeStub, route: MakeRouter) -> None:
    """OpenAI's client returns the words and ignores the comments."""
    worker = stub()
    router = route(worker.url, **OFTEN)
    worker.script = [lambda: commented(router), *STREAM]
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert tuple(chunk.choices[0].delta.content for chunk in stream) == TEXT


@pytest.mark.parametrize("said", [b"true", b"True"])
def test_a_form_that_asks_for_a_stream(stub: MakeStub, route: MakeRouter, said: bytes) -> None:
    """Transcriptions are asked for by forms, and can be streams too."""
    gate = Gate(stub, STREAM)
    router = route(gate.worker.url, **OFTEN)
    field = b'--xx\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    form = field % (b"model", b"m") + field % (b"stream", said) + b"--xx--\r\n"
    fields = (b"content-type: multipart/form-data; boundary=xx", b"connection: close")
    with post(router.port, "/v1/audio/transcriptions", form, *fields) as client:
        until(lambda: commented(router))
        gate.open()
        assert EVENTS[-1] in read_all(client)
    assert router.metric("warmroute_first_byte_seconds_count", pool="default") == 1


def test_not_after_the_first_byte(stub: MakeStub, route: MakeRouter) -> None:
    """If the worker pauses within its answer, nothing is inserted."""
    worker = stub([HEAD + chunk(EVENTS[0]), 0.3, *map(chunk, EVENTS[1:]), b"0\r\n\r\n"])
    talk = Talk(route(worker.url, **OFTEN))
    assert talk.rest() == BODY


def test_not_before_it_is_time(stub: MakeStub, route: MakeRouter) -> None:
    """A quick answer has the worker's own header and not a byte more."""
    worker = stub(STREAM)
    talk = Talk(route(worker.url, timeouts={"comment": "1m"}, health=QUIET))
    assert talk.rest() == BODY
    assert talk.comments == 0
    assert talk.answer
    assert talk.answer.headers["x-warmroute-worker"] == worker.url[7:]


def test_not_in_an_answer_that_is_no_stream(stub: MakeStub, route: MakeRouter) -> None:
    """A JSON body cannot contain comments."""
    router = route(stub([0.3, *OK]).url, **OFTEN)
    talk = Talk(router, stream=False)
    assert isinstance(OK[0], bytes)
    assert talk.rest() == OK[0].partition(b"\r\n\r\n")[2]
    assert talk.answer
    assert talk.answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("timeouts", [{}, {"comment": "off"}], ids=["default", "off"])
def test_off(stub: MakeStub, route: MakeRouter, timeouts: dict[str, str]) -> None:
    """By default no comments are sent, and the answer is the worker's to the byte."""
    router = route(stub([0.3, *STREAM]).url, timeouts=timeouts, health=QUIET)
    talk = Talk(router)
    assert talk.rest() == BODY
    assert talk.comments == 0
