"""Requests that are odd but have a model are for the worker to judge."""

import json
from typing import Any

import pytest

from router.prompt.prompts import ANSWER_TOKENS
from tests.support import (
    OK,
    Router,
    Stub,
)

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.usefixtures("still_open")
ODD_MESSAGES: list[Any] = [
    None,
    7,
    "hello",
    {},
    [],
    [None],
    ["hello"],
    [[]],
    [{}],
    [{"role": "user"}],
    [{"content": "no role"}],
    [{"role": None, "content": "x"}],
    [{"role": 1, "content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 7}],
    [{"role": "user", "content": {"a": 1}}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [None, 1, "x", {}]}],
    [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        }
    ],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {}}]}],
    [{"role": "assistant", "tool_calls": 5}],
    [{"role": "user", "content": "x" * 20_000}, None],
]
ODD_PROMPTS: list[Any] = [
    None,
    7,
    1.5,
    True,
    {},
    [],
    [[]],
    [""],
    [None],
    [1, "a"],
    ["a", 1],
    [[1], "a"],
    [1, [2]],
    [1.5],
    [-1],
    [2**32],
    [2**64],
    [10**400],
    [[1, 2], [3]],
    [0] * 4000,
    "x" * 20_000,
]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("messages", ODD_MESSAGES, ids=lambda odd: json.dumps(odd)[:40])
def test_odd_messages_are_for_the_worker_to_judge(
    worker: Stub, door: Router, path: str, messages: Any
) -> None:
    """Messages that the router does not understand are relayed unchanged."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    assert door.http.post(path, content=body).status_code == 200
    assert worker.requests[0].endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses"])
@pytest.mark.parametrize("prompt", ODD_PROMPTS, ids=lambda odd: json.dumps(odd)[:40])
def test_odd_prompts_are_for_the_worker_to_judge(
    worker: Stub, door: Router, path: str, prompt: Any
) -> None:
    """Odd prompts are relayed unchanged: numbers, nested lists, huge and negative token ids."""
    body = json.dumps({"model": "m", "prompt": prompt, "input": prompt}).encode()
    assert door.http.post(path, content=body).status_code == 200
    assert worker.requests[0].endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "stream", "cache_salt"])
@pytest.mark.parametrize("value", [-1, 0, 2**31, 2**63, 10**30, 1.5, "7", True, None, [], {}])
def test_odd_fields_are_for_the_worker_to_judge(
    worker: Stub, door: Router, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    """Odd values of these fields are relayed; no more than a usual answer is booked for them."""
    booked = []

    def note() -> bool:
        booked.append(door.worker().load.kv_tokens)
        return True

    monkeypatch.setattr(worker, "script", [note, *OK])
    reply = door.http.post(CHAT, json={"model": "m", "messages": [], field: value})
    assert reply.status_code == 200
    assert len(worker.requests) == 1
    assert 0 < booked[0] <= 2 * ANSWER_TOKENS
