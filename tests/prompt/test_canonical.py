"""Prompts keyed by their text: equal conversations give equal keys, however they are written."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.messages import MAX_ENTRIES
from router.api.request import parse
from router.prompt.canonical import MAX_IDS, MAX_SPELLED_IDS, CanonicalText, canonical, encoded
from router.prompt.prompts import BYTES_PER_TOKEN
from router.runtime.threads import BYTES
from strategies.prefix.block_keys import TEXT_BLOCK
from tests.prompt.prompted import (
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    LONG,
    MESSAGES,
    RESPONSES,
    prompt,
    says,
    shared,
)

TALK = says(LONG, 'Größe? 日本 😀 " \\ / \n\t\u0007', [{"type": "text", "text": LONG}])


@pytest.mark.parametrize("endpoint", [CHAT, MESSAGES, RESPONSES], ids=lambda e: e.path)
@pytest.mark.parametrize(
    "how",
    [
        {"separators": (",", ":")},
        {"indent": 4, "ensure_ascii": False},
        {"sort_keys": True, "separators": (" ,\n ", "\t:  ")},
    ],
    ids=["dense", "indented", "sorted"],
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


def test_what_separates_prompts() -> None:
    """Requests that differ in roles, in where messages end, in `cache_salt`, `prompt_cache_key`,
    model or endpoint share no key."""
    text = {"messages": says(LONG), "prompt": LONG, "input": LONG}
    prompts = [
        prompt(CHAT, text),
        prompt(CHAT, {"messages": [{"role": "system", "content": LONG}]}),
        prompt(CHAT, {"messages": says(LONG[:100], LONG[100:])}),
        prompt(CHAT, {**text, "cache_salt": "a"}),
        prompt(CHAT, {**text, "cache_salt": "b"}),
        prompt(CHAT, {**text, "prompt_cache_key": "a"}),
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
        (CHAT, "messages", "documents"),
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
    """Tools, system and the like precede the conversation, in its keys and its length."""
    talk = says(LONG)
    base = prompt(endpoint, {field: talk})
    with_head = prompt(endpoint, {field: talk, head: [LONG]})
    assert with_head.tokens > base.tokens + len(LONG) / 5
    assert shared(base, with_head) == 0
    same_head = prompt(endpoint, {field: says("Hi"), head: [LONG]})
    assert shared(with_head, same_head) >= len(LONG) // TEXT_BLOCK - 1


@pytest.mark.parametrize("field", ["text", "type"])
def test_images_count(field: str) -> None:
    """An image belongs to the prompt, even if its part also has a text or says that it is one."""
    said = {"type": "text", "text": LONG}
    found = []
    for url in ("a", "b"):
        image = {"type": "image_url", "image_url": {"url": url * 600}, field: said[field]}
        found.append(prompt(CHAT, {"messages": says([image, said])}))
    first, second = found
    assert first.keys
    assert shared(first, second) == shared(first, prompt(CHAT, {"messages": says([said])})) == 0
    assert first.tokens == second.tokens > len(LONG) / BYTES_PER_TOKEN
    assert not first.estimated  # a text teaches nothing about the length of an image


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


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        (MESSAGES, {"content": [{"type": "tool_use", "id": "1", "name": "f", "input": LONG}]}),
        (MESSAGES, {"content": [{"type": "tool_result", "tool_use_id": "1", "content": LONG}]}),
        (MESSAGES, {"content": [{"type": "thinking", "thinking": LONG, "signature": "x"}]}),
        (CHAT, {"content": "x", "reasoning": LONG}),
        (CHAT, {"content": "x", "reasoning_content": LONG}),
        (CHAT, {"content": None, "tool_calls": [{"id": "1", "function": {"arguments": LONG}}]}),
    ],
)
def test_tools_results_and_thoughts_count(endpoint: Endpoint, message: dict[str, Any]) -> None:
    """They count as parts in `/v1/messages`, and as a field of the message in chats."""
    message = {"role": "assistant", **message}
    found = prompt(endpoint, {"messages": [message]})
    assert found.tokens == pytest.approx(len(LONG) / BYTES_PER_TOKEN, rel=0.1)
    other = json.loads(json.dumps(message).replace("horses", "houses"))
    assert shared(found, prompt(endpoint, {"messages": [other]})) == 0


@pytest.mark.parametrize(
    ("endpoint", "field", "values"),
    [
        (CHAT, "chat_template", ["a", "b"]),
        (CHAT, "chat_template_kwargs", [{"a": 1}, {"a": 2}]),
        (CHAT, "mm_processor_kwargs", [{"a": 1}, {"a": 2}]),
        (CHAT, "output_config", [{"effort": "low"}, {"effort": "high"}]),
        (CHAT, "reasoning", [{"effort": "low"}, {"effort": "high"}]),
        (CHAT, "reasoning_effort", ["low", "high"]),
        (CHAT, "thinking", [{"type": "disabled"}, {"type": "adaptive"}]),
        (COMPLETION, "prompt_embeds", ["a", "b"]),
        (COMPLETION, "suffix", ["a", "b"]),
        (RESPONSES, "previous_response_id", ["a", "b"]),
        (RESPONSES, "prompt", [{"id": "a"}, {"id": "b"}]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_sets_prompts_apart(endpoint: Endpoint, field: str, values: list[object]) -> None:
    """Fields that change the prompt that the engine builds share no key with the plain request."""
    text: dict[str, Any] = {"messages": says(LONG), "input": says(LONG)}
    text |= {"prompt": LONG} if endpoint is COMPLETION else {}
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
    assert shared(prompt(COMPLETION, {"prompt": [7, *ids]}), first) == 0


@pytest.mark.parametrize("path", [p for p, e in ENDPOINTS.items() if e.prompted.name == "NOTHING"])
def test_paths_without_a_prompt(path: str) -> None:
    """Prompts of these endpoints have no keys and no length."""
    endpoint = ENDPOINTS[path]
    if not endpoint.form:
        found = prompt(endpoint, {"prompt": LONG, "input": LONG, "messages": TALK})
        assert (found.tokens, list(found.keys)) == (0, [])


# Bounds on the work that the canonical bytes take.


def text_of(endpoint: Endpoint, body: object, indent: int | None = None) -> CanonicalText:
    """Return a prompt's canonical text."""
    return canonical(endpoint, parse(endpoint, json.dumps(body, indent=indent).encode(), b""))


@pytest.mark.parametrize("more", [0, 1, 5000])
def test_of_too_many_ids_the_first_are_packed(more: int) -> None:
    """Spaces matter only beyond a bound, and a longer prompt begins like a shorter one."""
    body = {"prompt": [7] * (MAX_IDS + more)}
    text = text_of(COMPLETION, body)
    assert text.tokens == MAX_IDS + more
    assert text.data.startswith(text_of(COMPLETION, {"prompt": [7] * MAX_IDS}).data)
    assert (text.data != text_of(COMPLETION, body, indent=0).data) == bool(more)
    other = {"prompt": [7] * (MAX_IDS + more - 1) + [8]}
    assert text.data != text_of(COMPLETION, other).data


def test_quotes_in_a_text_are_no_further_texts() -> None:
    """A list of one text gives the same keys as the text, however many quotes there are in it."""
    text = 'a "word", ' * MAX_ENTRIES
    listed = text_of(COMPLETION, {"prompt": [text]})
    assert listed.data == text_of(COMPLETION, {"prompt": text}).data


@pytest.mark.parametrize("endpoint", [RESPONSES, MESSAGES], ids=lambda e: e.path)
def test_of_too_many_values_the_first_are_spelled(endpoint: Endpoint) -> None:
    """Spaces matter only beyond a bound, and a longer conversation begins like a shorter one."""

    def data(count: int, indent: int | None = None) -> bytes:
        parts = [{"type": "tool_use", "input": [1] * 1000}] * count
        body = {"input": parts, "messages": [{"role": "user", "content": parts}]}
        return text_of(endpoint, body, indent).data

    few, many = MAX_SPELLED_IDS // 1002, MAX_SPELLED_IDS // 1000 + 4
    assert data(few) == data(few, indent=0)
    assert data(many) != data(many, indent=0)
    assert data(many).startswith(data(few))
    assert data(many + 1).startswith(data(many))


#: Characters of every length in UTF-8, and those that JSON writes in another way.
PIECES = ("a", "é", "日", "😀", "\n", "\\", '"', "\x01", " and words between", "\\" * 7)


@settings(max_examples=25, deadline=None)  # of megabytes each
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=40), st.booleans())
def test_a_long_text_is_decoded_in_pieces(pieces: list[str], escaped: bool) -> None:
    """To the same bytes as at once, wherever it would be cut."""
    part = "".join(pieces)
    text = part * (2 * BYTES // len(part.encode()) + 1)
    found = encoded(Raw(json.dumps(text, ensure_ascii=escaped).encode()))
    assert found is not None
    assert b"".join(found) == text.encode()


def test_no_piece_is_much_longer_than_a_slice() -> None:
    """So that nobody waits for long."""
    found = encoded(Raw(json.dumps("All the king's horses.\n" * (4 * BYTES // 23)).encode()))
    assert found is not None
    assert 4 <= len(found) <= 6
    assert max(map(len, found)) < 1.1 * BYTES


@pytest.mark.parametrize("raw", [b'["a"]', b"{}", b"7", b"null", b'"\xff"', b""])
def test_what_is_no_text(raw: bytes) -> None:
    """Nothing is returned for anything else, or for a text that is not valid."""
    assert encoded(Raw(raw)) is None
