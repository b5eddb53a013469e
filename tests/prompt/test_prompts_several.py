"""Requests with several prompts: the first has keys, all of them count."""

import json
from array import array
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.request import parse
from router.prompt.prompts import Prompts
from strategies.api import Prompt
from strategies.cost.cost import Costs
from strategies.policies.least_load import LeastLoad
from tests.prompt.test_prompts_exact import knowing
from tests.strategies.workers import untold

COMPLETION, EMBEDDINGS = ENDPOINTS["/v1/completions"], ENDPOINTS["/v1/embeddings"]
TEXTS = ["All the king's horses. " * 90, "and all the king's men " * 40, "Größe"]
IDS = [list(range(500)), list(range(100, 400)), [7]]


def prompt(endpoint: Endpoint, prompts: Any, made: Prompts | None = None, **more: Any) -> Prompt:
    """Return what a strategy gets of a request with these prompts."""
    field = "prompt" if endpoint is COMPLETION else "input"
    body = json.dumps({"model": "m", field: prompts, **more}).encode()
    return (made or Prompts()).prompt(endpoint, parse(endpoint, body, b""), body)


@pytest.mark.parametrize("endpoint", [COMPLETION, EMBEDDINGS], ids=lambda e: e.path)
@pytest.mark.parametrize("prompts", [TEXTS, IDS], ids=["texts", "ids"])
def test_all_count(endpoint: Endpoint, prompts: list[Any]) -> None:
    """As many tokens as all of them alone, and as many answers; keys as the first alone. The first
    byte of a stream tells nothing of the others."""
    alone = [prompt(endpoint, one, stream=True) for one in prompts]
    found = prompt(endpoint, prompts, stream=True)
    assert found.tokens == pytest.approx(sum(one.tokens for one in alone), abs=3)
    assert found.further == 2
    assert found.further_tokens == found.tokens - alone[0].tokens
    assert found.answer_tokens == sum(one.answer_tokens for one in alone)
    assert found.keys == alone[0].keys != ()
    assert [one.stream for one in (alone[0], found)] == [True, False]
    assert not found.estimated


def test_one_in_a_list_is_alone() -> None:
    """It is as if it were not in a list."""
    for one in (TEXTS[0], IDS[0]):
        assert prompt(COMPLETION, [one], stream=True) == prompt(COMPLETION, one, stream=True)
    assert prompt(COMPLETION, []).further == 0


def test_all_count_where_the_first_is_tokenized() -> None:
    """The tokens of the others are estimated; those of ids are known."""

    class First:
        """A tokenizer of one token per byte, which tells the first of several prompts."""

        dated = False

        def ids(self, _: Endpoint, body: bytes, **__: object) -> bytes:
            """Return the first prompt's bytes."""
            first = json.loads(body)["prompt"][0]
            return array("I", list(first.encode()) if isinstance(first, str) else first).tobytes()

    prompts = knowing(m="m")
    prompts.known = {"m": prompts.known["m"]._replace(exact=First())}  # type: ignore[arg-type]
    found = prompt(COMPLETION, ["x" * 1000, "y" * 400, "z" * 400], prompts)
    assert (found.further, found.further_tokens) == (2, 200)
    assert (found.tokens, found.counted) == (1200, False)
    found = prompt(COMPLETION, IDS, prompts)
    assert (found.tokens, found.further_tokens) == (801, 301)
    assert prompt(COMPLETION, ["x" * 1000], prompts).tokens == 1000


#: Lists that are too long to be read entry by entry, or are no prompts at all, and about how many
#: tokens their entries have together.
UNREAD = {
    "texts": (["Hello there."] * 40_000, 160_000, 40_000),
    "long texts": (["Hello there. " * 10] * 30_000, 1_000_000, 30_000),
    "lists": ([[7, 8, 9]] * 40_000, 120_000, 40_000),
    "long lists": ([list(range(1000))] * 400, 400_000, 400),
    "large lists": ([[123_456] * 1000] * 400, 400_000, 400),
    "mixed": (["x" * 4000, *[None] * 40_000], 40_000, 1),
    "numbers": ([1.5] * 100_000, 100_000, 1),
}


class One:
    """A tokenizer to which every prompt is one token."""

    dated = False

    def ids(self, _: Endpoint, __: bytes, **___: object) -> bytes:
        """Return its id."""
        return array("I", [7]).tobytes()


@pytest.mark.parametrize("tokenized", [True, False])
@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_counts_too(name: str, tokenized: bool) -> None:
    """It never looks like its first prompt alone, whether or not that is tokenized."""
    prompts, tokens, count = UNREAD[name]
    made = knowing(**({"m": "m"} if tokenized else {}))
    made.known = {name: one._replace(exact=One()) for name, one in made.known.items()}  # type: ignore[arg-type]
    found = prompt(COMPLETION, prompts, made)
    assert 0.6 * tokens < found.tokens < 2 * tokens
    assert found.further == pytest.approx(count - 1, abs=2)
    assert found.answer_tokens == (1 + found.further) * prompt(COMPLETION, "x").answer_tokens


def test_each_is_computed_by_itself() -> None:
    """The tokens of one do not attend to those of the others, so all take as long as each alone."""
    worker, costs = untold(), Costs()
    several = Prompt("m", 90_000, further=8, further_tokens=80_000)
    (found,) = costs.rank(several, [worker], 0.0)
    (alone,) = costs.rank(Prompt("m", 10_000), [worker], 0.0)
    (whole,) = costs.rank(Prompt("m", 90_000), [worker], 0.0)
    assert found.cost.prefill == pytest.approx(9 * alone.cost.prefill)
    assert found.cost.prefill < 0.6 * whole.cost.prefill
    (held,) = costs.rank(several, [worker], 0.0, {"w": 10_000})
    assert held.cost.prefill == pytest.approx(8 * alone.cost.prefill)
    (held,) = costs.rank(several, [worker], 0.0, {"w": 10_001})  # rounded up
    assert held.cost.prefill == pytest.approx(8 * alone.cost.prefill)


def test_without_keys_all_count_too() -> None:
    """`leastload` looks at the length of the body only."""
    made = Prompts(keyed=LeastLoad.capabilities.reads_prompt)
    assert not made.keyed
    found, first = (prompt(COMPLETION, one, made) for one in (TEXTS, TEXTS[0]))
    assert found.tokens > 1.3 * first.tokens
