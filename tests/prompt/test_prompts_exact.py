"""Prompts whose tokens are known, and prompts of the same models whose tokens are not."""

import json
from array import array
from typing import Any, cast

import pytest

from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.request import parse
from router.prompt.prompts import PART_TOKENS, UNKNOWN_MODEL, KnownModel, Prompts
from router.rendering.errors import NOT_TEXT, NotReproducible
from router.rendering.tokens import PromptHead, PromptTokenizer
from strategies.api import Prompt
from strategies.cost.cost import held_tokens

CHAT, COMPLETION = ENDPOINTS["/v1/chat/completions"], ENDPOINTS["/v1/completions"]


class Letters:
    """A tokenizer with one token per byte, which rejects texts with a question mark."""

    dated = False

    def ids(self, _endpoint: Endpoint, body: bytes, **_: object) -> bytes:
        """Return the bytes of the prompt, or of all messages' contents, as ids."""
        asked = json.loads(body)
        text = asked.get("prompt") or "".join(one["content"] for one in asked["messages"])
        if "?" in text:
            raise NotReproducible("a question")
        return array("I", list(text.encode())).tobytes()


def knowing(**identities: str) -> Prompts:
    """Build prompts with a tokenizer for these models, given by name and identity."""
    prompts = Prompts()
    exact = cast("PromptTokenizer", Letters())
    prompts.known = {name: KnownModel(identity, exact) for name, identity in identities.items()}
    return prompts


def ask(prompts: Prompts, text: str, endpoint: Endpoint = COMPLETION, **more: Any) -> Prompt:
    """Return the prompt of a request."""
    told = {"prompt": text} if endpoint is COMPLETION else {"messages": [_said(text)]}
    body = json.dumps({"model": "m", **told, **more}).encode()
    return prompts.prompt(endpoint, parse(endpoint, body, b""), body)


def _said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_tokens_are_counted() -> None:
    """Tokens are counted, not estimated, and teach nothing about bytes per token."""
    prompts = knowing(m="m")
    prompt = ask(prompts, "x" * 1000)
    assert prompt.tokens == 1000
    assert prompt.counted
    assert not prompt.estimated
    assert held_tokens(prompt, len(prompt.keys)) == 64 * len(prompt.keys)
    before = prompts.estimates.bytes_per_token
    prompts.learn(prompt, 1000)
    assert prompts.miscounted == 0
    prompts.learn(prompt, 1001)
    assert prompts.miscounted == 1
    assert prompts.estimates.bytes_per_token == before
    assert prompts.by_reason == {"": 1}


def test_keys_are_of_tokens_alone() -> None:
    """The same tokens have the same keys, as a completion and as a chat."""
    prompts = knowing(m="m")
    text = "".join(map(chr, range(40, 126))) * 5
    text = text.replace("?", "")
    one, other = ask(prompts, text), ask(prompts, text, CHAT)
    assert one.keys == other.keys
    longer = ask(prompts, text + text)
    assert list(longer.keys[: len(one.keys)]) == list(one.keys)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"model": "m"}, {"model": "alias"}, True),
        ({"model": "m"}, {"model": "adapter"}, False),
        ({"model": "m"}, {"model": "m", "cache_salt": "a"}, False),
        ({"model": "m", "cache_salt": "b"}, {"model": "m", "cache_salt": "a"}, False),
        ({"model": "m", "cache_salt": "a"}, {"model": "alias", "cache_salt": "a"}, True),
        ({"model": "m"}, {"model": "m", "prompt_cache_key": "a"}, False),
        ({"model": "m", "prompt_cache_key": "b"}, {"model": "m", "prompt_cache_key": "a"}, False),
        ({"model": "m", "cache_salt": "a"}, {"model": "m", "prompt_cache_key": "a"}, False),
    ],
)
@pytest.mark.parametrize("text", ["x" * 2000, "x?" * 1000], ids=["tokens", "text"])
def test_identity_beyond_tokens(
    one: dict[str, str], other: dict[str, str], alike: bool, text: str
) -> None:
    """Names of the same model share their keys; adapters, salts and cache keys do not."""
    prompts = knowing(m="root", alias="root", adapter="root adapter")
    first, second = (ask(prompts, text, COMPLETION, **asked) for asked in (one, other))
    assert first.keys
    assert (first.keys == second.keys) is alike
    assert bool(set(first.keys) & set(second.keys)) is alike


def test_what_is_not_known_is_keyed_by_text() -> None:
    """Such prompts are keyed by their text, and counted by the reason."""
    prompts = knowing(m="m")
    odd = ask(prompts, "who? " * 400)
    assert odd.estimated
    assert odd.keys
    assert not odd.counted
    ask(prompts, "x", model="other")
    assert prompts.by_reason == {"a question": 1, UNKNOWN_MODEL: 1}
    by_text = ask(Prompts(), "who? " * 400)
    assert by_text.keys == odd.keys


def test_nobody_looks() -> None:
    """For a strategy that needs no keys, nothing is tokenized."""
    prompts = Prompts(keyed=False)
    prompts.known = knowing(m="m").known
    prompt = ask(prompts, "x" * 1000)
    assert not prompt.keys
    assert not prompts.by_reason


def test_a_sum_is_not_compared() -> None:
    """Usage covers a whole batch, of which only the first is tokenized: not compared."""
    prompts = knowing(m="m")
    body = json.dumps({"model": "m", "prompt": [1, 2]}).encode()
    prompts.known["m"].exact.ids = lambda *_, **__: b"\1\0\0\0"  # type: ignore[method-assign]
    prompt = prompts.prompt(COMPLETION, parse(COMPLETION, body, b""), body)
    assert not prompt.counted
    prompts.learn(prompt, 500)
    assert prompts.miscounted == 0


@pytest.mark.parametrize(
    ("more", "dated", "sent"),
    [
        ({}, False, True),
        ({"tools": [{}]}, False, True),
        ({"tool_choice": "none"}, False, True),
        ({"tools": [{}], "tool_choice": "auto"}, False, True),
        ({"tools": [{}], "tool_choice": "none"}, False, False),
        ({}, True, False),
    ],
)
def test_which_ids_are_sent_along(more: dict[str, Any], dated: bool, sent: bool) -> None:
    """No ids are sent if the engine might build others: without the tools, or with another date."""
    exact = Letters()
    exact.dated = dated
    prompts = Prompts()
    prompts.known = {"m": KnownModel("m", cast("PromptTokenizer", exact), forward=True)}
    body = json.dumps({"model": "m", "messages": [_said("x" * 100)], **more}).encode()
    made = prompts.made(CHAT, parse(CHAT, body, b""), body)
    assert made.reason == ""
    assert (made.along is not None) is sent


class Seeing:
    """A tokenizer that knows the beginning of a chat with images."""

    dated = False

    def ids(self, _endpoint: Endpoint, _body: bytes, **_: object) -> bytes:
        """Refuse: there are images."""
        raise NotReproducible(NOT_TEXT)

    def head(self, _endpoint: Endpoint, _body: bytes, **_: object) -> PromptHead:
        """Return 400 tokens, and two images with 500 more beside them."""
        return PromptHead(array("I", range(400)).tobytes(), 900, 2)


def test_blocks_before_the_first_image_are_not_all() -> None:
    """More may be cached than they cover, so their number says that there are images."""
    prompts = Prompts()
    prompts.known = {"m": KnownModel("m", cast("PromptTokenizer", Seeing()), media=True)}
    found = ask(prompts, "text", CHAT)
    assert (found.tokens, found.counted) == (900 + 2 * PART_TOKENS, False)
    assert 0 < held_tokens(found, len(found.keys)) <= 400
