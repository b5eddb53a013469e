"""Row R3 of docs/hyperpod.md: a prompt goes to the same worker, in whatever form it is sent."""

import json
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.prompt.prompts import KnownModel, Prompts
from strategies.api import Prompt
from tests.hyperpod.test_rows import Run
from tests.rendering.folders import CHAT, ids, known, says, text

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
