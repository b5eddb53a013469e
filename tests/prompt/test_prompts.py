"""How prompts are read: equal conversations give equal keys, however they are written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.request import parse
from router.prompt.prompts import BYTES_PER_TOKEN, Prompts
from strategies.prefix.block_keys import TEXT_BLOCK
from tests.prompt.prompted import (
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    LONG,
    MESSAGES,
    RESPONSES,
    TALK,
    prompt,
    says,
    shared,
)


@pytest.mark.parametrize("endpoint", [CHAT, MESSAGES, RESPONSES], ids=lambda e: e.path)
@pytest.mark.parametrize(
    "how",
    [
        {"separators": (",", ":")},
        {"indent": 4},
        {"ensure_ascii": False},
        {"sort_keys": True},
        {"separators": (" ,\n ", "\t:  ")},
    ],
    ids=["dense", "indented", "unicode", "sorted", "odd"],
)
def test_spelling_does_not_matter(endpoint: Endpoint, how: dict[str, Any]) -> None:
    """Spacing, escapes and the order of object keys do not change the keys."""
    field = "input" if endpoint is RESPONSES else "messages"
    plain = {"model": "m", field: TALK, "temperature": 1}
    other = {"temperature": 1, field: [dict(reversed(m.items())) for m in TALK], "model": "m"}
    expected = prompt(endpoint, json.dumps(plain).encode())
    assert len(expected.keys) > 10
    assert prompt(endpoint, json.dumps(other, **how).encode()).keys == expected.keys
    escaped = json.dumps(plain).replace("king", "\\u006b\\u0069ng").replace("/", "\\/")
    assert prompt(endpoint, escaped.encode()).keys == expected.keys


@given(st.lists(st.text(max_size=600), min_size=1, max_size=6), st.text(max_size=600))
def test_a_longer_conversation_begins_with_the_shorter(texts: list[str], more: str) -> None:
    """All keys of a conversation are the first keys of its continuation."""
    short = prompt(CHAT, {"messages": says(*texts)})
    longer = prompt(CHAT, {"messages": says(*texts, more)})
    assert longer.keys[: len(short.keys)] == short.keys
    assert longer.tokens >= short.tokens


@given(st.text(min_size=TEXT_BLOCK, max_size=600), st.integers(0), st.characters(codec="utf-8"))
def test_a_changed_letter_changes_what_follows(text: str, where: int, letter: str) -> None:
    """Keys before the change are equal, and none after it are."""
    where %= len(text)
    other = text[:where] + letter + text[where + 1 :]
    first, second = prompt(COMPLETION, {"prompt": text}), prompt(COMPLETION, {"prompt": other})
    # Compared as bytes, since the UTF-8 encodings of two letters may begin alike.
    pairs = enumerate(zip(text.encode(), other.encode(), strict=False))
    common = next((at for at, (one, two) in pairs if one != two), len(text)) // TEXT_BLOCK
    if other == text:
        assert first.keys == second.keys
    else:
        assert first.keys[:common] == second.keys[:common]
        assert not set(first.keys[common:]) & set(second.keys[common:])


def test_where_one_message_ends_matters() -> None:
    """The same words with another role, or split otherwise, are another prompt."""
    base = prompt(CHAT, {"messages": says(LONG)})
    for other in (
        [{"role": "system", "content": LONG}],
        says(LONG[:100], LONG[100:]),
        [{"role": "user", "content": "x" + LONG}],
    ):
        assert shared(base, prompt(CHAT, {"messages": other})) == 0


def test_salt_model_and_kind_separate() -> None:
    """Requests that differ in cache_salt, model, endpoint or prompt_cache_key share no key."""
    text = {"messages": says(LONG), "prompt": LONG, "input": LONG}
    prompts = [
        prompt(CHAT, text),
        prompt(CHAT, {**text, "cache_salt": "a"}),
        prompt(CHAT, {**text, "cache_salt": "b"}),
        prompt(CHAT, {**text, "prompt_cache_key": "a"}),
        prompt(CHAT, {**text, "prompt_cache_key": "b"}),
        prompt(CHAT, {**text, "prompt_cache_key": "b", "cache_salt": "b"}),
        prompt(CHAT, {**text, "model": "n"}),
        prompt(CHAT, {**text, "model": "ma"}),
        prompt(COMPLETION, text),
        prompt(EMBEDDINGS, text),
        prompt(MESSAGES, text),
    ]
    keys = [set(each.keys) for each in prompts]
    assert all(keys)
    assert sum(map(len, keys)) == len(set.union(*keys))


def test_settings_of_the_answer_do_not_separate() -> None:
    """Temperature and the like do not change the keys."""
    base = prompt(CHAT, {"messages": TALK})
    more = {"temperature": 0.5, "max_tokens": 5, "stream": True, "user": "u", "cache_salt": ""}
    more |= {"prompt_cache_key": None}
    assert prompt(CHAT, {"messages": TALK, **more}).keys == base.keys


@pytest.mark.parametrize(
    ("endpoint", "field", "head"),
    [
        (CHAT, "messages", "tools"),
        (MESSAGES, "messages", "tools"),
        (MESSAGES, "messages", "system"),
        (RESPONSES, "input", "tools"),
        (RESPONSES, "input", "instructions"),
    ],
    ids=lambda value: value.path if isinstance(value, Endpoint) else value,
)
def test_what_stands_before_the_conversation_counts(
    endpoint: Endpoint, field: str, head: str
) -> None:
    """Tools, system and instructions precede the conversation, in its keys and its length."""
    talk = says(LONG)
    base = prompt(endpoint, {field: talk})
    with_head = prompt(endpoint, {field: talk, head: [LONG]})
    assert with_head.tokens > base.tokens + len(LONG) / 5
    assert shared(base, with_head) == 0
    same_head = prompt(endpoint, {field: says("Hi"), head: [LONG]})
    assert shared(with_head, same_head) >= len(LONG) // TEXT_BLOCK - 1


def test_parts_and_tool_calls_count() -> None:
    """Images and tool calls belong to the prompt."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 600}}
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "B" * 600}}
    first = prompt(CHAT, {"messages": says([image, {"type": "text", "text": LONG}])})
    second = prompt(CHAT, {"messages": says([other, {"type": "text", "text": LONG}])})
    assert first.keys
    assert shared(first, second) == 0
    assert first.tokens == second.tokens
    assert not first.estimated  # a text teaches nothing about the length of an image
    calls = [{"id": "1", "function": {"name": "f", "arguments": "x" * 600}}]
    said = [*says("Go"), {"role": "assistant", "content": None, "tool_calls": calls}]
    assert prompt(CHAT, {"messages": said}).tokens > prompt(CHAT, {"messages": says("Go")}).tokens


TURN: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": LONG},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": LONG}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": json.dumps({"a": LONG})},
    {"type": "function_call_output", "call_id": "1", "output": LONG},
    {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": LONG},
    {"role": "user", "content": LONG},
]


def test_items_of_all_kinds_count() -> None:
    """Calls, their outputs and reasoning count in length and keys, however they are written."""
    whole = prompt(RESPONSES, {"input": TURN})
    assert whole.tokens > len(TURN) * len(LONG) / BYTES_PER_TOKEN
    assert not whole.estimated
    for place in range(len(TURN)):
        other = json.loads(json.dumps(TURN).replace("horses", "houses"))
        changed = prompt(RESPONSES, {"input": [*TURN[:place], other[place], *TURN[place + 1 :]]})
        before = prompt(RESPONSES, {"input": TURN[:place]})
        assert shared(whole, before) == len(before.keys) <= shared(whole, changed)
        assert shared(whole, changed) <= len(before.keys) + 1
    turned = [dict(reversed(item.items())) for item in TURN]
    assert prompt(RESPONSES, {"input": turned}).keys == whole.keys


def test_tools_results_and_thoughts_count() -> None:
    """They count as parts in `/v1/messages`, and as a field of the message in chats."""
    for part in (
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": LONG}},
        {"type": "tool_result", "tool_use_id": "1", "content": LONG},
        {"type": "thinking", "thinking": LONG, "signature": "x"},
    ):
        found = prompt(MESSAGES, {"messages": says([part])})
        assert found.tokens == pytest.approx(len(LONG) / BYTES_PER_TOKEN, rel=0.1)
        other = json.loads(json.dumps(part).replace("horses", "houses"))
        assert shared(found, prompt(MESSAGES, {"messages": says([other])})) == 0
        assert not found.estimated
    for field in ("reasoning", "reasoning_content"):
        thought = [{"role": "assistant", "content": "x", field: LONG}]
        assert prompt(CHAT, {"messages": thought}).tokens > len(LONG) / BYTES_PER_TOKEN


def test_an_image_beside_a_text_counts() -> None:
    """An image counts even if its part also has a text, whatever type the part states."""
    parts = [
        {"type": "image_url", "text": LONG, "image_url": {"url": url}} for url in ("a", "b")
    ] + [{"type": "text", "text": LONG, "image_url": {"url": "c"}}, {"type": "text", "text": LONG}]
    found = [prompt(CHAT, {"messages": says([part, {"type": "text", "text": LONG}])}).keys[-1]
             for part in parts]  # fmt: skip
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("chat_template", ["a", "b"]),
        ("chat_template_kwargs", [{"a": 1}, {"a": 2}]),
        ("documents", [[{"text": LONG}], [{"text": LONG + "x"}]]),
        ("mm_processor_kwargs", [{"a": 1}, {"a": 2}]),
        ("output_config", [{"effort": "low"}, {"effort": "high"}]),
        ("previous_response_id", ["a", "b"]),
        ("prompt_embeds", ["a", "b"]),
        ("reasoning", [{"effort": "low"}, {"effort": "high"}]),
        ("reasoning_effort", ["low", "high"]),
        ("suffix", ["a", "b"]),
        ("thinking", [{"type": "disabled"}, {"type": "adaptive"}]),
        ("prompt", [{"id": "a"}, {"id": "b"}]),
    ],
)
def test_what_sets_prompts_apart(field: str, values: list[object]) -> None:
    """Fields that change the prompt that the engine builds share no key with the plain request."""
    endpoint = RESPONSES if field in {"prompt", "previous_response_id"} else CHAT
    if field in {"suffix", "prompt_embeds"}:
        endpoint = COMPLETION
    text = {"messages": says(LONG), "input": says(LONG)} | (
        {"prompt": LONG} if endpoint is COMPLETION else {}
    )
    base = prompt(endpoint, text)
    keys = {key for value in values for key in prompt(endpoint, {**text, field: value}).keys[-3:]}
    assert len(keys) == 3 * len(values)
    assert not keys & set(base.keys)
    assert prompt(endpoint, {**text, field: None}).keys == base.keys


def test_token_ids_are_exact() -> None:
    """Given token ids are counted, not estimated; equal ids give equal keys."""
    ids = list(range(1000, 3000))
    first = prompt(COMPLETION, {"prompt": ids})
    assert (first.tokens, first.estimated) == (2000, False)
    assert first.ends[len(first.keys)] * first.unit_tokens <= 2000
    longer = prompt(COMPLETION, {"prompt": [*ids, 1, 2, 3]})
    assert longer.keys[: len(first.keys)] == first.keys
    assert prompt(COMPLETION, {"prompt": [ids, [1]]}).keys == first.keys
    assert shared(prompt(COMPLETION, {"prompt": [7, *ids]}), first) == 0


def test_of_several_texts_the_first_decides() -> None:
    """A list of texts is routed by the first one."""
    assert (
        prompt(COMPLETION, {"prompt": [LONG, "x"]}).keys
        == prompt(COMPLETION, {"prompt": LONG}).keys
    )


TRUE = (True, 1, 1.0, "true", "True", "1", "on", "YES", "y", "t")
NOT_TRUE: list[object] = [False, None, 0, 2, "", " true", "2", "no", [], {"a": 1}]


@pytest.mark.parametrize(
    ("stream", "expected"), [(one, True) for one in TRUE] + [(one, False) for one in NOT_TRUE]
)
def test_stream(stream: object, expected: bool) -> None:
    """It streams if pydantic reads `true`; and a response begins before anything is computed."""
    assert prompt(CHAT, {"stream": stream}).stream is expected
    assert prompt(ENDPOINTS["/v1/responses"], {"input": "x", "stream": stream}).stream is False


@pytest.mark.parametrize("path", [p for p, e in ENDPOINTS.items() if e.prompted.name == "NOTHING"])
def test_paths_without_a_prompt(path: str) -> None:
    """Prompts of these endpoints have no keys and no length."""
    endpoint = ENDPOINTS[path]
    if not endpoint.form:
        found = prompt(endpoint, {"prompt": LONG, "input": LONG, "messages": TALK})
        assert (found.tokens, list(found.keys)) == (0, [])


def test_spacing_does_not_matter_in_parts() -> None:
    """A text part gives the same keys, however its JSON is written."""
    tight = b'{"messages":[{"role":"user","content":[{"type":"text","text":"%b"}]}]}'
    loose = b'{"messages": [{"content": [ {"text": "%b", "type": "text"} ], "role": "user"}]}'
    text = LONG.encode()
    first, second = (Prompts().prompt(CHAT, parse(CHAT, raw % text, b"")) for raw in (tight, loose))
    assert first.keys == second.keys
