"""Endpoints in another form than OpenAI's: where their prompts are, and what limits hold."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from operator import eq
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.prompt.prompts import Prompts
from strategies.api import Prompt
from tests.support import (
    JSON,
    OK,
    MakeRouter,
    MakeStub,
    Router,
    Stub,
    post,
    read_all,
    until,
)

FOLLOWED = " And then? " * 20
LIMITS = {"n": 4, "max_tokens": 100, "images": 2, "messages": 5}


def talk(text: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def ids(text: str) -> list[int]:
    """Token ids that differ where texts do."""
    return list(text.encode())


#: Where the prompt is, by path: makes a body of a text.
PROMPTS: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("/v1/chat/completions/batch", lambda text: {"messages": [talk(text), talk("other")]}),
    ("/inference/v1/generate", lambda text: {"token_ids": ids(text), "sampling_params": {}}),
    ("/generate", lambda text: {"text": text}),
    ("/generate", lambda text: {"input_ids": ids(text)}),
    ("/cohere/v2/chat", lambda text: {"messages": talk(text)}),
    ("/api/chat", lambda text: {"messages": talk(text)}),
    ("/api/generate", lambda text: {"prompt": text}),
    ("/api/generate", lambda text: {"system": text, "prompt": "Go on."}),
    ("/v2/embed", lambda text: {"texts": [text]}),
    ("/encode", lambda text: {"text": text}),
    ("/encode", lambda text: {"input_ids": ids(text)}),
    ("/classify", lambda text: {"text": text}),
]


def prompt(path: str, body: dict[str, Any]) -> Prompt:
    """What strategies see of a request."""
    endpoint, data = ENDPOINTS[path], json.dumps({"model": "m", **body}).encode()
    return Prompts().prompt(endpoint, parse(endpoint, data, b"application/json"), data)


def shared(one: Prompt, other: Prompt) -> int:
    """How many keys two prompts begin with in common."""
    return sum(itertools.takewhile(bool, map(eq, one.keys, other.keys)))


@pytest.mark.parametrize(("path", "made"), PROMPTS)
def test_a_longer_prompt_begins_alike(path: str, made: Callable[[str], dict[str, Any]]) -> None:
    """The prompt is found wherever its endpoint has it, so that its beginning is recognised."""
    first, other = ("the king is a story of a king. " * 150, "the queen is another story. " * 150)
    keys = len(prompt(path, made(first)).keys)
    assert shared(prompt(path, made(first)), prompt(path, made(first + FOLLOWED))) >= keys - 2 > 0
    assert shared(prompt(path, made(first)), prompt(path, made(other))) == 0


def test_a_longer_prompt_goes_where_its_beginning_is(stub: MakeStub, route: MakeRouter) -> None:
    """That is what routing goes by."""
    router = route(stub().url, stub().url, stub().url, strategy="prefixaware")
    path, made = PROMPTS[1]
    texts = [f"{name} said: " + f"the {name} is a story of {name}. " * 150 for name in ("A", "B")]
    homes = [sent(router, path, made(text)) for text in texts]
    assert homes[0] != homes[1]
    for text, home in zip(texts, homes, strict=True):
        assert sent(router, path, made(text + FOLLOWED)) == home


def sent(router: Router, path: str, body: dict[str, Any]) -> str:
    """Send a request; return the worker that answered."""
    reply = router.http.post(path, json={"model": "m", **body})
    assert (reply.status_code, reply.content) == (200, JSON)
    until(router.idle)
    return reply.headers["x-warmroute-worker"]


BESIDE = [
    ("/generate", {"input_ids": ids("x" * 5000)}, {"image_data": "http://example/a.png"}),
    ("/generate", {"text": "x" * 5000}, {"extra_key": "mine"}),
    ("/generate", {"text": "x" * 5000}, {"lora_path": "adapter"}),
    ("/inference/v1/generate", {"token_ids": ids("x" * 5000)}, {"features": {"mm_hashes": {}}}),
    ("/inference/v1/generate", {"token_ids": ids("x" * 5000)}, {"cache_salt": "mine"}),
]


@pytest.mark.parametrize(("path", "body", "more"), BESIDE)
def test_what_else_makes_a_prompt_another(
    path: str, body: dict[str, Any], more: dict[str, Any]
) -> None:
    """Equal tokens with another image, adapter or cache are not in the same blocks."""
    assert shared(prompt(path, body), prompt(path, body)) > 1
    assert shared(prompt(path, {**body, **more}), prompt(path, {**body, **more})) > 1
    assert shared(prompt(path, body), prompt(path, {**body, **more})) == 0


def test_a_batch_is_all_of_its_conversations() -> None:
    """Each is computed, and each has an answer."""
    path = "/v1/chat/completions/batch"
    one = prompt(path, {"messages": [talk("x" * 4000)], "max_tokens": 50})
    three = prompt(path, {"messages": [talk("x" * 4000)] * 3, "max_tokens": 50})
    assert three.tokens > 2.5 * one.tokens
    assert three.answer_tokens == 3 * one.answer_tokens > 0


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions/render"])
def test_paths_that_compute_nothing(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """They are no load for a KV cache, and leave no prefix behind."""
    counted = threading.Event()
    router = route(stub([counted.is_set, *OK]).url, strategy="prefixaware")
    body = {"model": "m", "messages": talk("story " * 3000)}
    with post(router.port, path, json.dumps(body).encode(), b"connection: close") as client:
        until(lambda: router.worker().load.in_flight == 1)
        assert router.worker().load.kv_tokens == 0
        counted.set()
        assert read_all(client).endswith(JSON)
    explained = router.http.post("/explain?path=/v1/messages", json=body).json()
    assert explained["tokens"] > 1000
    assert [one["held_tokens"] for one in explained["workers"]] == [0]


def test_images_are_part_of_the_length() -> None:
    """Each counts, wherever the endpoint has it."""
    bare, pictured = ({"text": "x"}, {"text": "x", "image_data": ["a", "b"]})
    assert prompt("/generate", pictured).tokens > prompt("/generate", bare).tokens + 100
    assert prompt("/v2/embed", {"images": ["a"]}).tokens > 100


PART = {"type": "image_url", "image_url": {"url": "x"}}
IMAGE = {"role": "user", "content": [PART]}
#: What is over a limit, and the field that the error names.
OVER: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", {"text": "x", "sampling_params": {"n": 5}}, "sampling_params.n"),
    (
        *("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 101}}),
        "sampling_params.max_new_tokens",
    ),
    (
        *("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": "101"}}),
        "sampling_params.max_tokens",
    ),
    ("/api/generate", {"prompt": "x", "options": {"num_predict": 101}}, "options.num_predict"),
    ("/generate", {"text": "x", "image_data": ["a", "b", "c"]}, "image_data"),
    ("/generate", {"text": ["x", "y"], "image_data": [["a", "b"], ["c"]]}, "image_data"),
    (
        "/encode",
        {"text": "x", "image_data": "a", "video_data": ["b"], "audio_data": "c"},
        "audio_data",
    ),
    ("/inference/v1/generate", {"token_ids": [1], "content_parts": [PART] * 3}, "content_parts"),
    (
        *(
            "/inference/v1/generate",
            {"token_ids": [1], "features": {"mm_hashes": {"image": list("abc")}}},
        ),
        "features",
    ),
    ("/v2/embed", {"images": ["a", "b", "c"]}, "images"),
    ("/v2/embed", {"inputs": [{"content": [PART] * 3}]}, "inputs"),
    ("/v1/chat/completions/batch", {"messages": [[IMAGE], [IMAGE], [IMAGE]]}, "messages"),
    ("/v1/chat/completions/batch", {"messages": [talk("x") * 3] * 2}, "messages"),
    ("/v1/messages/count_tokens", {"messages": [IMAGE] * 3}, "messages"),
    ("/cohere/v2/chat", {"messages": talk("x") * 6}, "messages"),
]


@pytest.mark.parametrize(("path", "body", "field"), OVER)
def test_limits(tight: Router, path: str, body: dict[str, Any], field: str) -> None:
    """What OpenAI's requests may not ask for, others may not either."""
    reply = tight.http.post(path, json={"model": "m", **body})
    assert reply.status_code == 400
    assert "limit" in reply.text
    if field.partition(".")[2]:
        assert field in reply.text
    if "param" in reply.text:
        assert reply.json()["error"]["param"] == field


#: As much as the limits allow.
WITHIN: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": "x", "sampling_params": {"n": 4, "max_new_tokens": 100}}),
    ("/generate", {"text": "x", "sampling_params": "odd", "image_data": None}),
    ("/api/generate", {"prompt": "x", "options": {"num_predict": -1}}),
    ("/v1/chat/completions/batch", {"messages": [[IMAGE], [IMAGE]]}),
    ("/v1/chat/completions/batch", {"messages": "odd"}),
    ("/v2/embed", {"inputs": "odd", "images": [[], {}]}),
]


@pytest.mark.parametrize(("path", "body"), WITHIN)
def test_within_limits(tight: Router, path: str, body: dict[str, Any]) -> None:
    """All else is the worker's to judge."""
    assert sent(tight, path, body)


@pytest.fixture(scope="module")
def tight(worker: Stub) -> Iterator[Router]:
    """A router with low limits."""
    made = Router({"workers": [worker.url], "limits": LIMITS})
    yield made
    made.stop()
