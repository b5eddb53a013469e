"""Workers that are asked for the tokens of every prompt, and about tools that nobody may choose."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.rendering.messages import NotReproducible
from router.rendering.tokens import UNKNOWN_TOOLS, without_unused_tools
from strategies.api import Capabilities
from strategies.policies.prefix_aware import PrefixAware
from tests.prompt.prompted import CHAT as CHATS
from tests.prompt.prompted import prompt
from tests.rendering.folders import TOOL
from tests.support import Router, until
from tests.tokenizers.asking import (
    CHAT,
    ask,
    keyed,
    states,
    tokenizer,
    until_asked,
    until_known,
)
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import Engine, card
from tests.tokenizers.models import OTHER, make_model

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def worker(engine: MakeEngine, folder: Path) -> Engine:
    """A worker that does not tell where it has its model from."""
    return engine(folder, [card("m")])


def until_asking(router: Router, model: str = "m") -> None:
    """Wait until the router asks workers for that model's tokens."""
    until(lambda: any(model in pool.prompts.asked for pool in router.door.fleet.pools))


def asking(start: Start, *workers: Engine) -> Router:
    """Start a router that asks these workers for the tokens of every prompt."""
    router = start(*workers, tokenizer="worker")
    until_asking(router)
    return router


def reason(router: Router, words: str) -> int:
    """Return how many prompts were keyed by text for this reason."""
    labels = {"pool": "default", "reason": words}
    return int(router.metric("warmroute_prompts_by_text_total", **labels))


def test_prompts_are_keyed_by_what_a_worker_says(start: Start, worker: Engine) -> None:
    """Chats and plain prompts with every field that changes tokens; prompts given as ids need no
    question. `/tokenize` does not accept an older field name, which chats do."""
    router = asking(start, worker)
    assert tokenizer(router)["source"] == "worker"
    asked = len(worker.tokenized)
    tools = [{"type": "function", "function": {"name": "f"}}]
    said = {"role": "assistant", "content": "yes"}
    talk = [*HELLO, {**said, "reasoning_content": "hm"}, *HELLO]
    chat = {"messages": talk, "reasoning_effort": "none", "tools": tools}
    for path, body in (
        ("chat/completions", {**chat, "temperature": 0.5, "max_tokens": 5}),
        ("completions", {"prompt": ["first", "second"], "add_special_tokens": False}),
        ("completions", {"prompt": [1, 2, 3]}),
        ("embeddings", {"input": "words"}),
    ):
        assert router.http.post(f"/v1/{path}", json={"model": "m", **body}).status_code == 200
    assert keyed(router, "tokens") == 4
    assert worker.tokenized[asked:] == [
        {
            "messages": [*HELLO, {**said, "reasoning": "hm"}, *HELLO],
            "tools": tools,
            "chat_template_kwargs": {"reasoning_effort": "none", "enable_thinking": False},
            "model": "m",
        },
        {"prompt": "first", "add_special_tokens": False, "model": "m"},
        {"prompt": "words", "add_special_tokens": True, "model": "m"},
    ]


def test_an_explanation_asks_too(start: Start, worker: Engine) -> None:
    """It finds the same as the request itself, and is not counted."""
    router = asking(start, worker)
    chat = {"model": "m", "messages": [{"role": "user", "content": "some words " * 200}]}
    assert router.http.post(CHAT, json=chat).status_code == 200
    until(router.idle)
    found = router.http.post("/explain", json=chat).json()
    assert found["reason"] == "prefix"
    assert found["workers"][0]["held_tokens"] > 0.9 * found["tokens"]
    assert keyed(router, "tokens") == 1


def test_what_is_not_asked(start: Start, worker: Engine) -> None:
    """Such prompts are keyed by text, with a reason."""
    router = asking(start, worker)
    asked = len(worker.tokenized)
    plain = {"prompt": "x"}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("messages", {}, "a dialect that workers do not tokenize"),
        ("chat/completions", {"documents": [{"text": "x"}]}, "documents"),
        ("chat/completions", {"chat_template": "{{ 1 }}"}, "a template of its own"),
        ("chat/completions", {"zz": "x" * (1 << 20)}, "too long"),
        ("completions", {**plain, "prompt_embeds": "y"}, "embeddings"),
        ("completions", {**plain, "suffix": "y"}, "a suffix"),
        ("completions", {"prompt": [-1]}, "odd token ids"),
        ("completions", {**plain, "truncate_prompt_tokens": 3}, "truncated by the engine"),
    ]
    for path, body, why in cases:
        router.http.post(f"/v1/{path}", json={"model": "m", "messages": HELLO, **body})
        assert (reason(router, why), why) == (1, why)
    assert len(worker.tokenized) == asked
    assert keyed(router, "text") == len(cases)


def test_a_worker_that_does_not_answer(
    start: Start, worker: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request waits briefly, later ones do not. One that a worker refuses is sent all the
    same, as its own answer tells the client why."""
    router = asking(start, worker)
    worker.status = 400
    assert ask(router) == 200
    assert reason(router, "refused by a worker") == 1
    monkeypatch.setattr("router.tokenizers.worker_tokenizer.PROMPT_TIMEOUT_S", 0.1)
    worker.hold.clear()
    assert [ask(router), ask(router)] == [200, 200]
    assert reason(router, "no worker tokenizes") == 2
    worker.hold.set()


def test_no_workers_tokens_are_used(
    engine: MakeEngine, start: Start, worker: Engine, tmp_path: Path
) -> None:
    """If workers differ among themselves, or if none has a tokenizer."""
    other = engine(make_model(tmp_path / "x", OTHER), [card("m")])
    router = start(worker, other, tokenizer="worker")
    until(lambda: sorted(states(router).values()) == ["agrees", "differs"])
    assert not router.door.fleet.pools[0].prompts.asked
    difference = next(w["difference"] for w in tokenizer(router)["workers"] if w["difference"])
    assert difference["before"] == ""
    worker.status = 404
    router = start(worker, tokenizer="worker")
    until_asked(router, worker)
    assert tokenizer(router)["reason"] == "no worker answers"
    assert ask(router) == 200
    assert keyed(router, "text") == 1


def test_a_strategy_that_needs_tokens(
    engine: MakeEngine, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `auto`, workers are asked only if the strategy needs tokens and no other source is
    known."""
    monkeypatch.setattr(PrefixAware, "capabilities", Capabilities(needs_tokens=True))
    cards = [card("m"), card("n", folder), card("gone", "/nowhere/model")]
    router = start(engine(folder, cards))
    until_asking(router)
    until_asking(router, "gone")
    until(lambda: tokenizer(router, "n").get("keyed") == "tokens")
    assert tokenizer(router, "n")["source"] == "folder"
    assert "n" not in router.door.fleet.pools[0].prompts.asked
    assert ask(router, model="gone") == ask(router, model="n") == 200
    assert keyed(router, "tokens") == 2
    assert json.dumps(tokenizer(router, "gone")).count("the strategy needs them") == 1


# Tools with `tool_choice: none`: engines write them into the prompt, or leave them out.

AUTO: dict[str, Any] = {"messages": HELLO, "tools": [TOOL]}
NONE: dict[str, Any] = {**AUTO, "tool_choice": "none"}


@pytest.mark.parametrize("left_out", [False, True])
def test_all_workers_do_the_same(
    engine: MakeEngine, start: Start, folder: Path, *, left_out: bool
) -> None:
    """The router finds out which, and tokenizes prompts as the workers do."""
    workers = engine(folder), engine(folder)
    for worker in workers:
        worker.left_out = left_out
    router = start(*workers)
    until_known(router)
    prompts = router.door.fleet.pools[0].prompts
    assert ask(router, **AUTO) == 200
    assert prompts.known["m"].left_out is None, "nobody needs to know"
    assert ask(router, **NONE) == 200
    until(lambda: prompts.known["m"].left_out is left_out)
    hello, auto, none = (
        prompt(CHATS, body, prompts).keys for body in ({"messages": HELLO}, AUTO, NONE)
    )
    assert none == (hello if left_out else auto)
    assert auto != hello
    assert ask(router, **NONE) == 200
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0
    assert keyed(router, "text") == 1


@pytest.mark.parametrize("how", ["left_out", "mute"])
def test_nobody_knows(engine: MakeEngine, start: Start, folder: Path, how: str) -> None:
    """If workers do not do the same, or one does not tell, such prompts are keyed by text, with a
    reason."""
    one, two = engine(folder), engine(folder)
    setattr(one, how, True)
    router = start(one, two)
    until_known(router)
    until_asked(router, one, two)
    until(lambda: router.door.fleet.pools[0].prompts.known["m"].left_out is None)
    assert ask(router, **NONE) == ask(router, **AUTO) == 200
    assert (keyed(router, "text"), keyed(router, "tokens")) == (1, 1)
    assert reason(router, UNKNOWN_TOOLS) == 1


def test_workers_that_are_asked_for_tokens(start: Start, worker: Engine) -> None:
    """They are asked without the tools that they leave out."""
    worker.left_out = True
    router = asking(start, worker)
    assert ask(router, **NONE) == 200
    until(lambda: router.door.keeper.cases[0].left_out)
    for asked, tools in ((NONE, False), (AUTO, True)):
        assert ask(router, **asked) == 200
        assert ("tools" in worker.tokenized[-1]) is tools
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0


@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
def test_dialects(choice: object) -> None:
    """`/v1/messages` has its own way of saying it. Without tools, or with another choice, it does
    not matter what engines do."""
    asked = {"tools": [TOOL], "tool_choice": choice}
    assert without_unused_tools(asked, left_out=True) == {"tool_choice": choice}
    assert without_unused_tools(asked, left_out=False) is asked
    with pytest.raises(NotReproducible, match="leave out"):
        without_unused_tools(asked, left_out=None)
    for other in ({"tool_choice": choice}, {"tools": [TOOL]}, {"tools": [], "tool_choice": choice}):
        assert without_unused_tools(other, left_out=None) is other
