"""Requests, and the prompts that strategies get of them."""

import json
from typing import Any

from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.request import parse
from router.prompt.prompts import Prompts
from strategies.api import Prompt

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETION = ENDPOINTS["/v1/completions"]
MESSAGES = ENDPOINTS["/v1/messages"]
RESPONSES = ENDPOINTS["/v1/responses"]
EMBEDDINGS = ENDPOINTS["/v1/embeddings"]
LONG = "All the king's horses and all the king's men. " * 40


def prompt(endpoint: Endpoint, body: dict[str, Any] | bytes) -> Prompt:
    """Return what a strategy gets of a request."""
    raw = body if isinstance(body, bytes) else json.dumps({"model": "m", **body}).encode()
    return Prompts().prompt(endpoint, parse(endpoint, raw, b"application/json"))


def says(*texts: Any) -> list[dict[str, Any]]:
    """Build a conversation in which user and assistant take turns."""
    return [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(texts)
    ]


def shared(first: Prompt, second: Prompt) -> int:
    """Return how many leading blocks two prompts share."""
    pairs = zip(first.keys, second.keys, strict=False)
    return next(
        (place for place, (a, b) in enumerate(pairs) if a != b),
        min(len(first.keys), len(second.keys)),
    )


TALK = says(LONG, 'Größe? 日本 😀 " \\ / \n\t\u0007', LONG)
