"""What `benchmarks.prompts` compares: both ways give the same tokens as conversations grow."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks import prompts_texts
from benchmarks.prompts_texts import Texts, body
from benchmarks.prompts_ways import BLOCK, Plain, Router, cost, hashed
from tests.identity_live.models import make_model

LINES = [f"def f{number}(a, b):\n    return a + {number} * b  # naïve\n" for number in range(200)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model's folder."""
    return make_model(tmp_path / "model")


@pytest.fixture
def texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Texts:
    """Conversations of a few generated lines instead of the standard library's source."""
    monkeypatch.setattr(prompts_texts, "library", lambda: ["".join(LINES)])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Texts(1, lambda text: len(tokenizer.encode(text).ids))


@pytest.mark.parametrize("tokens", [500, 4000])
def test_both_ways_give_the_same_tokens(folder: Path, texts: Texts, tokens: int) -> None:
    """About as many tokens as asked for, and the next turn begins with them."""
    router, plain = Router(folder), Plain(folder)
    messages = texts.conversation(tokens)
    assert messages[-1]["role"] == "user"
    before = plain.ids(body(messages))
    grown = plain.ids(body(texts.turn(messages)))
    assert 0.7 * tokens < len(before) < 1.3 * tokens
    assert grown[: len(before)] == before
    for one in (messages, texts.turn(messages)):
        assert router.prompt(body(one)).counted
    assert router.prompt(body(messages)).tokens == len(before)


def test_no_two_conversations_share_a_message(texts: Texts) -> None:
    """Otherwise a tokenizer could cache it."""
    said = [one["content"] for _ in range(5) for one in texts.conversation(3000)]
    assert len(said) == len(set(said))


def test_steps_are_those_of_the_whole(folder: Path, texts: Texts) -> None:
    """Each step has a cost, and so has the whole."""
    router, one = Router(folder), body(texts.conversation(500))
    assert all(spent >= 0 for spent in router.steps(one).values())
    whole = cost(router.prompt, [one, one])
    assert whole.cpu > 0
    assert whole.wall > 0


def test_a_hash_names_a_block_and_all_before_it() -> None:
    """There is one hash for each full block."""
    ids = list(range(3 * BLOCK + 5))
    assert len(hashed(ids)) == 3
    assert hashed(ids)[:2] == hashed(ids[: 2 * BLOCK])
    assert hashed([9, *ids[1:]])[2] != hashed(ids)[2]


def test_a_body_is_a_request(texts: Texts) -> None:
    """As a client would write it, for the given model."""
    asked = json.loads(body(texts.conversation(300), "other"))
    assert asked["model"] == "other"
    assert asked["messages"]
