"""Workers that are asked for the tokens of every prompt."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.tokenizers import worker_tokenizer
from strategies.api import Capabilities
from strategies.policies.prefix_aware import PrefixAware
from tests.support import Router, until
from tests.tokenizers.asking import ask, keyed, states, tokenizer, until_asked
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import card
from tests.tokenizers.models import OTHER, make_model

ASKING = {"tokenizer": "worker"}


def until_asking(router: Router, model: str = "m") -> None:
    """Wait until the router asks workers for that model's tokens."""
    until(lambda: any(model in pool.prompts.asked for pool in router.door.fleet.pools))


def reason(router: Router, words: str) -> int:
    """Return how many prompts were keyed by text for this reason."""
    labels = {"pool": "default", "reason": words}
    return int(router.metric("warmroute_prompts_by_text_total", **labels))


def test_prompts_are_keyed_by_what_a_worker_says(
    engine: MakeEngine, start: Start, folder: Path
) -> None:
    """Chats and plain prompts with every field that changes tokens; prompts given as ids need no
    question."""
    worker = engine(folder, [card("m")])
    router = start(worker, **ASKING)
    until_asking(router)
    assert tokenizer(router)["source"] == "worker"
    asked = len(worker.tokenized)
    chat = {"messages": [{"role": "user", "content": "hello"}], "reasoning_effort": "none"}
    tools = [{"type": "function", "function": {"name": "f"}}]
    for path, body in (
        ("chat/completions", {**chat, "tools": tools, "temperature": 0.5, "max_tokens": 5}),
        ("completions", {"prompt": ["first", "second"], "add_special_tokens": False}),
        ("completions", {"prompt": [1, 2, 3]}),
        ("embeddings", {"input": "words"}),
    ):
        assert router.http.post(f"/v1/{path}", json={"model": "m", **body}).status_code == 200
    assert keyed(router, "tokens") == 4
    thinking = {"reasoning_effort": "none", "enable_thinking": False}
    assert worker.tokenized[asked:] == [
        {
            "messages": chat["messages"],
            "tools": tools,
            "chat_template_kwargs": thinking,
            "model": "m",
        },
        {"prompt": "first", "add_special_tokens": False, "model": "m"},
        {"prompt": "words", "add_special_tokens": True, "model": "m"},
    ]


def test_an_explanation_asks_too(engine: MakeEngine, start: Start, folder: Path) -> None:
    """It finds the same as the request itself, and is not counted."""
    router = start(engine(folder, [card("m")]), **ASKING)
    until_asking(router)
    chat = {"model": "m", "messages": [{"role": "user", "content": "some words " * 200}]}
    assert router.http.post("/v1/chat/completions", json=chat).status_code == 200
    until(router.idle)
    found = router.http.post("/explain", json=chat).json()
    assert found["reason"] == "prefix"
    assert found["workers"][0]["held_tokens"] > 0.9 * found["tokens"]
    assert keyed(router, "tokens") == 1


def test_thoughts_are_asked_under_their_name(
    engine: MakeEngine, start: Start, folder: Path
) -> None:
    """`/tokenize` does not accept the older field name, which chats do."""
    worker = engine(folder, [card("m")])
    router = start(worker, **ASKING)
    until_asking(router)
    said = {"role": "assistant", "content": "yes"}
    hello = {"role": "user", "content": "hello"}
    chat = [hello, {**said, "reasoning_content": "hm"}, hello]
    router.http.post("/v1/chat/completions", json={"model": "m", "messages": chat})
    assert worker.tokenized[-1]["messages"] == [hello, {**said, "reasoning": "hm"}, hello]


@pytest.mark.parametrize(
    "case",
    [
        ("messages", {"messages": []}, "a dialect that workers do not tokenize"),
        ("chat/completions", {"messages": 5}, None),
        ("chat/completions", {"documents": [{"text": "x"}]}, "documents"),
        ("chat/completions", {"chat_template": "{{ 1 }}"}, "a template of its own"),
        ("completions", {"prompt": "x", "prompt_embeds": "y"}, "embeddings"),
        ("completions", {"prompt": "x", "suffix": "y"}, "a suffix"),
        ("completions", {"prompt": [-1]}, "odd token ids"),
        ("completions", {"prompt": [[True]]}, "odd token ids"),
        ("completions", {"prompt": "x", "truncate_prompt_tokens": 3}, "truncated by the engine"),
    ],
)
def test_what_is_not_asked(
    engine: MakeEngine, start: Start, folder: Path, case: tuple[str, dict[str, Any], str | None]
) -> None:
    """Such prompts are keyed by text, with a reason."""
    path, body, why = case
    worker = engine(folder, [card("m")])
    router = start(worker, **ASKING)
    until_asking(router)
    asked = len(worker.tokenized)
    chat = [{"role": "user", "content": "hello"}]
    router.http.post(f"/v1/{path}", json={"model": "m", "messages": chat, **body})
    assert len(worker.tokenized) == asked
    assert keyed(router, "text") == 1
    assert why is None or reason(router, why) == 1


def test_a_worker_that_does_not_answer(
    engine: MakeEngine, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request waits briefly, later ones do not."""
    monkeypatch.setattr(worker_tokenizer, "PROMPT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(worker_tokenizer, "PAUSE_S", 3600.0)
    worker = engine(folder, [card("m")])
    router = start(worker, **ASKING)
    until_asking(router)
    worker.hold.clear()
    assert [ask(router), ask(router)] == [200, 200]
    assert reason(router, "no worker tokenizes") == 2
    worker.hold.set()


def test_a_worker_that_refuses(engine: MakeEngine, start: Start, folder: Path) -> None:
    """The request is sent all the same, as the worker's own answer tells the client why."""
    worker = engine(folder, [card("m")])
    router = start(worker, **ASKING)
    until_asking(router)
    worker.status = 400
    assert ask(router) == 200
    assert reason(router, "refused by a worker") == 1


def test_workers_without_a_tokenizer(engine: MakeEngine, start: Start, folder: Path) -> None:
    """No worker can be asked, so prompts are keyed by text."""
    worker = engine(folder, [card("m")])
    worker.status = 404
    router = start(worker, **ASKING)
    until_asked(router, worker)
    assert tokenizer(router)["reason"] == "no worker answers"
    assert ask(router) == 200
    assert keyed(router, "text") == 1


def test_workers_that_differ_among_themselves(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """Then no worker's tokens are used."""
    one, two = engine(folder, [card("m")]), engine(make_model(tmp_path / "x", OTHER), [card("m")])
    router = start(one, two, **ASKING)
    until(lambda: sorted(states(router).values()) == ["agrees", "differs"])
    assert not router.door.fleet.pools[0].prompts.asked
    difference = next(w["difference"] for w in tokenizer(router)["workers"] if w["difference"])
    assert difference["before"] == ""


def test_a_strategy_that_needs_tokens(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
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
