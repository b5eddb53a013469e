"""The most expensive requests that the limits of a router allow, by name."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.harness.stub import MODEL
from benchmarks.prompts.model import library

#: Bytes of a body: a little below `limits.body`.
MAX_BODY_BYTES = (16 << 20) - (64 << 10)
_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"


class NeighbourRequest(NamedTuple):
    """A request."""

    path: str
    body: bytes


def small() -> NeighbourRequest:
    """Return the request whose delay is measured."""
    return _chat([{"role": "user", "content": "What is the capital of France?"}])


def _text(size: int) -> str:
    text = "".join(library())
    text = text.encode("ascii", "ignore").decode()
    return (text * (size // len(text) + 1))[:size]


def _json(path: str, **fields: object) -> NeighbourRequest:
    return NeighbourRequest(
        path, json.dumps({"model": MODEL, **fields}, separators=(",", ":")).encode()
    )


def _chat(messages: list[Any], **more: object) -> NeighbourRequest:
    return _json(_CHAT, messages=messages, max_tokens=16, **more)


def _said(content: object) -> list[Any]:
    return [{"role": "user", "content": content}]


def _long(size: int) -> NeighbourRequest:
    # Escapes make a text longer in JSON.
    return _chat(_said(_text(int(size * 0.9))))


def _tools(count: int) -> NeighbourRequest:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    about = {"description": "d" * 300, "parameters": parameters}
    tools = [
        {"type": "function", "function": {"name": f"f{number}", **about}} for number in range(count)
    ]
    return _chat(_said("x"), tools=tools)


def _image(size: int) -> NeighbourRequest:
    url = "data:image/png;base64," + "QUJD" * (size // 4)
    return _chat(_said([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": url}]))


def _raw(field: str) -> NeighbourRequest:
    fields = f'"model":"{MODEL}","messages":[{{"role":"user","content":"x"}}],{field}'
    return NeighbourRequest(_CHAT, f"{{{fields}}}".encode())


def _parts(count: int, size: int) -> NeighbourRequest:
    text = _text(size)
    return _chat(_said([{"type": "text", "text": text} for _ in range(count)]))


def _messages(count: int, size: int) -> NeighbourRequest:
    return _chat(_said(_text(size)) * count)


def _documents(count: int) -> NeighbourRequest:
    return _json("/v1/rerank", query="x", documents=[{"text": "hello there"}] * count)


NEIGHBOURS: Mapping[str, Callable[[], NeighbourRequest]] = {
    "a text of 16 MB": lambda: _long(MAX_BODY_BYTES),
    "a text of 4 MB": lambda: _long(4 << 20),
    "a text of 1 MB": lambda: _long(1 << 20),
    "4,096 messages, 16 MB": lambda: _messages(4096, 3500),
    "4,096 short messages": lambda: _messages(4096, 2),
    "16,384 parts, 16 MB": lambda: _parts(16_384, 850),
    "16,384 short parts": lambda: _parts(16_384, 2),
    "an image of 16 MB": lambda: _image(MAX_BODY_BYTES),
    "2.5 million token ids": lambda: _json(_COMPLETION, prompt=[12345] * 2_500_000),
    "250,000 token ids": lambda: _json(_COMPLETION, prompt=[1] * 250_000),
    "32,768 prompts": lambda: _json(_COMPLETION, prompt=["hello there"] * 32_768),
    "2,048 inputs, 14 MB": lambda: _json("/v1/embeddings", input=[_text(6500)] * 2048),
    "16,384 documents": lambda: _documents(16_384),
    "20,000 tools, 8 MB": lambda: _tools(20_000),
    "1,000 tools": lambda: _tools(1000),
    "a million numbers": lambda: _raw('"tools":[{"a":[' + "1," * 1_000_000 + "1]}]"),
    "500,000 objects": lambda: _raw('"x":[' + "{}," * 500_000 + "{}]"),
    "500,000 fields": lambda: _raw('"a":1,' * 500_000 + '"a":1'),
    "8 million numbers": lambda: _raw('"x":[' + "1," * 8_000_000 + "1]"),
    "nested 900 deep": lambda: _raw('"x":' + "[" * 900 + "]" * 900),
}
