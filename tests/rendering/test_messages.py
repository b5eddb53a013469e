"""What engines read from messages, and which messages they refuse."""

from typing import Any

import pytest

from router.rendering.anthropic import chat_of_messages
from router.rendering.chat import chat_of, conversation
from router.rendering.errors import NotReproducible
from router.rendering.messages import read_messages
from router.rendering.responses import chat_of_responses
from tests.rendering.folders import CALL, TOOL, says

HI = says("user", "Hi")
PARTS = [{"type": "text", "text": "a"}]
THOUGHT = [{"type": "thinking", "thinking": "a"}]
NOTHING = {"refusal": None, "audio": None}


def texts(message: dict[str, Any]) -> list[str | None]:
    """Return the texts that are read from a message's content."""
    found = read_messages([message])[0]["content"]
    return [found] if isinstance(found, str) else [part.text for part in found]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (says("user", "a"), ["a"]),
        (says("user", []), []),
        ({"role": "user"}, []),
        (says("assistant"), []),
        # Only the engine's own model of a message accepts strings as parts. It is used if it has
        # # more of the fields than OpenAI's, or if OpenAI's does not accept the message at all.
        (says("user", ["a", *PARTS]), ["a", "a"]),
        (says("critic", ["a"]), ["a"]),
        (says("tool", ["a"]), ["a"]),
        (says("function", ["a"], name="f"), ["a"]),
        # The same goes for thoughts, while OpenAI's model has more and more of the other fields.
        (says("user", THOUGHT), ["a"]),
        (says("assistant", THOUGHT, refusal=None), ["a"]),
        (says("assistant", [*THOUGHT, *PARTS], **NOTHING, function_call=None), ["a", "a"]),
        (says("assistant", THOUGHT, **NOTHING, reasoning="r"), ["a"]),
        (says("assistant", THOUGHT, **NOTHING, tool_calls=[CALL]), ["a"]),
        (says("assistant", [{"type": "refusal", "refusal": "a"}], **NOTHING), ["a"]),
        (says("user", [*PARTS, {"type": "text", "text": None}]), ["a", None]),
        (says("user", [{**PARTS[0], "prompt_cache_breakpoint": {"mode": "explicit"}}]), ["a"]),
        (says("user", [*PARTS, {**PARTS[0], "prompt_cache_breakpoint": None}]), ["a", "a"]),
        (says("developer", ["a"], tools=[TOOL]), ["a"]),
    ],
)
def test_contents_are_read(message: dict[str, Any], found: list[str | None]) -> None:
    """These are accepted by vLLM 0.32.0 as well."""
    assert texts(message) == found


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("role", ["user", "system"])
def test_fields_are_in_the_engines_order(role: str, *, parts: bool) -> None:
    """Whatever the client's order was, as templates may write out all fields."""
    (found,) = conversation(read_messages([{"content": "a", "role": role}]), parts=parts)
    assert list(found) == ["role", "content"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (says("user", ["a"]), "odd contents"),
        (says("tool", ["a"], tool_call_id="1"), "odd contents"),
        (says("assistant", THOUGHT, **NOTHING), "odd contents"),
        (says("user", [{"type": "input_text", "text": "a"}]), "odd contents"),
        (says("user", [{"type": "text", "text": None}]), "odd contents"),
        (says("user", [{**PARTS[0], "prompt_cache_breakpoint": {"mode": "x"}}]), "odd contents"),
        (says("user", {"type": "text", "text": "a"}), "odd contents"),
        (says("user", [{"type": "text", "text": 5}]), "odd parts"),
        (says("user", [{"type": "thinking", "thinking": "a", "closed": 1}]), "odd parts"),
        (says("user", [5]), "parts that are not text"),
        (
            says("user", [{"type": "image_url", "image_url": {"url": "x"}}]),
            "parts that are not text",
        ),
        (says("user"), "odd messages"),
        (says("assistant", tool_calls=None), "odd messages"),
        (says("assistant", audio=5), "odd messages"),
        (says("user", "a", name=None), "odd messages"),
        (says("assistant", "a", reasoning=5), "odd messages"),
        (says("user", "a", author={"role": "user"}), "odd messages"),
        ({"role": None, "content": "a"}, "odd messages"),
        ({"content": "a"}, "odd messages"),
        ("user: a", "odd messages"),
        (says("user", "a", tool_calls=[CALL]), "odd tool calls"),
        (says("assistant", "a", tool_calls={"0": CALL}), "odd tool calls"),
        (says("assistant", "a", tool_calls=[{**CALL, "type": "custom"}]), "odd tool calls"),
        (
            says("assistant", tool_calls=[{**CALL, "function": {"name": "f", "arguments": {}}}]),
            "odd tool calls",
        ),
        (says("developer", "a", tools=[{"type": "function"}]), "odd tools"),
    ],
)
def test_messages_are_refused(message: dict[str, Any], reason: str) -> None:
    """vLLM 0.32.0 refuses them, or only the engine can know what it makes of them."""
    with pytest.raises(NotReproducible) as told:
        read_messages([HI, message])
    assert told.value.reason == reason


@pytest.mark.parametrize("messages", [None, [], "a", {"0": HI}, 5])
def test_there_have_to_be_messages(messages: object) -> None:
    """They have to be in a list that is not empty."""
    with pytest.raises(NotReproducible, match="no messages"):
        read_messages(messages)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"chat_template": "{{ 1 }}"}, "a template of its own"),
        ({"tools": []}, "odd tools"),
        ({"tools": [{"type": "custom", "function": TOOL["function"]}]}, "odd tools"),
        ({"tools": [{"type": "function"}]}, "odd tools"),
        ({"tools": [{"function": {"name": "f", "strict": "yes"}}]}, "odd tools"),
        ({"tools": [{"function": {"name": "f"}, "defer_loading": 1}]}, "odd tools"),
        ({"documents": {"0": "x"}}, "odd documents"),
        ({"chat_template_kwargs": [1]}, "odd template keywords"),
        ({"reasoning_effort": "lots"}, "odd template keywords"),
        ({"add_generation_prompt": "yes"}, "odd flags"),
        ({"continue_final_message": 1}, "odd flags"),
        ({"kv_transfer_params": {"prompt_token_ids": []}}, "odd token ids"),
    ],
)
def test_chats_are_refused(more: dict[str, Any], reason: str) -> None:
    """Engines refuse them, or treat them in a way that only they know."""
    with pytest.raises(NotReproducible) as told:
        chat_of({"messages": [HI], **more})
    assert told.value.reason == reason


def test_null_is_as_good_as_nothing() -> None:
    """For fields where engines treat null as absent."""
    names = ("chat_template", "tools", "documents", "chat_template_kwargs", "reasoning_effort")
    given = {"messages": [HI], **dict.fromkeys((*names, "kv_transfer_params"))}
    assert chat_of(given) == chat_of({"messages": [HI]})


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "odd input"),
        ({"input": [{"role": "critic", "content": "a"}]}, "odd input"),
        ({"input": [{"type": []}]}, "items that are not text"),
        ({"input": [{"role": "user", "content": "a", "status": "late"}]}, "odd input"),
        ({"input": [{"role": "assistant", "type": "message", "content": []}]}, "odd input"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "odd input"),
        ({"input": [{"type": "reasoning", "summary": None}]}, "odd input"),
        ({"input": "a", "instructions": 5}, "odd input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "items that are not text"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "odd tool calls"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "parts that are not text",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "odd parts",
        ),
        (
            {"input": [{"role": "user", "content": "a", "status": "incomplete"}]},
            "continues a message",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "what came before is with the engine",
        ),
        (
            {"input": "a", "previous_response_id": "resp_1"},
            "what came before is with the engine",
        ),
        ({"input": [{**HI, "name": "bob"}]}, "fields that templates may see"),
        (
            {"input": [{"role": "developer", "content": "a", "tools": []}]},
            "fields that templates may see",
        ),
        ({"input": "a", "truncation": "auto"}, "truncated by the engine"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools of the engine's own"),
        ({"input": "a", "reasoning": {"effort": "lots"}}, "odd template keywords"),
    ],
)
def test_responses_are_refused(asked: dict[str, Any], reason: str) -> None:
    """Because of what is not text, and of what only the engine remembers."""
    with pytest.raises(NotReproducible) as told:
        chat_of_responses(asked)
    assert told.value.reason == reason


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "odd messages"),
        ({"messages": [says("tool", "a")]}, "odd messages"),
        ({"messages": [says("user", [{"type": []}])]}, "parts that are not text"),
        ({"messages": [says("user", None)]}, "odd contents"),
        ({"messages": [says("user", ["a"])]}, "odd contents"),
        ({"messages": [HI], "system": 5}, "odd contents"),
        ({"messages": [says("user", [{"type": "image"}])]}, "parts that are not text"),
        (
            {"messages": [says("user", [{"type": "tool_use", "id": "1", "name": "f"}])]},
            "parts that are not text",
        ),
        (
            {"messages": [says("user", [{"type": "tool_result", "content": [{"type": "image"}]}])]},
            "parts that are not text",
        ),
        ({"messages": [says("user", [{"type": "text", "text": 5}])]}, "odd parts"),
        ({"messages": [says("assistant", [{"type": "tool_use", "name": "f"}])]}, "odd tool calls"),
        ({"messages": [HI], "tools": [{"type": "web_search_20250305"}]}, "odd tools"),
        ({"messages": [HI], "output_config": {"effort": "none"}}, "odd template keywords"),
        ({"messages": [says("user", [])]}, "no messages"),
    ],
)
def test_messages_of_the_other_api_are_refused(asked: dict[str, Any], reason: str) -> None:
    """Because of what is not text, and of what engines refuse."""
    with pytest.raises(NotReproducible) as told:
        chat_of_messages(asked, system_first=False, unthinking="none")
    assert told.value.reason == reason


def test_thinking_switched_off() -> None:
    """It takes precedence over the requested effort."""
    asked = {"messages": [HI], "thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}
    assert chat_of_messages(asked, system_first=False, unthinking="low").effort == "low"
    asked["thinking"] = {"type": "adaptive"}
    assert chat_of_messages(asked, system_first=False, unthinking="low").effort == "max"


def test_thoughts_among_the_items_of_a_response() -> None:
    """Reasoning content takes precedence over its summary; only the first part of it counts."""
    summed = [{"type": "summary_text", "text": "s"}]
    thought = [{"type": "reasoning_text", "text": "t"}, {"type": "reasoning_text", "text": "u"}]
    said = {"role": "assistant", "content": "a"}
    for item, found in (
        ({"summary": summed, "content": thought}, "t"),
        ({"summary": summed, "content": []}, "s"),
        ({"summary": summed}, "s"),
        ({"summary": []}, ""),
    ):
        chat = chat_of_responses({"input": [{"type": "reasoning", "id": "r", **item}, said]})
        (message,) = chat.messages
        assert message["reasoning"] == found
        assert [part.text for part in message["content"]] == ["a"]
