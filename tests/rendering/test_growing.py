"""Generated conversations that grow, and arbitrary requests."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS
from router.rendering.errors import NotReproducible
from router.rendering.folder import read_folder
from router.rendering.renderer import TemplateRenderer
from router.rendering.tokenizer import load
from router.rendering.tokens import PromptTokenizer
from tests.rendering.families import FAMILIES, folder
from tests.rendering.folders import CALL, CHAT, ids, known, reference, says

#: Families for which a longer conversation's prompt begins with the shorter one's.
GROWING = ("chatml", "llama", "mistral", "gemma", "witness", "witness-parts")
#: Without what a rendering adds for the next answer.
OPEN: dict[str, Any] = {"add_generation_prompt": False}
DATE: dict[str, Any] = {"chat_template_kwargs": {"date_string": "26 Jul 2024"}}

#: Models are created on first use, which takes a while.
unhurried = settings(deadline=None)

texts = st.text(max_size=40) | st.sampled_from(
    ["<|im_end|>", "<|im_start|>system\n", "<s>[INST]", "\n\n", " ", "</think>", "{{ x }}", "👩‍🚀"]
)
turns = st.lists(st.tuples(texts, texts), min_size=2, max_size=5)


def talk(turns: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return questions and answers in turn."""
    return [
        says(role, text)
        for pair in turns
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


@pytest.mark.parametrize("family", GROWING)
@unhurried
@given(turns=turns)
def test_a_longer_conversation_begins_with_the_shorter_one(
    family: str, turns: list[tuple[str, str]]
) -> None:
    """To the token, except for what asks for the next answer."""
    messages = talk(turns)
    whole = ids(family, messages=messages, **OPEN, **DATE)
    for length in range(2, len(messages), 2):
        shorter = ids(family, messages=messages[:length], **OPEN, **DATE)
        if family == "mistral" or family.startswith("witness"):
            assert whole[: len(shorter) - 1] == shorter[:-1]  # the last token may merge on
        else:
            assert whole[: len(shorter)] == shorter


@unhurried
@given(turns=turns)
def test_ids_are_those_of_the_text(turns: list[tuple[str, str]]) -> None:
    """Whatever is cached for the text between special tokens."""
    messages = talk(turns)
    for upto in range(1, len(messages) + 1):
        text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + "".join(
            f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages[:upto]
        )
        found = known("chatml").ids(
            ENDPOINTS[CHAT], json.dumps({"messages": messages[:upto], **OPEN}).encode()
        )
        assert found == reference("chatml").encode(text, special=False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "name", "tool_calls", "function", "arguments"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = (
    "messages",
    "tools",
    "documents",
    "chat_template_kwargs",
    "reasoning_effort",
    "kv_transfer_params",
    "input",
    "instructions",
    "system",
    "prompt",
)


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/completions"])
@unhurried
@given(asked=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4))
def test_nothing_else_than_unlike(path: str, asked: dict[str, Any]) -> None:
    """Any request gives ids or raises NotReproducible with a reason."""
    with suppress(NotReproducible):
        found = known("witness").ids(ENDPOINTS[path], json.dumps(asked).encode())
        assert len(found) % 4 == 0


DEEP = {**CALL, "function": {"name": "f", "arguments": "[" * 99_999}}
LONG = {**CALL, "function": {"name": "f", "arguments": "9" * 99_999}}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"messages": [says("user", "\ud800")]}, "not understood"),
        (
            {"messages": [says("user", "Hi")], "truncate_prompt_tokens": 5},
            "truncated by the engine",
        ),
        ({"messages": [says("assistant", tool_calls=[DEEP])]}, "odd tool calls"),
        ({"messages": [says("assistant", tool_calls=[LONG])]}, "odd tool calls"),
    ],
)
def test_what_engines_would_not_take(asked: dict[str, Any], reason: str) -> None:
    """Requests that engines refuse, or that only the engine can tokenize."""
    with pytest.raises(NotReproducible) as told:
        ids("chatml", **asked)
    assert told.value.reason == reason


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "no prompt"),
        ({"prompt": {"a": 1}}, "odd token ids"),
        ({"prompt": [True]}, "odd token ids"),
        ({"prompt": [2**32]}, "odd token ids"),
        ({"prompt": "a", "suffix": "b"}, "a suffix"),
        ({"prompt": "a", "prompt_embeds": "x"}, "embeddings"),
        ({"prompt": "a", "add_special_tokens": None}, "odd flags"),
    ],
)
def test_texts_that_are_none(asked: dict[str, Any], reason: str) -> None:
    """Prompts that are invalid, or more than a plain text."""
    with pytest.raises(NotReproducible) as told:
        ids("chatml", "/v1/completions", **asked)
    assert told.value.reason == reason


def test_deep_json_is_refused() -> None:
    """Deeply nested JSON does not exhaust the stack."""
    deep = b'{"messages": ' + b"[" * 99_999 + b"]" * 99_999 + b"}"
    with pytest.raises(NotReproducible, match="not understood"):
        known("chatml").ids(ENDPOINTS[CHAT], deep)


def test_a_rendering_is_bounded_by_its_request(tmp_path: Path) -> None:
    """A template that repeats everything many times is stopped."""
    bomb = "{% for m in messages %}{% for n in messages %}{{ n.content }}{% endfor %}{% endfor %}"
    path = folder(tmp_path, FAMILIES["chatml"], config={"chat_template": bomb})
    exact = PromptTokenizer(TemplateRenderer(read_folder(path), load(path)[0]))
    for count, fine in ((50, True), (500, False)):
        body = json.dumps({"messages": [says("user", "x" * 100)] * count}).encode()
        if fine:
            assert exact.ids(ENDPOINTS[CHAT], body)
        else:
            with pytest.raises(NotReproducible, match="rendered too long"):
                exact.ids(ENDPOINTS[CHAT], body)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place of a value in a body: its container, and its key or index there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, one in list(inner):
        found.append((value, key))
        if isinstance(one, dict | list):
            found += places(one)
    return found


CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("cases.json").read_text(encoding="utf-8")
)


@unhurried
@given(case=st.sampled_from(CASES), place=st.integers(0, 999), odd=json_values)
def test_one_thing_may_be_odd(case: dict[str, Any], place: int, odd: Any) -> None:
    """An arbitrary value somewhere in a valid request gives ids or raises NotReproducible."""
    asked = json.loads(json.dumps(case["asked"]))
    found = places(asked)
    holder, key = found[place % len(found)]
    holder[key] = odd
    with suppress(NotReproducible):
        known(case["family"]).ids(ENDPOINTS[case["path"]], json.dumps(asked).encode())
