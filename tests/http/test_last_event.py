"""A stream's last event completes it, whatever the connection to the worker does next."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from tests.authority import Authority
from tests.cancel.leaving import assert_blameless, counted, request_to
from tests.sdk.documents import DONE, STREAM_END, STREAM_HEAD, chunk, event
from tests.support import Action, MakeRouter, MakeStub, Router, Stub, head, read_all, send, until

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
#: Nothing of the router's ends an answer that hangs during a test.
PATIENT = {
    "timeouts": {"idle": "10m", "first_byte": "10m"},
    "health": {"interval": "1h", "timeout": "10s"},
}
CACHED = {"cached_tokens": 64}
TOLD = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": CACHED}
ANTHROPIC = {"input_tokens": 36, "output_tokens": 2, "cache_read_input_tokens": 64}
OPENAI = {"input_tokens": 100, "output_tokens": 2, "input_tokens_details": CACHED}
WORD = event({"choices": [{"index": 0, "delta": {"content": "a"}}]})
COUNTS = event({"choices": [], "usage": TOLD})
DELTA = event({"type": "message_delta", "usage": ANTHROPIC}, "message_delta")
START = event({"type": "message_start", "message": {"usage": ANTHROPIC}}, "message_start")
WROTE = event({"type": "message_delta", "usage": {"output_tokens": 2}}, "message_delta")


def response(status: str, **more: Any) -> bytes:
    """An event of `/v1/responses` with a whole response."""
    told = {"id": "r", "usage": OPENAI, **more}
    return event({"type": f"response.{status}", "response": told}, f"response.{status}")


#: Streams to their last event, by what tells it.
STREAMS = {
    "done": (CHAT, WORD + COUNTS + DONE),
    "done of two": (CHAT, WORD + WORD.replace(b'"index": 0', b'"index": 1') + COUNTS + DONE),
    "no space": ("/v1/completions", COUNTS + b"data:[DONE]\n\n"),
    "crlf": ("/v1/audio/transcriptions", COUNTS.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n"),
    "completed": (RESPONSES, response("created", usage=None) + response("completed")),
    "incomplete": (RESPONSES, response("incomplete")),
    "failed": (RESPONSES, response("failed")),
    "long": (RESPONSES, response("completed", output_messages=["x" * 300_000])),
    "stop": (MESSAGES, DELTA + event({"type": "message_stop"}, "message_stop")),
    "told in two": (MESSAGES, START + WROTE + event({"type": "message_stop"}, "message_stop")),
    "error": (MESSAGES, DELTA + event({"type": "error", "error": {}}, "error")),
}
#: What the worker does after it.
THEN: dict[str, list[Action]] = {
    "closes": ["close"],
    "resets": [0.05, "reset"],
    "hangs": ["stall"],
    "half an event": [chunk(b'data: {"id"'), "close"],
    "garbage": [b"no length\r\n", "stall"],
}


def body_of(path: str) -> tuple[bytes, list[bytes]]:
    """A streaming request and its header fields."""
    return request_to(ENDPOINTS[path], stream=True)


def ask(router: Router, path: str) -> bytes:
    """Ask for a stream; return its body, which must end as HTTP demands."""
    body, fields = body_of(path)
    headers = [tuple(field.split(b": ", 1)) for field in fields]
    reply = router.http.post(path, content=body, headers=headers)  # type: ignore[arg-type]
    assert reply.status_code == 200
    return reply.content


def tokens(router: Router) -> tuple[float, float]:
    """How many prompt tokens were counted, and how many of them as cached."""
    names = ("prompt", "cached")
    prompt, cached = (
        router.metric(f"warmroute_{name}_tokens_total", pool="default") for name in names
    )
    return prompt, cached


CASES = [(last, "closes") for last in STREAMS] + [("done", then) for then in list(THEN)[1:]]


@pytest.mark.parametrize(("last", "then"), CASES)
def test_the_last_event_is_the_end(stub: MakeStub, route: MakeRouter, last: str, then: str) -> None:
    """The client gets a clean end at once, usage counts, and only an error is held against it."""
    path, said = STREAMS[last]
    worker = stub([STREAM_HEAD, chunk(said), *THEN[then]])
    router = route(worker.url, **PATIENT)
    assert ask(router, path) == said
    until(router.idle)
    assert tokens(router) == (100, 64)
    errors = last in {"failed", "error"}
    assert counted(router, "worker_errors") == ({"event": 1} if errors else {})
    if not errors:
        assert_blameless(router.worker())
    assert router.worker().upstream.idle == 0


@pytest.mark.parametrize(
    ("last", "after"), [("done", b""), ("completed", DONE), ("stop", b": ping\n\n")]
)
def test_what_follows_at_once_passes(
    stub: MakeStub, route: MakeRouter, last: str, after: bytes
) -> None:
    """Whatever a worker sends after it passes too, and its connection is kept."""
    path, said = STREAMS[last]
    rest: list[Action] = [chunk(after)] if after else []
    router = route(stub([STREAM_HEAD, chunk(said), 0.02, *rest, STREAM_END]).url, **PATIENT)
    assert ask(router, path) == said + after
    until(router.idle)
    assert router.worker().upstream.idle == 1


@pytest.mark.parametrize("at", [1, 7, len(DONE) - 1])
def test_it_may_come_in_pieces(stub: MakeStub, route: MakeRouter, at: int) -> None:
    """Wherever it is cut, it counts once it is whole."""
    pieces: list[Action] = [chunk(WORD + DONE[:at]), 0.02, chunk(DONE[at:])]
    router = route(stub([STREAM_HEAD, *pieces, "close"]).url, **PATIENT)
    assert ask(router, CHAT) == WORD + DONE
    assert counted(router, "worker_errors") == {}


QUOTED = [
    (CHAT, event({"choices": [{"delta": {"content": "x\n\ndata: [DONE]\n\n"}}]}), DONE),
    (CHAT, b"data: [DONE] or not\n\n", DONE),
    (CHAT, WORD + b": data: [DONE]\n\n", DONE),
    (RESPONSES, event({"delta": "\nevent: response.completed\n"}, "x"), response("completed")),
    (RESPONSES, event({"type": "x"}, "response.completed.not"), response("completed")),
    (MESSAGES, DONE, event({}, "message_stop")),
]


@pytest.mark.parametrize(("path", "said", "last"), QUOTED)
def test_text_that_speaks_of_it_is_not_it(
    stub: MakeStub, route: MakeRouter, path: str, said: bytes, last: bytes
) -> None:
    """A worker that goes on much later is waited for, and one that breaks off has failed."""
    worker = stub([STREAM_HEAD, chunk(said), 0.6, chunk(last), "close"])
    router = route(worker.url, **PATIENT)
    assert ask(router, path) == said + last
    assert counted(router, "worker_errors") == {}
    worker.script = [STREAM_HEAD, chunk(said), "close"]
    assert b"worker_failed" in ask(router, path)
    until(lambda: counted(router, "worker_errors") == {"closed": 1})


def test_comments_before_it_do_not_matter(stub: MakeStub, route: MakeRouter) -> None:
    """A stream that begins with comments of the worker's ends alike."""
    script: list[Action] = [
        STREAM_HEAD,
        chunk(b": keep-alive\n\n"),
        0.05,
        chunk(WORD + DONE),
        "close",
    ]
    router = route(stub(script).url, **PATIENT)
    assert ask(router, CHAT) == b": keep-alive\n\n" + WORD + DONE


def test_a_stream_of_sagemaker_s_ends_alike(stub: MakeStub, route: MakeRouter) -> None:
    """Below an endpoint no exception follows the last event."""
    router = route(stub([STREAM_HEAD, chunk(WORD + COUNTS + DONE), "close"]).url, **PATIENT)
    reply = router.http.post(
        "/endpoints/e/invocations-response-stream",
        json={"messages": [{"role": "user", "content": "hi"}], "stream": True},
    )
    assert DONE in reply.content
    assert b"exception" not in reply.content
    until(router.idle)
    assert tokens(router) == (100, 64)


def test_a_client_of_http_1_0_gets_its_end(stub: MakeStub, route: MakeRouter) -> None:
    """Its connection is closed in order, which is the end of its answer."""
    router = route(stub([STREAM_HEAD, chunk(WORD + DONE), "stall"]).url, **PATIENT)
    body, _ = body_of(CHAT)
    said = (head(CHAT, len(body)) + body).replace(b"HTTP/1.1", b"HTTP/1.0")
    with send(router.port, said) as client:
        assert read_all(client).endswith(WORD + DONE)


MakeTls = Callable[[list[Action]], tuple[Stub, dict[str, Any]]]


@pytest.fixture(params=["plain", "tls"])
def either(request: pytest.FixtureRequest, ours: Authority, stack: ExitStack) -> MakeTls:
    """Make a worker with or without TLS; return it and how the router is to be told of it."""

    def make(script: list[Action]) -> tuple[Stub, dict[str, Any]]:
        secure = request.param == "tls"
        worker = Stub(script, tls=ours.server() if secure else None)
        stack.callback(worker.stop)
        return worker, {"url": worker.url, **({"tls": {"ca": ours.roots}} if secure else {})}

    return make


@pytest.mark.parametrize("end", ["close", "hang up"])
def test_an_answer_that_ends_with_its_connection(
    either: MakeTls, route: MakeRouter, end: str
) -> None:
    """After the last event even a close without TLS's farewell is an end."""
    framed_by_close = STREAM_HEAD.replace(b"transfer-encoding: chunked\r\n", b"")
    _, worker = either([framed_by_close, WORD + COUNTS + DONE, 0.05, end])
    router = route(worker, **PATIENT)
    assert ask(router, CHAT) == WORD + COUNTS + DONE
    until(router.idle)
    assert tokens(router) == (100, 64)
    assert counted(router, "worker_errors") == {}


def test_a_slow_client_misses_nothing(either: MakeTls, route: MakeRouter) -> None:
    """If the worker closes while its client does not read, all its bytes arrive later."""
    words = [event({"number": number, "text": "x" * 4000}) for number in range(2000)]
    _, worker = either([STREAM_HEAD, *map(chunk, words), chunk(COUNTS + DONE), "close"])
    router = route(worker, **PATIENT)
    body, fields = body_of(CHAT)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", router.port))
        client.sendall(head(CHAT, len(body), b"connection: close", *fields) + body)
        busy = router.worker().upstream.in_use
        until(lambda: any(connection.paused for connection in tuple(busy)))
        threading.Event().wait(0.5)
        answer = read_all(client)
    assert answer.endswith(STREAM_END)
    got = b"".join(unchunked(answer.partition(b"\r\n\r\n")[2]))
    assert got == b"".join(words) + COUNTS + DONE
    until(router.idle)
    assert tokens(router) == (100, 64)


def unchunked(body: bytes) -> list[bytes]:
    """The data of a chunked body."""
    found = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        found.append(rest[:length])
        body = rest[length + 2 :]
    return found
