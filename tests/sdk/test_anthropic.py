"""Anthropic's own client: what it makes of the router's answers and errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import pytest

from tests.sdk.conftest import MODEL, Stage
from tests.support import Action, MakeRouter, MakeStub, Router

ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
}
SSE: Action = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@contextmanager
def client(router: Router, **options: Any) -> Iterator[anthropic.Anthropic]:
    """A client that tries once."""
    with anthropic.Anthropic(base_url=router.url, api_key="none", max_retries=0, **options) as made:
        yield made


def test_answers_streams_and_counts(stage: Stage) -> None:
    """A message, the same as a stream, and its tokens, which a worker counts without computing."""
    with client(stage.router) as claude:
        message = claude.messages.create(**ASKED)
        counted = claude.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
        with claude.messages.stream(**ASKED) as stream:
            streamed = stream.get_final_message()
        usage = message.usage
        whole = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert counted.input_tokens == whole > 0
        assert streamed.usage.output_tokens == usage.output_tokens > 0
    stage.rest()


def test_errors_of_the_router(stage: Stage, route: MakeRouter, dead_url: str) -> None:
    """Each is the class that users catch, with its type and the id of the request."""
    with client(stage.router) as claude, pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(**{**ASKED, "model": "claude-none"})
    with client(stage.router) as claude, pytest.raises(anthropic.BadRequestError) as odd:
        claude.messages.count_tokens(model=5, messages=[])  # type: ignore[arg-type]
    with client(route(dead_url)) as claude, pytest.raises(anthropic.InternalServerError) as away:
        claude.messages.create(**ASKED)
    told = [(one.value.type, one.value.status_code) for one in (missing, odd, away)]
    assert told == [
        ("not_found_error", 404),
        ("invalid_request_error", 400),
        ("overloaded_error", 503),
    ]
    for one in (missing, odd, away):
        assert one.value.request_id == one.value.response.headers["x-request-id"]
        assert isinstance(one.value.body, dict)
        assert one.value.body["request_id"] == one.value.request_id


def test_a_stream_that_breaks_off(stub: MakeStub, route: MakeRouter) -> None:
    """The client raises, rather than taking half an answer for a whole one."""
    start = {
        "type": "message_start",
        "message": {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 0},
        },
    }
    event = b"event: message_start\ndata: %b\n\n" % json.dumps(start).encode()
    script = [SSE, b"%x\r\n%b\r\n" % (len(event), event), 0.05, "reset"]
    router = route(stub(script, MODEL).url)
    seen: list[Any] = []
    with client(router) as claude, pytest.raises(anthropic.APIStatusError) as broken:
        seen.extend(claude.messages.create(**ASKED, stream=True))
    assert broken.value.type == "api_error"
    assert "failed in the middle" in broken.value.message
