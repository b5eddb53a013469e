"""Failures reach the client as the error class that its users catch."""

from typing import Any

import openai
import pytest

from tests.sdk.clients import CALLERS
from tests.sdk.conftest import MODEL, MakeScripted
from tests.sdk.documents import (
    DONE,
    STREAM_HEAD,
    chunk,
    delta,
    document,
    event,
    response_events,
    stream,
)
from tests.support import Action, MakeRouter

CHAT = "chat.completions.create"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]}

CLASSES: dict[int, type[openai.APIStatusError]] = {
    500: openai.InternalServerError,
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    503: openai.InternalServerError,
    404: openai.NotFoundError,
    413: openai.APIStatusError,
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


def test_no_worker(route: MakeRouter, dead_url: str, kind: str) -> None:
    """Status 503 is an InternalServerError; its code says why."""
    with (
        CALLERS[kind](route(dead_url).url) as caller,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        caller.call(CHAT, **ASKED)
    assert caught.value.status_code == 503
    assert caught.value.code == "no_worker"


WORDS = [chunk(event(delta(word))) for word in ("one ", "two ")]

FAILS_EARLY: dict[str, list[Action]] = {
    "closes": ["close"],
    "half a head": [b"HTTP/1.1 200 OK\r\ncontent-le", "close"],
    "head without body": [STREAM_HEAD, "close"],
}


@pytest.mark.parametrize("script", FAILS_EARLY.values(), ids=FAILS_EARLY)
def test_a_worker_that_fails_before_its_answer(
    scripted: MakeScripted, script: list[Action]
) -> None:
    """It is an InternalServerError, 502, with an error of the router's."""
    scene = scripted(script)
    with pytest.raises(openai.InternalServerError) as caught:
        scene.caller.call(CHAT, **ASKED)
    assert caught.value.status_code == 502
    assert caught.value.code == "worker_failed"


#: How a stream breaks after two words.
BREAKS: dict[str, list[Action]] = {
    "closes": ["close"],
    "resets": ["reset"],
    "within an event": [chunk(b'data: {"id": "half'), "close"],
}


@pytest.mark.parametrize("end", BREAKS)
def test_a_stream_that_breaks(scripted: MakeScripted, end: str) -> None:
    """The text that came is delivered, then an APIError with a code rather than a silent end.

    A reset may discard text in transit.
    """
    scene = scripted([STREAM_HEAD, *WORDS, *BREAKS[end]])
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each(
            CHAT, lambda c: seen.append(c.choices[0].delta.content), stream=True, **ASKED
        )
    assert type(caught.value) is openai.APIError
    assert caught.value.code == "worker_failed"
    assert seen == ["one ", "two "][: len(seen) if end == "resets" else 2]


def test_a_responses_stream_that_breaks(scripted: MakeScripted) -> None:
    """There events have names, and the error's is `error`."""
    events = response_events("some ", "words")[:5]
    scene = scripted([STREAM_HEAD, *map(chunk, events), "close"])
    asked = {"model": MODEL, "input": "Hello?", "stream": True}
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each("responses.create", lambda e: seen.append(e.type), **asked)
    assert caught.value.code == "worker_failed"
    assert seen[-1] == "response.output_text.delta"
    sent = scene.caller.whole("responses.create", **asked)
    assert sent.body.rpartition(b"\n\nevent: ")[2].startswith(b"error\ndata: {")


def test_a_workers_own_error_in_a_stream(scripted: MakeScripted) -> None:
    """vLLM reports a failure within the stream; it arrives unchanged, as an APIError."""
    error = {"message": "out of blocks", "type": "InternalServerError", "param": None, "code": 500}
    scene = scripted(stream(event(delta("one ")), event({"error": error}), DONE))
    seen: list[Any] = []
    with pytest.raises(openai.APIError) as caught:
        scene.caller.each(CHAT, seen.append, stream=True, **ASKED)
    assert caught.value.body == error
    assert len(seen) == 1
