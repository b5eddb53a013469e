"""Responses as workers write them, and the HTTP around them."""

import json
from typing import Any

from tests.support import Action


def answer(body: bytes, status: int = 200, *fields: bytes) -> list[Action]:
    """Return a complete JSON response."""
    lines = [
        b"HTTP/1.1 %d Reason" % status,
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        *fields,
    ]
    return [b"\r\n".join([*lines, b"", body])]


def document(content: object, status: int = 200, *fields: bytes) -> list[Action]:
    """Return the same with any JSON content."""
    return answer(json.dumps(content).encode(), status, *fields)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*pieces: bytes) -> list[Action]:
    """Return an event stream, written in these pieces."""
    return [STREAM_HEAD, *map(chunk, pieces), STREAM_END]


def event(data: object, name: str | None = None) -> bytes:
    """Return one server-sent event."""
    start = b"event: %b\n" % name.encode() if name else b""
    return start + b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def message(content: str | None, **more: Any) -> dict[str, Any]:
    """Return a chat response with one choice."""
    return {
        "id": "chatcmpl-8f3a",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "toy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **more},
                "logprobs": None,
                "finish_reason": "tool_calls" if "tool_calls" in more else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 21,
            "completion_tokens": 4,
            "total_tokens": 25,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return one chunk of a streamed chat."""
    words = {} if content is None else {"content": content}
    return {
        "id": "chatcmpl-8f3a",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "toy",
        "choices": [{"index": 0, "delta": {**words, **more}, "finish_reason": finish}],
    }


def response(text: str, status: str = "completed") -> dict[str, Any]:
    """Return a response of the Responses API."""
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_760_000_000,
        "status": status,
        "model": "toy",
        "output": [{**item, "content": [part]}] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        },
    }


def response_events(*texts: str) -> list[bytes]:
    """Return the stream of such a response, with its text in these pieces."""
    whole = response("".join(texts))
    item = whole["output"][0]
    part = item["content"][0]
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    begun = {"response": response("", "in_progress")}
    added = {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}}
    told: list[tuple[str, dict[str, Any]]] = [
        ("response.created", begun),
        ("response.in_progress", begun),
        ("response.output_item.added", added),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
        *(
            ("response.output_text.delta", {**place, "delta": text, "logprobs": []})
            for text in texts
        ),
        ("response.output_text.done", {**place, "text": part["text"], "logprobs": []}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": whole}),
    ]
    return [
        event({"type": name, "sequence_number": number, **data}, name)
        for number, (name, data) in enumerate(told)
    ]
