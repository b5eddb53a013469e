"""Tokens are counted as the worker reports them, wherever in its answer that stands."""

import json
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from tests.cancel.leaving import request_to
from tests.sdk.documents import STREAM_END, chunk, document
from tests.support import Action, MakeRouter, MakeStub, until

CACHED = {"cached_tokens": 64}
USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": CACHED}
OTHER = {"input_tokens": 100, "output_tokens": 2, "input_tokens_details": CACHED}
ANTHROPIC = {"input_tokens": 36, "output_tokens": 2, "cache_read_input_tokens": 64}
POOLED = {"prompt_tokens": 100, "total_tokens": 100}
FLOATS = [0.123456789] * 100_000
FIVE_MB = 'x{"' * 1_250_000
TOOL = {"type": "tool_use", "input": {"usage": {"input_tokens": 1, "output_tokens": 1}}}

ANSWERS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "ids after it": ("/v1/chat/completions", {"usage": USAGE, "ids": list(range(50_000))}, 64),
    "megabytes around it": (
        "/v1/completions",
        {"choices": [{"text": FIVE_MB}], "usage": USAGE, "prompt_logprobs": [FIVE_MB]},
        64,
    ),
    "a response": ("/v1/responses", {"usage": OTHER, "output_messages": [FIVE_MB]}, 64),
    "a tool's input": (
        "/v1/messages",
        {"usage": ANTHROPIC, "content": [TOOL], "kv_transfer_params": FIVE_MB},
        64,
    ),
    "a score": ("/score", {"data": [FLOATS], "usage": POOLED}, None),
}


def framings(body: bytes) -> dict[str, list[Action]]:
    """The same answer as a worker may frame it."""
    return {
        "length": document(json.loads(body)),
        "chunks": [
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            *(chunk(body[at : at + 50_000]) for at in range(0, len(body), 50_000)),
            STREAM_END,
        ],
        "close": [b"HTTP/1.1 200 OK\r\n\r\n" + body, "close"],
    }


@pytest.mark.parametrize(
    ("name", "framed"),
    [
        *((name, "chunks") for name in ANSWERS),
        ("ids after it", "length"),
        ("ids after it", "close"),
    ],
)
def test_tokens_are_counted(stub: MakeStub, route: MakeRouter, name: str, framed: str) -> None:
    """Long fields before or after the report do not matter, nor does how the answer is framed."""
    path, answer, cached = ANSWERS[name]
    router = route(stub(framings(json.dumps(answer).encode())[framed]).url)
    body, _ = request_to(ENDPOINTS[path], stream=False)
    assert router.http.post(path, content=body).json() == answer
    until(router.idle)
    assert router.metric("warmroute_prompt_tokens_total", pool="default") == 100
    assert router.metric("warmroute_cached_tokens_total", pool="default") == (cached or 0)
