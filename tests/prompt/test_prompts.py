"""What strategies get of a request: its length, its keys by tokens or by text, and its answers."""

import random
from array import array
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.endpoints import Endpoint
from router.api.request import parse
from router.prompt.prompts import (
    ANSWER_TOKENS,
    BYTES_PER_TOKEN,
    MAX_ANSWER_TOKENS,
    PART_TOKENS,
    UNKNOWN_MODEL,
    Prompts,
)
from router.rendering.messages import NOT_TEXT, NotReproducible
from router.rendering.tokens import PromptHead
from strategies.api import Prompt
from strategies.cost.cost import Costs, held_tokens
from strategies.policies.least_load import LeastLoad
from tests.prompt.prompted import (
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    LONG,
    RESPONSES,
    Tokenizer,
    knowing,
    known,
    prompt,
    says,
)
from tests.strategies.workers import untold


def letters(fields: dict[str, Any]) -> Iterable[int]:
    """Return one id for each byte of the first prompt; refuse texts with a question mark."""
    text = fields.get("prompt") or "".join(one["content"] for one in fields["messages"])
    text = text[0] if isinstance(text, list) else text
    if "?" in text:
        raise NotReproducible("a question")
    return text.encode() if isinstance(text, str) else text


# Prompts whose tokens are known, and those of the same models whose tokens are not.


def test_tokens_are_counted() -> None:
    """Tokens are counted, not estimated, and teach nothing about bytes per token."""
    prompts = knowing(Tokenizer(letters))
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 1000)
    found = prompts.prompt(COMPLETION, parse(COMPLETION, body, b""), body)
    assert (found.tokens, found.counted, found.estimated) == (1000, True, False)
    assert held_tokens(found, len(found.keys)) == 64 * len(found.keys)
    prompts.learn(found, 1000)
    assert prompts.miscounted == 0
    prompts.learn(found, 1001)
    assert prompts.miscounted == 1
    assert prompts.estimates.bytes_per_token == BYTES_PER_TOKEN
    assert prompts.by_reason == {"": 1}


def test_keys_are_of_tokens_alone() -> None:
    """The same tokens have the same keys, as a completion and as a chat."""
    prompts = knowing(Tokenizer(letters))
    text = "".join(map(chr, range(64, 126))) * 7
    one = prompt(COMPLETION, {"prompt": text}, prompts)
    assert one.keys == prompt(CHAT, {"messages": says(text)}, prompts).keys
    longer = prompt(COMPLETION, {"prompt": text + text}, prompts)
    assert list(longer.keys[: len(one.keys)]) == list(one.keys)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({}, {"model": "alias"}, True),
        ({}, {"model": "adapter"}, False),
        ({}, {"cache_salt": "a"}, False),
        ({"cache_salt": "b"}, {"cache_salt": "a"}, False),
        ({"cache_salt": "a"}, {"model": "alias", "cache_salt": "a"}, True),
        ({}, {"prompt_cache_key": "a"}, False),
        ({"prompt_cache_key": "b"}, {"prompt_cache_key": "a"}, False),
        ({"cache_salt": "a"}, {"prompt_cache_key": "a"}, False),
    ],
)
@pytest.mark.parametrize("text", ["x" * 2000, "x?" * 1000], ids=["tokens", "text"])
def test_identity_beyond_tokens(
    one: dict[str, str], other: dict[str, str], alike: bool, text: str
) -> None:
    """Names of the same model share their keys; adapters, salts and cache keys do not."""
    prompts, exact = Prompts(), Tokenizer(letters)
    identities = {"m": "root", "alias": "root", "adapter": "root adapter"}
    prompts.known = {name: known(exact, identity) for name, identity in identities.items()}
    first, second = (prompt(COMPLETION, {"prompt": text, **more}, prompts) for more in (one, other))
    assert first.keys
    assert (first.keys == second.keys) is alike
    assert bool(set(first.keys) & set(second.keys)) is alike


def test_what_is_not_known_is_keyed_by_text() -> None:
    """Such prompts are keyed by their text, and counted by the reason."""
    prompts = knowing(Tokenizer(letters))
    for model, text in (("m", "who? " * 400), ("other", "x")):
        body = b'{"model":"%b","prompt":"%b"}' % (model.encode(), text.encode())
        found = prompts.prompt(COMPLETION, parse(COMPLETION, body, b""), body)
        assert (found.estimated, found.counted) == (True, False)
        assert found.keys == prompt(COMPLETION, {"model": model, "prompt": text}).keys
    assert prompts.by_reason == {"a question": 1, UNKNOWN_MODEL: 1}


def test_a_strategy_that_needs_no_keys() -> None:
    """Nothing is tokenized or counted by reason; only the length of the body is taken."""
    prompts = Prompts(keyed=LeastLoad.capabilities.reads_prompt)
    prompts.known = knowing(Tokenizer(letters)).known
    body = b'{"model":"m","prompt":"%b"}' % (b"x" * 1000)
    assert not prompts.prompt(COMPLETION, parse(COMPLETION, body, b""), body).keys
    assert not prompts.by_reason
    several, first = (prompt(COMPLETION, {"prompt": one}, prompts) for one in (TEXTS, TEXTS[0]))
    assert several.tokens > 1.3 * first.tokens


def test_a_sum_is_not_compared() -> None:
    """Usage covers a whole batch, of which only the first is tokenized: not compared."""
    prompts = knowing(Tokenizer(letters))
    found = prompt(COMPLETION, {"prompt": [1, 2]}, knowing(Tokenizer(lambda _: [1])))
    assert not found.counted
    prompts.learn(found, 500)
    assert prompts.miscounted == 0


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
    found = prompt(CHAT, {"messages": says("text")}, knowing(Seeing(), media=True))
    assert (found.tokens, found.counted) == (900 + 2 * PART_TOKENS, False)
    assert 0 < held_tokens(found, len(found.keys)) <= 400


# Requests with several prompts: the first has keys, all of them count.

TEXTS = ["All the king's horses. " * 90, "and all the king's men " * 40, "Größe"]
IDS = [list(range(500)), list(range(100, 400)), [7]]


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [(COMPLETION, "prompt"), (EMBEDDINGS, "input")],
    ids=lambda value: getattr(value, "path", value),
)
@pytest.mark.parametrize("prompts", [TEXTS, IDS], ids=["texts", "ids"])
def test_all_count(endpoint: Endpoint, field: str, prompts: list[Any]) -> None:
    """As many tokens as all of them alone, and as many answers; keys as the first alone. The first
    byte of a stream tells nothing of the others."""
    alone = [prompt(endpoint, {field: one, "stream": True}) for one in prompts]
    found = prompt(endpoint, {field: prompts, "stream": True})
    assert found.tokens == pytest.approx(sum(one.tokens for one in alone), abs=3)
    assert found.further == 2
    assert found.further_tokens == found.tokens - alone[0].tokens
    assert found.answer_tokens == sum(one.answer_tokens for one in alone)
    assert found.keys == alone[0].keys != ()
    assert [one.stream for one in (alone[0], found)] == [True, False]
    assert not found.estimated
    assert prompt(endpoint, {field: prompts[:1], "stream": True}) == alone[0]
    assert prompt(endpoint, {field: []}).further == 0


def test_all_count_where_the_first_is_tokenized() -> None:
    """The tokens of the others are estimated; those of ids are known."""
    prompts = knowing(Tokenizer(letters))
    found = prompt(COMPLETION, {"prompt": ["x" * 1000, "y" * 400, "z" * 400]}, prompts)
    assert (found.further, found.further_tokens) == (2, 200)
    assert (found.tokens, found.counted) == (1200, False)
    found = prompt(COMPLETION, {"prompt": [[1] * 500, *IDS[1:]]}, prompts)
    assert (found.tokens, found.further_tokens) == (801, 301)
    assert prompt(COMPLETION, {"prompt": ["x" * 1000]}, prompts).tokens == 1000


#: Lists that are too long to be read entry by entry, or are no prompts at all, and about how many
#: tokens their entries have together.
UNREAD = {
    "texts": (["Hello there."] * 40_000, 160_000, 40_000),
    "long texts": (["Hello there. " * 10] * 30_000, 1_000_000, 30_000),
    "lists": ([[7, 8, 9]] * 40_000, 120_000, 40_000),
    "long lists": ([list(range(1000))] * 400, 400_000, 400),
    "mixed": (["x" * 4000, *[None] * 40_000], 40_000, 1),
    "numbers": ([1.5] * 100_000, 100_000, 1),
}


@pytest.mark.parametrize("tokenized", [True, False])
@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_counts_too(name: str, tokenized: bool) -> None:
    """It never looks like its first prompt alone, whether or not that is tokenized."""
    listed, tokens, count = UNREAD[name]
    prompts = knowing(Tokenizer(lambda _: [7])) if tokenized else Prompts()
    found = prompt(COMPLETION, {"prompt": listed}, prompts)
    assert 0.6 * tokens < found.tokens < 2 * tokens
    assert found.further == pytest.approx(count - 1, abs=2)
    assert found.answer_tokens == (1 + found.further) * ANSWER_TOKENS


def test_each_is_computed_by_itself() -> None:
    """The tokens of one do not attend to those of the others, so all take as long as each alone."""
    worker, costs = untold(), Costs()
    several = Prompt("m", 90_000, further=8, further_tokens=80_000)
    (found,) = costs.rank(several, [worker], 0.0)
    (alone,) = costs.rank(Prompt("m", 10_000), [worker], 0.0)
    assert found.cost.prefill == pytest.approx(9 * alone.cost.prefill)
    (held,) = costs.rank(several, [worker], 0.0, {"w": 10_001})  # rounded up
    assert held.cost.prefill == pytest.approx(8 * alone.cost.prefill)


# Answers, and what is learned of lengths.


@pytest.mark.parametrize(("stream", "expected"), [(True, True), ("yes", True), (0, False)])
def test_what_the_first_byte_tells(stream: object, expected: bool) -> None:
    """That of a stream comes with the first token; but a response begins before that."""
    assert prompt(CHAT, {"stream": stream}).stream is expected
    assert prompt(RESPONSES, {"input": "x", "stream": stream}).stream is False


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ANSWER_TOKENS),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_output_tokens": 11}, 11),
        ({"max_tokens": 10**9}, ANSWER_TOKENS),
        ({"max_tokens": -1}, ANSWER_TOKENS),
        ({"max_tokens": " +1_0.0 "}, 10),
        ({"max_tokens": 7.0}, 7),
        ({"max_tokens": "1e1"}, ANSWER_TOKENS),
        ({"max_tokens": [7]}, ANSWER_TOKENS),
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
    found = prompt(CHAT, {"max_tokens": 100_000}, prompts)
    assert found.answer_tokens == pytest.approx(1000, rel=0.05)
    assert prompt(CHAT, {"max_tokens": 5}, prompts).answer_tokens == 5
    prompts.estimates.learn_answer(10**9)
    assert prompts.estimates.answer_tokens < MAX_ANSWER_TOKENS


@pytest.mark.parametrize("truth", [1.5, 10.0])
def test_bytes_per_token_are_learned(truth: float) -> None:
    """Reported usage corrects the estimate, upwards and downwards, despite noise; keys stay."""
    prompts, chance, body = Prompts(), random.Random(1), {"prompt": LONG * 4}
    before, size = prompt(COMPLETION, body, prompts), len(LONG) * 4
    for _ in range(400):
        found = prompt(COMPLETION, body, prompts)
        prompts.learn(found, int(size / truth * chance.uniform(0.9, 1.1)))
    assert prompts.estimates.bytes_per_token == pytest.approx(truth, rel=0.1)
    after = prompt(COMPLETION, body, prompts)
    assert after.tokens == pytest.approx(size / truth, rel=0.1)
    assert after.keys == before.keys


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(-5, 10**12)), max_size=300))
def test_what_is_learned_is_bounded(reports: list[tuple[int, int]]) -> None:
    """The estimate stays in bounds whatever is reported. Later one report hardly moves it, also
    under another strategy that takes it over."""
    prompts, after = Prompts(), Prompts()
    for tokens, reported in reports:
        prompts.learn(Prompt("m", tokens, estimated=True), reported)
        assert 1.0 <= prompts.estimates.bytes_per_token <= 16.0
    for _ in range(50):
        prompts.learn(Prompt("m", 1000, estimated=True), 1000)
        prompts.estimates.learn_answer(100)
    learned = prompts.estimates.bytes_per_token
    after.follow(prompts)
    after.learn(Prompt("m", 1000, estimated=True), 10**9)
    after.estimates.learn_answer(200)
    assert after.estimates.bytes_per_token == pytest.approx(learned, rel=0.05)
    assert after.estimates.answer_tokens == pytest.approx(100, rel=0.1)


def test_short_and_exact_prompts_teach_nothing() -> None:
    """In a short prompt the chat template weighs too much; an exact one needs no estimate."""
    prompts = Prompts()
    prompts.learn(Prompt("m", 10, estimated=True), 1000)
    prompts.learn(Prompt("m", 1000), 10)
    prompts.learn(Prompt("m", 1000, estimated=True), 0)
    odd = prompt(EMBEDDINGS, {"input": {"odd": LONG}}, prompts)
    prompts.learn(odd, 100_000)
    assert prompts.estimates.bytes_per_token == BYTES_PER_TOKEN
