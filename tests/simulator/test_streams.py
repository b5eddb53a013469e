"""Streams of server-sent events."""

import json
from typing import Any

import httpx
import pytest

HELLO = [{"role": "user", "content": "Hello there, how are you today?"}]


def events(client: httpx.Client, path: str, **body: Any) -> list[Any]:
    """Return the data of every event of a stream, decoded; `[DONE]` as it is."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    data = [block.split("data: ", 1)[1] for block in blocks]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def test_a_chat_streams_a_chunk_a_token(client: httpx.Client) -> None:
    """The role first, then the tokens, with the finish reason on the last, then the end marker."""
    *chunks, done = events(client, "/v1/chat/completions", messages=HELLO, max_tokens=5)
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [len(delta["content"]) for delta in deltas[1:]] == [4] * 5
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 5 + ["length"]


def test_streamed_and_whole_answers_say_the_same(client: httpx.Client) -> None:
    """The text does not depend on how it is sent."""
    body = {"messages": HELLO, "max_tokens": 40}
    whole = client.post("/v1/chat/completions", json=body).json()
    *chunks, _ = events(client, "/v1/chat/completions", **body)
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]


def test_usage_comes_last_and_only_if_asked_for(client: httpx.Client) -> None:
    """It comes in a chunk without choices."""
    options = {"include_usage": True}
    body = {"messages": HELLO, "max_tokens": 5}
    *_, last, done = events(client, "/v1/chat/completions", **body, stream_options=options)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert "cached_tokens" in last["usage"]["prompt_tokens_details"]
    *chunks, _ = events(client, "/v1/chat/completions", **body)
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("tokens", "interval", "sizes"),
    [(10, 4, [1, 4, 4, 1]), (9, 4, [1, 4, 4]), (1, 4, [1]), (3, 100, [1, 2])],
)
def test_an_interval_gathers_tokens(
    client: httpx.Client, tokens: int, interval: int, sizes: list[int]
) -> None:
    """The first token comes at once, then `stream_interval` at a time, then the rest."""
    body = {"prompt": "abc", "max_tokens": tokens, "stream_interval": interval}
    *chunks, _ = events(client, "/v1/completions", **body)
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert [len(text) // 4 for text in texts] == sizes
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_response_streams_numbered_events(client: httpx.Client) -> None:
    """From created to completed, with no gap in the numbers."""
    got = events(client, "/v1/responses", input="Hello", max_output_tokens=3)
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert got[0]["type"] == "response.created"
    assert got[-1]["type"] == "response.completed"
    text = "".join(e["delta"] for e in got if e["type"] == "response.output_text.delta")
    assert got[-1]["response"]["output"][0]["content"][0]["text"] == text


def test_a_message_streams_blocks(client: httpx.Client) -> None:
    """From message_start to message_stop, with the usage before the end."""
    got = events(client, "/v1/messages", model="toy", messages=HELLO, max_tokens=3)
    kinds = [event["type"] for event in got]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[2:5] == ["content_block_delta"] * 3
    assert kinds[5:] == ["content_block_stop", "message_delta", "message_stop"]
    assert got[-2]["usage"]["output_tokens"] == 3
