"""Failures reach the client as the error class that its users catch."""

from typing import Any

import openai
import pytest

from tests.sdk.clients import CALLERS
from tests.sdk.conftest import MODEL, MakeScripted
from tests.sdk.documents import (
    DONE,
    STREAM_HEAD,
    answer,
    chunk,
    delta,
    document,
    event,
    response_events,
    stream,
)
from tests.support import JSON, Action, MakeRouter, MakeStub

CHAT = "chat.completions.create"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]}

CLASSES: dict[int, type[openai.APIStatusError]] = {
    500: openai.InternalServerError,
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    501: openai.InternalServerError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    503: openai.InternalServerError,
    409: openai.ConflictError,
    413: openai.APIStatusError,
    529: openai.InternalServerError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_workers_error_is_told_as_it_is(scripted: MakeScripted, streamed: bool) -> None:
    """Class, status, message, type, param, code, headers and body are the worker's own."""
    scene = scripted()
    for status, expected in CLASSES.items():
        error = {"message": f"{status}", "type": "SomeError", "param": "messages", "code": status}
        scene.plays(document({"error": error}, status, b"x-worker-says: sorry"))
        with pytest.raises(expected) as caught:
            scene.caller.call(CHAT, stream=streamed, **ASKED)
        told = caught.value
        assert type(told) is expected
        assert told.status_code == status
        assert told.body == error
        assert (told.type, told.param, told.code) == ("SomeError", "messages", str(status))
        assert told.response.headers["x-worker-says"] == "sorry"
        assert told.request_id == told.response.headers["x-request-id"]
    assert len(scene.worker.requests) == len(CLASSES)


def test_an_error_that_is_no_json(scripted: MakeScripted) -> None:
    """An HTML page from a proxy near the worker is passed on unchanged."""
    page = b"<html>Bad Gateway</html>"
    head = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n"
    scene = scripted([head % len(page) + page])
    with pytest.raises(openai.InternalServerError) as caught:
        scene.caller.call(CHAT, **ASKED)
    assert caught.value.status_code == 502
    assert caught.value.response.text == page.decode()
    assert caught.value.response.headers["content-type"] == "text/html"


def test_the_routers_own_errors(scripted: MakeScripted) -> None:
    """An unknown model, and a body that cannot be read; no worker is asked."""
    scene = scripted()
    with pytest.raises(openai.NotFoundError) as missing:
        scene.caller.call(CHAT, **{**ASKED, "model": "gpt-none"})
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as odd:
        scene.caller.call(CHAT, **{**ASKED, "model": ["m"]})
    assert odd.value.param == "model"
    assert scene.worker.requests == []


def test_a_body_over_the_limit(stub: MakeStub, route: MakeRouter, kind: str) -> None:
    """It is an APIStatusError, 413, although the client was still sending when it was refused."""
    router = route(stub(model=MODEL).url, limits={"body": "64KiB"})
    large = [{"role": "user", "content": "word " * 200_000}]
    with CALLERS[kind](router.url) as caller:
        with pytest.raises(openai.APIStatusError) as caught:
            caller.call(CHAT, model=MODEL, messages=large)
        assert caught.value.status_code == 413
        assert caught.value.type == "invalid_request_error"
        # Nothing is left on the connection that would disturb the next request.
        assert caller.call(CHAT, **ASKED).id == "x"


def test_no_worker(route: MakeRouter, dead_url: str, kind: str) -> None:
    """Status 503 is an InternalServerError; its code says why."""
    with (
        CALLERS[kind](route(dead_url).url) as caller,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        caller.call(CHAT, **ASKED)
    assert caught.value.status_code == 503
    assert caught.value.code == "no_worker"


def test_no_router(dead_url: str, kind: str) -> None:
    """With no router there it is an APIConnectionError, unlike in the tests below."""
    with CALLERS[kind](dead_url) as caller, pytest.raises(openai.APIConnectionError):
        caller.call(CHAT, **ASKED)


WORDS = [chunk(event(delta(word))) for word in ("one ", "two ")]

FAILS_EARLY: dict[str, list[Action]] = {
    "closes": ["close"],
    "resets": ["reset"],
    "half a head": [b"HTTP/1.1 200 OK\r\ncontent-le", "close"],
    "head without body": [STREAM_HEAD, "close"],
    "no HTTP": [b"220 smtp ready\r\n", "close"],
}


@pytest.mark.parametrize("script", FAILS_EARLY.values(), ids=FAILS_EARLY)
def test_a_worker_that_fails_before_its_answer(
    scripted: MakeScripted, script: list[Action]
) -> None:
    """It is an InternalServerError, 502, with an error of the router's, never a broken
    connection."""
    scene = scripted(script)
    with pytest.raises(openai.InternalServerError) as caught:
        scene.caller.call(CHAT, **ASKED)
    assert caught.value.status_code == 502
    assert caught.value.code == "worker_failed"


def test_an_answer_that_is_cut_off(scripted: MakeScripted) -> None:
    """A JSON answer that ends early is a connection error, not a partial answer."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    scene = scripted([head % len(JSON) + JSON[:20], "close"])
    with pytest.raises(openai.APIConnectionError):
        scene.caller.call(CHAT, **ASKED)


def words(found: Any) -> str:
    """Return the text of a chunk."""
    return str(found.choices[0].delta.content)


def test_a_stream_that_breaks(scripted: MakeScripted) -> None:
    """The text that came is delivered; then comes an APIError with a code rather than a silent
    end."""
    scene = scripted([STREAM_HEAD, *WORDS, "close"])
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each(CHAT, lambda c: seen.append(words(c)), stream=True, **ASKED)
    assert type(caught.value) is openai.APIError
    assert caught.value.code == "worker_failed"
    assert "worker failed" in caught.value.message
    assert seen == ["one ", "two "]


def test_a_stream_that_is_reset(scripted: MakeScripted) -> None:
    """A reset may discard text in transit; the error comes after whatever arrived."""
    scene = scripted([STREAM_HEAD, *WORDS, "reset"])
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each(CHAT, lambda c: seen.append(words(c)), stream=True, **ASKED)
    assert caught.value.code == "worker_failed"
    assert seen == ["one ", "two "][: len(seen)]


def test_a_stream_that_breaks_within_an_event(scripted: MakeScripted) -> None:
    """The partial event is dropped: the error follows the last complete one."""
    scene = scripted([STREAM_HEAD, *WORDS, chunk(b'data: {"id": "half'), "close"])
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each(CHAT, lambda c: seen.append(words(c)), stream=True, **ASKED)
    assert caught.value.code == "worker_failed"
    assert seen == ["one ", "two "]


def test_a_responses_stream_that_breaks(scripted: MakeScripted) -> None:
    """There events have names, and the error's is `error`."""
    events = response_events("some ", "words")[:5]
    scene = scripted([STREAM_HEAD, *map(chunk, events), "close"])
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each(
            "responses.create",
            lambda e: seen.append(e.type),
            model=MODEL,
            input="Hello?",
            stream=True,
        )
    assert caught.value.code == "worker_failed"
    assert seen[-1] == "response.output_text.delta"
    sent = scene.caller.whole("responses.create", model=MODEL, input="Hello?", stream=True)
    assert sent.body.rpartition(b"\n\nevent: ")[2].startswith(b"error\ndata: {")


def test_a_workers_own_error_in_a_stream(scripted: MakeScripted) -> None:
    """vLLM reports a failure within the stream; it arrives unchanged, as an APIError."""
    error = {"message": "out of blocks", "type": "InternalServerError", "param": None, "code": 500}
    scene = scripted(stream(event(delta("one ")), event({"error": error}), DONE))
    seen: list[Any] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each(CHAT, seen.append, stream=True, **ASKED)
    assert caught.value.body == error
    assert caught.value.message == "out of blocks"
    assert len(seen) == 1


def test_an_answer_that_does_not_parse(scripted: MakeScripted) -> None:
    """Whatever a worker sends as JSON is passed on; the client judges it."""
    scene = scripted(answer(b'{"id": '))
    with pytest.raises((openai.APIResponseValidationError, ValueError)):
        scene.caller.call(CHAT, **ASKED)
    assert scene.caller.whole(CHAT, **ASKED).body == b'{"id": '
