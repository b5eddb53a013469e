"""What is learned of lengths: bytes per token, and tokens of answers."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.request import parse
from router.prompt.prompts import ANSWER_TOKENS, BYTES_PER_TOKEN, MAX_ANSWER_TOKENS, Prompts
from strategies.api import Prompt
from tests.prompt.prompted import (
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    LONG,
    prompt,
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ANSWER_TOKENS),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_output_tokens": 11}, 11),
        ({"max_tokens": 10**9}, ANSWER_TOKENS),
        ({"max_tokens": -1}, ANSWER_TOKENS),
        ({"max_tokens": "7"}, 7),
        ({"max_tokens": " +1_0.0 "}, 10),
        ({"max_tokens": 7.0}, 7),
        ({"max_tokens": "7.5"}, ANSWER_TOKENS),
        ({"max_tokens": "1e1"}, ANSWER_TOKENS),
        ({"max_tokens": [7]}, ANSWER_TOKENS),
        ({"max_tokens": None}, ANSWER_TOKENS),
    ],
)
def test_the_answers_room(body: dict[str, Any], expected: int) -> None:
    """The client's limit, as pydantic reads it, if plausible; 0 where no answer is generated."""
    assert prompt(CHAT, body).answer_tokens == expected
    assert prompt(EMBEDDINGS, body).answer_tokens == 0


def test_the_length_of_answers_is_learned() -> None:
    """The expected length is learned from answers, and never exceeds the client's limit."""
    prompts = Prompts()
    for _ in range(200):
        prompts.estimates.learn_answer(1000)
    request = parse(CHAT, json.dumps({"model": "m", "max_tokens": 100_000}).encode(), b"")
    assert prompts.prompt(CHAT, request).answer_tokens == pytest.approx(1000, rel=0.05)
    request = parse(CHAT, json.dumps({"model": "m", "max_tokens": 5}).encode(), b"")
    assert prompts.prompt(CHAT, request).answer_tokens == 5
    prompts.estimates.learn_answer(10**9)
    assert prompts.estimates.answer_tokens < MAX_ANSWER_TOKENS


def asked(prompts: Prompts, text: str) -> Prompt:
    """Return the prompt of a completion request."""
    raw = json.dumps({"model": "m", "prompt": text}).encode()
    return prompts.prompt(COMPLETION, parse(COMPLETION, raw, b""))


@pytest.mark.parametrize("truth", [1.5, 2.5, 4.0, 6.0, 10.0])
def test_bytes_per_token_are_learned(truth: float) -> None:
    """Reported usage corrects the estimate, upwards and downwards, despite noise."""
    prompts, chance = Prompts(), random.Random(1)
    for _ in range(400):
        found = asked(prompts, "x" * 8000)
        prompts.learn(found, int(8000 / truth * chance.uniform(0.9, 1.1)))
    assert prompts.estimates.bytes_per_token == pytest.approx(truth, rel=0.1)
    assert asked(prompts, "x" * 8000).tokens == pytest.approx(8000 / truth, rel=0.1)


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(-5, 10**12)), max_size=300))
def test_what_is_learned_is_bounded(reports: list[tuple[int, int]]) -> None:
    """The estimate stays in bounds whatever is reported, and one report hardly moves it later."""
    prompts = Prompts()
    for tokens, reported in reports:
        prompts.learn(Prompt("m", tokens, estimated=True), reported)
        assert 1.0 <= prompts.estimates.bytes_per_token <= 16.0
    for _ in range(50):
        prompts.learn(Prompt("m", 1000, estimated=True), 1000)
    before = prompts.estimates.bytes_per_token
    prompts.learn(Prompt("m", 1000, estimated=True), 10**9)
    assert prompts.estimates.bytes_per_token == pytest.approx(before, rel=0.05)


def test_what_was_learned_under_another_strategy_lasts() -> None:
    """One report hardly moves what the pool before it has learned from many."""
    before, after = Prompts(), Prompts()
    for _ in range(50):
        before.learn(Prompt("m", 1000, estimated=True), 1000)
        before.estimates.learn_answer(100)
    after.follow(before)
    after.learn(Prompt("m", 1000, estimated=True), 10**9)
    after.estimates.learn_answer(200)
    assert after.estimates.bytes_per_token == pytest.approx(BYTES_PER_TOKEN, rel=0.05)
    assert after.estimates.answer_tokens == pytest.approx(100, rel=0.1)


def test_short_and_exact_prompts_teach_nothing() -> None:
    """In a short prompt the chat template weighs too much; an exact one needs no estimate."""
    prompts = Prompts()
    prompts.learn(Prompt("m", 10, estimated=True), 1000)
    prompts.learn(Prompt("m", 1000), 10)
    prompts.learn(Prompt("m", 1000, estimated=True), 0)
    assert prompts.estimates.bytes_per_token == BYTES_PER_TOKEN


def test_keys_do_not_change_with_what_is_learned() -> None:
    """A better estimate of lengths leaves all keys as they are."""
    prompts = Prompts()
    before = asked(prompts, LONG)
    prompts.learn(before, before.tokens * 2)
    assert asked(prompts, LONG).keys == before.keys
    assert asked(prompts, LONG).tokens > before.tokens


@pytest.mark.parametrize(
    "body", [{"input": [LONG, LONG]}, {"input": [[1] * 500, [2] * 500]}, {"input": {"odd": LONG}}]
)
def test_batches_teach_nothing(body: dict[str, object]) -> None:
    """Reported usage covers the whole batch, but only its first prompt was read."""
    prompts = Prompts()
    for _ in range(20):
        raw = json.dumps({"model": "m", **body}).encode()
        prompts.learn(prompts.prompt(EMBEDDINGS, parse(EMBEDDINGS, raw, b"")), 100_000)
    assert prompts.estimates.bytes_per_token == BYTES_PER_TOKEN
