"""SSE comments while a worker is silent, so that no load balancer takes the stream for dead."""

import json
import threading
from typing import Any

import openai
import pytest

from router.http.sse import COMMENT
from tests.sdk.documents import DONE, STREAM_HEAD, delta, event, stream
from tests.support import OK, Action, MakeRouter, MakeStub, Router, post, until

PATH = "/v1/chat/completions"
WORDS = ("Once", " upon", " a", " time")
EVENTS = [*(event(delta(word)) for word in WORDS), DONE]
STREAM = stream(*EVENTS)
TOO_LONG = b'{"error":{"message":"maximum context length is 16 tokens"}}'
#: Comments come often enough for a test, and the first probe is the only one.
OFTEN: dict[str, Any] = {"timeouts": {"comment": "20ms"}, "health": {"interval": "1h"}}
BODY: dict[str, Any] = {"model": "m", "stream": True, "messages": [], "input": "x", "prompt": "x"}


def refusal(status: int) -> list[Action]:
    """Return the script of a worker that refuses."""
    head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(TOO_LONG))
    return [head + TOO_LONG[:20], 0.02, TOO_LONG[20:]]


def commented(router: Router) -> bool:
    """Return true if some client has got a comment and nothing else so far."""
    exchanges = [client.answering for client in tuple(router.door.clients)]
    return any((exchange.inner or exchange).commented for exchange in exchanges if exchange)


def error_of(content: bytes) -> dict[str, Any]:
    """Return the error of a stream that has nothing else but comments."""
    told = content.replace(COMMENT, b"").removesuffix(b"\n\n")
    error: dict[str, Any] = json.loads(told.removeprefix(b"event: error\n")[6:])["error"]
    return error


def test_the_stream_follows_unchanged(stub: MakeStub, route: MakeRouter) -> None:
    """After the comments comes every byte of the stream; the connections are used again."""
    worker = stub()
    router = route(worker.url, **OFTEN)
    for _ in range(2):
        worker.script = [lambda: commented(router), *STREAM]
        reply = router.http.post(PATH, json=BODY)
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-request-id"]
        assert reply.content.startswith(COMMENT)
        assert reply.content.replace(COMMENT, b"") == b"".join(EVENTS)
    until(router.idle)
    assert router.worker().upstream.idle == 1


HALF = STREAM_HEAD + b"14\r\n" + EVENTS[0][:20] + b"\r\n"
NDJSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 3\r\n\r\n{}\n"


#: Path, settings, whether a stream is asked for, and what the worker does.
QUIET: dict[str, tuple[str, dict[str, Any], bool, list[Action]]] = {
    "default": (PATH, {"timeouts": {}}, True, [0.2, *STREAM]),
    "after the first byte": (PATH, OFTEN, True, [*STREAM[:2], 0.2, *STREAM[2:]]),
    "no stream": (PATH, OFTEN, False, [0.2, *OK]),
    "a stream of lines": ("/api/chat", OFTEN, True, [0.2, NDJSON]),
}


@pytest.mark.parametrize("case", QUIET)
def test_no_comment(stub: MakeStub, route: MakeRouter, case: str) -> None:
    """The answer is the worker's, and not a byte more."""
    path, settings, streams, script = QUIET[case]
    worker = stub(script)
    reply = route(worker.url, **settings).http.post(path, json={**BODY, "stream": streams})
    assert COMMENT not in reply.content
    assert reply.headers["x-warmroute-worker"] == worker.url[7:]


@pytest.mark.parametrize(
    ("path", "script", "code"),
    [
        (PATH, ["close"], "worker_failed"),
        ("/v1/responses", ["reset"], "worker_failed"),
        ("/v1/messages", [b"nonsense\r\n"], "worker_failed"),
        ("/endpoints/e/invocations", ["close"], "worker_failed"),
        (
            PATH,
            [HALF, 0.05, "close"],
            "worker_failed",
        ),
        (PATH, ["stall"], "worker_timeout"),
        (PATH, refusal(400), "400"),
        (PATH, refusal(503), "503"),
    ],
)
def test_an_error_is_an_event(
    stub: MakeStub, route: MakeRouter, path: str, script: list[Action], code: str
) -> None:
    """The status was sent with the first comment, so an error comes in the stream's own format."""
    worker = stub()
    waits = {"comment": "20ms"}
    if "stall" in script:
        waits["first_byte"] = "400ms"
    router = route(worker.url, **{**OFTEN, "timeouts": waits}, limits={"queue": 0})
    worker.script = [lambda: commented(router), *script]
    reply = router.http.post(path, json=BODY)
    assert reply.status_code == 200
    assert (b"event: error\n" in reply.content) == (path in {"/v1/responses", "/v1/messages"})
    error = error_of(reply.content)
    if "error" in error:  # Anthropic's has its code one level deeper
        error = error["error"]
    assert error["code"] == code
    assert ("context length is 16 tokens" in error["message"]) == code.isdigit()
    until(router.idle)


def test_another_worker_is_asked(stub: MakeStub, route: MakeRouter) -> None:
    """Comments are not an answer: a full worker can still be replaced by another."""
    full, good = stub(), stub(STREAM)
    router = route(full.url, good.url, strategy="roundrobin", **OFTEN)
    full.script = [lambda: commented(router), *refusal(503)]
    replies = [router.http.post(PATH, json=BODY) for _ in range(2)]
    assert all(reply.content.endswith(b"".join(EVENTS)) for reply in replies)
    assert any(COMMENT in reply.content for reply in replies)


def test_a_request_that_waits(stub: MakeStub, route: MakeRouter) -> None:
    """It gets comments too, and an error event if its turn does not come."""
    gate = threading.Event()
    worker = stub([gate.is_set, *STREAM])
    waits = {"comment": "20ms", "queue": "300ms"}
    router = route(worker.url, **{**OFTEN, "timeouts": waits}, limits={"in_flight": 1})
    with post(router.port, PATH, json.dumps(BODY).encode()):
        until(lambda: len(worker.requests) == 1)
        assert error_of(router.http.post(PATH, json=BODY).content)["code"] == "overloaded"
        gate.set()
    until(router.idle)


def test_the_official_client(stub: MakeStub, route: MakeRouter) -> None:
    """OpenAI's client ignores comments, and raises the error that comes after them."""
    worker = stub()
    router = route(worker.url, **OFTEN)
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="x", max_retries=0) as client:
        chats = client.chat.completions
        worker.script = [lambda: commented(router), *STREAM]
        chunks = chats.create(model="m", messages=[], stream=True)
        assert tuple(chunk.choices[0].delta.content for chunk in chunks) == WORDS
        worker.script = [lambda: commented(router), *refusal(400)]
        with pytest.raises(openai.APIError, match="context length"):
            list(chats.create(model="m", messages=[], stream=True))


def test_a_client_that_leaves(stub: MakeStub, route: MakeRouter) -> None:
    """It is noticed and counted, and the worker stops, as in any other stream."""
    worker = stub(["stall"])
    router = route(worker.url, **OFTEN)
    with post(router.port, PATH, json.dumps(BODY).encode()):
        until(lambda: commented(router))
    until(lambda: worker.closed_by_peer == 1)
    labels = {"pool": "default", "worker": router.worker().name}
    until(lambda: router.metric("warmroute_requests_total", **labels, status="499") == 1)
