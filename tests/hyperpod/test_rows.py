"""What HyperPod promises of routing: equal prompts go one way, and a crowd is spread."""

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.prompt.prompts import KnownModel, Prompts
from strategies.api import Candidate, Prompt, Strategy
from strategies.cost.load import Booking, Load
from strategies.cost.prefill import Pace
from strategies.prefix.block_keys import TEXT_ENDS, chain
from strategies.registry import make
from tests.rendering.folders import CHAT, ids, known, says, text


@dataclass(eq=False)
class Stand:
    """A worker as a strategy sees it."""

    name: str
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=Pace)
    kv_tokens: int | None = 400_000
    room_tokens: int | None = None


def prompt_of(words_: str) -> Prompt:
    """Return a prompt of this text at four bytes a token."""
    data = words_.encode()
    return Prompt("m", len(data) // 4, chain(0, data), TEXT_ENDS, 0.25, 100, stream=True)


class Run:
    """Places prompts as the router does."""

    def __init__(self, strategy: str, workers: int) -> None:
        self.strategy: Strategy = make(strategy, {})
        self.workers = [Stand(f"w{number}") for number in range(workers)]
        self.turn = 0

    def place(self, asked: Prompt, now: float = 0.0) -> tuple[Candidate, Stand, Booking]:
        choice = self.strategy.rank(asked, self.workers, now).candidates[0]
        worker = next(one for one in self.workers if one.name == choice.worker.name)
        self.turn += 1
        worker.load.turn = self.turn
        tokens = asked.tokens + asked.answer_tokens
        booking = worker.load.book(now, choice.cost.prefill, tokens)
        self.strategy.placed(asked, worker, now)
        return choice, worker, booking


def words(seed: str, tokens: int) -> str:
    """Return a text of its own, with four bytes a token."""
    return "".join(Random(seed).choices(ascii_lowercase, k=4 * tokens))


def test_r4_a_shared_system_prompt_pins_nobody() -> None:
    """200 users at once: no worker has more than 1.25 times its share, and nearly all is reused."""
    run = Run("prefixaware", 4)
    system, counts, held = words("s", 2000), Counter[str](), 0
    for user in range(200):
        choice, worker, _ = run.place(prompt_of(system + words(f"u{user}", 200)))
        counts[worker.name] += 1
        held += choice.held_tokens
    assert max(counts.values()) <= 1.25 * 200 / 4
    assert held >= 0.9 * 199 * 2000


def test_r13_a_hot_prefix_spills_and_comes_home() -> None:
    """A crowd spreads it; afterwards every request still finds it held, its first holder too."""
    run, hot = Run("prefixaware", 4), words("hot", 8000)
    _, home, booking = run.place(prompt_of(hot + words("first", 200)))
    home.load.release(booking, 1.0)
    _, again, booking = run.place(prompt_of(hot + words("second", 200)), 2.0)
    assert again is home
    home.load.release(booking, 3.0)
    crowd = [run.place(prompt_of(hot + words(f"c{user}", 2000)), 4.0) for user in range(24)]
    assert {worker.name for _, worker, _ in crowd} > {home.name}
    for _, worker, booking in crowd:
        worker.load.release(booking, 5.0)
    seen = set()
    for user in range(40):  # the first holder had most of the crowd, so the others come first
        choice, worker, booking = run.place(
            prompt_of(hot + words(f"l{user}", 200)), 10.0 + 5 * user
        )
        assert choice.held_tokens >= 0.9 * 8000
        worker.load.release(booking, 10.5 + 5 * user)
        seen.add(worker.name)
    assert home.name in seen


COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
LONG = "All the king's horses and all the king's men. " * 60
TALK = [says("system", LONG), says("user", LONG)]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PARTS = [says(one["role"], [{"type": "text", "text": one["content"]}]) for one in TALK]


def asked(path: str, **body: Any) -> Prompt:
    """Return the prompt of a request to a model whose tokenizer and template are known."""
    prompts, endpoint = Prompts(), ENDPOINTS[path]
    prompts.known = {"m": KnownModel("m", known("chatml"))}
    raw = json.dumps({"model": "m", **body}).encode()
    made = prompts.make(endpoint, parse(endpoint, raw, b""), raw)
    assert made.reason == ""
    return made.prompt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": PARTS}),
        (COMPLETIONS, {"prompt": text("chatml", messages=TALK)}),
        (COMPLETIONS, {"prompt": ids("chatml", messages=TALK)}),
        (RESPONSES, {"input": TALK}),
        (MESSAGES, {"system": LONG, "messages": TALK[1:], "max_tokens": 1}),
    ],
    ids=["parts", "text", "ids", "responses", "messages"],
)
def test_r3_one_prompt_goes_one_way(path: str, body: dict[str, Any]) -> None:
    """As a chat, text, token ids and so on, it is found where another form of it was sent."""
    chat, other = asked(CHAT, messages=TALK), asked(path, **body)
    assert (other.tokens, list(other.keys)) == (chat.tokens, list(chat.keys))
    run = Run("prefixaware", 4)
    _, home, booking = run.place(chat)
    home.load.release(booking, 1.0)
    choice, again, _ = run.place(other, 2.0)
    assert (again, choice.held_tokens > 0.9 * chat.tokens) == (home, True)


@pytest.mark.parametrize(
    ("body", "common"),
    [
        ({"messages": [says("user", LONG), says("user", LONG)]}, []),
        ({"messages": TALK, "tools": [TOOL]}, TALK[:1]),  # this model's template puts them there
    ],
    ids=["roles", "tools"],
)
def test_r3_roles_and_tools_count(body: dict[str, Any], common: list[dict[str, Any]]) -> None:
    """The same words in another role, or after a tool, are not held."""
    run = Run("prefixaware", 4)
    _, home, booking = run.place(asked(CHAT, messages=TALK))
    home.load.release(booking, 1.0)
    choice, _, _ = run.place(asked(CHAT, **body), 2.0)
    assert choice.held_tokens <= (asked(CHAT, messages=common).tokens if common else 0)
