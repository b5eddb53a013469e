"""Token ids of requests of all kinds, and requests whose ids are not known."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS
from router.rendering.messages import ENTRIES_PER_VALUE, MAX_VALUES, NOT_TEXT, NotReproducible
from router.rendering.tokens import MAX_PROMPT_CHARS, decode_fields
from tests.prompt.prompted import knowing, made
from tests.rendering.families import FAMILIES, folder
from tests.rendering.folders import (
    CALL,
    CHAT,
    HI,
    ids,
    known,
    of_folder,
    reference,
    refusal,
    says,
)
from tests.rendering.test_cases import CASES

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
talks = st.lists(st.tuples(texts, texts), min_size=2, max_size=5).map(
    lambda turns: [
        says(role, text)
        for pair in turns
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
)


@pytest.mark.parametrize("family", GROWING)
@unhurried
@given(messages=talks)
def test_a_longer_conversation_begins_with_the_shorter_one(
    family: str, messages: list[dict[str, Any]]
) -> None:
    """To the token, except for what asks for the next answer."""
    whole = ids(family, messages=messages, **OPEN, **DATE)
    for length in range(2, len(messages), 2):
        shorter = ids(family, messages=messages[:length], **OPEN, **DATE)
        if family == "mistral" or family.startswith("witness"):
            assert whole[: len(shorter) - 1] == shorter[:-1]  # the last token may merge on
        else:
            assert whole[: len(shorter)] == shorter


@unhurried
@given(messages=talks)
def test_ids_are_those_of_the_text(messages: list[dict[str, Any]]) -> None:
    """Whatever is cached for the text between special tokens."""
    for upto in range(1, len(messages) + 1):
        text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + "".join(
            f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages[:upto]
        )
        body = json.dumps({"messages": messages[:upto], **OPEN}).encode()
        assert known("chatml").ids(ENDPOINTS[CHAT], body) == reference("chatml").encode(
            text, special=False
        )


# Other endpoints than OpenAI's.

TEXT = "All the king's horses"
BATCH = "/v1/chat/completions/batch"


def test_a_text_is_a_completions() -> None:
    """SGLang makes the same tokens of `text` as of a completion's prompt; ids are the prompt."""
    expected = ids("qwen", "/v1/completions", prompt=TEXT)
    for path, asked in (
        ("/generate", {"text": TEXT}),
        ("/generate", {"text": [TEXT, "more"]}),
        ("/encode", {"text": TEXT}),
        ("/classify", {"text": TEXT}),
        ("/classify", {"input": TEXT}),
        ("/v2/embed", {"texts": [TEXT, "more"]}),
    ):
        assert ids("qwen", path, **asked) == expected
    assert ids("qwen", "/inference/v1/generate", token_ids=[3, 1, 2]) == [3, 1, 2]
    assert ids("qwen", "/generate", text=None, input_ids=[[3, 1], [2]]) == [3, 1]


def test_the_first_conversation_of_a_batch() -> None:
    """Its tokens are those of a chat, so both share blocks; no ids are sent along with it. One with
    images is keyed by its text."""
    first, other = [says("user", TEXT)], [says("user", "other")]
    assert ids("qwen", BATCH, messages=[first, other]) == ids("qwen", messages=first)
    prompts = knowing(known("qwen"), forward=True, media=True)
    found = made(ENDPOINTS[BATCH], {"messages": [first, other]}, prompts)
    assert (found.reason, found.along, found.prompt.further) == ("", None, 1)
    image = [says("user", [{"type": "image_url", "image_url": {"url": "x"}}])]
    found = made(ENDPOINTS[BATCH], {"messages": [image, image]}, prompts)
    assert (found.reason, found.prompt.further) == (NOT_TEXT, 1)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/generate", {"text": TEXT, "image_data": "x"}),
        ("/generate", {"input_ids": [1], "session_params": {"id": "s"}}),
        ("/generate", {"text": TEXT, "lora_path": "adapter"}),
        ("/generate", {}),
        ("/inference/v1/generate", {"token_ids": [1], "content_parts": [{"type": "image_url"}]}),
        ("/encode", {"text": TEXT, "input_embeds": [[0.5]]}),
        (BATCH, {"messages": [says("user", TEXT)]}),
        (BATCH, {"messages": []}),
        ("/api/chat", {"messages": [says("user", TEXT)]}),
        ("/cohere/v2/chat", {"messages": [says("user", TEXT)]}),
        ("/v1/messages/count_tokens", {"messages": [says("user", TEXT)]}),
    ],
)
def test_what_is_not_tokenized(path: str, asked: dict[str, Any]) -> None:
    """With images, adapters and sessions, and in dialects whose rendering is the engine's own."""
    body = json.dumps(asked).encode()
    for call in (known("qwen").ids, known("qwen").head):
        with pytest.raises(NotReproducible):
            call(ENDPOINTS[path], body)


# Whatever a client may send.

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
    *("messages", "tools", "documents", "chat_template_kwargs", "reasoning_effort", "input"),
    *("kv_transfer_params", "instructions", "system", "prompt"),
)


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/completions"])
@unhurried
@given(asked=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4))
def test_any_request(path: str, asked: dict[str, Any]) -> None:
    """It gives ids or raises NotReproducible, and nothing else."""
    with suppress(NotReproducible):
        found = known("witness").ids(ENDPOINTS[path], json.dumps(asked).encode())
        assert len(found) % 4 == 0


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place of a value in a body: its container, and its key or index there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, one in list(inner):
        found.append((value, key))
        if isinstance(one, dict | list):
            found += places(one)
    return found


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


def calling(arguments: str) -> dict[str, Any]:
    """Return a chat with a tool call."""
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    return {"messages": [HI, says("assistant", tool_calls=[call])]}


COMPLETION = "/v1/completions"


@pytest.mark.parametrize(
    ("path", "asked", "reason"),
    [
        (CHAT, {"messages": [says("user", "\ud800")]}, "not understood"),
        (CHAT, {"messages": [HI], "truncate_prompt_tokens": 5}, "truncated by the engine"),
        (CHAT, calling("[" * 99_999), "odd tool calls"),
        (CHAT, calling("9" * 99_999), "odd tool calls"),
        (COMPLETION, {}, "no prompt"),
        (COMPLETION, {"prompt": {"a": 1}}, "odd token ids"),
        (COMPLETION, {"prompt": [True]}, "odd token ids"),
        (COMPLETION, {"prompt": [2**32]}, "odd token ids"),
        (COMPLETION, {"prompt": "a", "suffix": "b"}, "a suffix"),
        (COMPLETION, {"prompt": "a", "prompt_embeds": "x"}, "embeddings"),
        (COMPLETION, {"prompt": "a", "add_special_tokens": None}, "odd flags"),
        # What would hold the GIL for long is not read, whatever makes it long.
        (CHAT, {"messages": [HI], "z": "x" * MAX_PROMPT_CHARS}, "too long"),
        (COMPLETION, {"prompt": "x" * (MAX_PROMPT_CHARS + 1)}, "too long"),
    ],
)
def test_what_is_refused(path: str, asked: dict[str, Any], reason: str) -> None:
    """Requests that engines refuse, or that only the engine can tokenize."""
    assert refusal("chatml", path, **asked) == reason


def exactly(body: bytes) -> bytes:
    """Return the packed token ids of a chat."""
    return known("qwen").ids(ENDPOINTS[CHAT], body)


@pytest.mark.parametrize("thing", ["{},", "[],", "0," * ENTRIES_PER_VALUE])
def test_things_in_large_numbers(thing: str) -> None:
    """Anywhere in the body, even in fields that are not used; up to the limit they are read."""
    for many in (MAX_VALUES // 2, MAX_VALUES + 1):
        listed = "[" + thing * many + "1]"
        body = b'{"messages":[{"role":"user","content":"Hi"}],"z":%b}' % listed.encode()
        called = json.dumps(calling('{"a":' + listed + "}")).encode()
        assert max(len(body), len(called)) < MAX_PROMPT_CHARS
        if many < MAX_VALUES:
            assert exactly(body) == exactly(json.dumps({"messages": [HI]}).encode())
            assert exactly(called)
            continue
        for long in (body, called):
            with pytest.raises(NotReproducible, match="too long"):
                exactly(long)


def test_things_written_as_escapes() -> None:
    """They are noticed once the string that contains them has been decoded."""
    body = json.dumps(calling('{"a":[' + "{}," * MAX_VALUES + "1]}")).encode()
    for letter in b"{[,":
        head, _, arguments = body.partition(b'"arguments": "')
        arguments, end, rest = arguments.partition(b'"}}]')
        body = head + b'"arguments": "' + arguments.replace(b"%c" % letter, b"\\u%04x" % letter)
        body += end + rest
    decode_fields(body)
    with pytest.raises(NotReproducible, match="too long"):
        exactly(body)


def test_deep_json_is_refused() -> None:
    """Deeply nested JSON does not exhaust the stack."""
    deep = b'{"messages": ' + b"[" * 99_999 + b"]" * 99_999 + b"}"
    with pytest.raises(NotReproducible, match="not understood"):
        exactly(deep)


def test_a_rendering_is_bounded_by_its_request(tmp_path: Path) -> None:
    """A template that repeats everything many times is stopped."""
    bomb = "{% for m in messages %}{% for n in messages %}{{ n.content }}{% endfor %}{% endfor %}"
    exact = of_folder(folder(tmp_path, FAMILIES["chatml"], config={"chat_template": bomb}))
    few, many = (
        json.dumps({"messages": [says("user", "x" * 100)] * count}).encode() for count in (50, 500)
    )
    assert exact.ids(ENDPOINTS[CHAT], few)
    with pytest.raises(NotReproducible, match="rendered too long"):
        exact.ids(ENDPOINTS[CHAT], many)
