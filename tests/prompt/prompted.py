"""Requests, the prompts that strategies get of them, and stand-ins for tokenizers."""

import json
from array import array
from collections.abc import Callable, Iterable
from typing import Any, cast

from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.request import parse
from router.prompt.prompts import KnownModel, MadePrompt, Prompts
from router.rendering.tokens import PromptTokenizer
from strategies.api import Prompt

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETION = ENDPOINTS["/v1/completions"]
MESSAGES = ENDPOINTS["/v1/messages"]
RESPONSES = ENDPOINTS["/v1/responses"]
EMBEDDINGS = ENDPOINTS["/v1/embeddings"]
LONG = "All the king's horses and all the king's men. " * 40


class Tokenizer:
    """Stands in for a model's tokenizer: `made` returns the ids of a request's fields."""

    dated = False

    def __init__(self, made: Callable[[dict[str, Any]], Iterable[int]]) -> None:
        self._made = made

    def ids(self, _endpoint: Endpoint, body: bytes, **_: object) -> bytes:
        """Return the packed ids."""
        return array("I", list(self._made(json.loads(body)))).tobytes()


def known(tokenizer: object, identity: str = "m", **more: Any) -> KnownModel:
    """Return a model with that tokenizer."""
    return KnownModel(identity, cast("PromptTokenizer", tokenizer), **more)


def knowing(tokenizer: object, **more: Any) -> Prompts:
    """Return prompts of the model `m` with that tokenizer."""
    prompts = Prompts()
    prompts.known = {"m": known(tokenizer, **more)}
    return prompts


def made(
    endpoint: Endpoint, body: dict[str, Any] | bytes, prompts: Prompts | None = None
) -> MadePrompt:
    """Make the prompt of a request to `m`."""
    raw = body if isinstance(body, bytes) else json.dumps({"model": "m", **body}).encode()
    return (prompts or Prompts()).make(endpoint, parse(endpoint, raw, b"application/json"), raw)


def prompt(
    endpoint: Endpoint, body: dict[str, Any] | bytes, prompts: Prompts | None = None
) -> Prompt:
    """Return what a strategy gets of a request to `m`."""
    return made(endpoint, body, prompts).prompt


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
