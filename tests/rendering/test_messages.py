"""What engines read from the messages of each dialect, and which they refuse."""

from typing import Any

import pytest

from router.rendering.anthropic import chat_of_messages
from router.rendering.chat import chat_of, conversation
from router.rendering.messages import NOT_TEXT, NotReproducible, read_messages
from router.rendering.responses import chat_of_responses
from tests.rendering.folders import CALL, HI, TOOL, says

PARTS = [{"type": "text", "text": "a"}]
THOUGHT = [{"type": "thinking", "thinking": "a"}]
NOTHING = {"refusal": None, "audio": None}
BREAKPOINT = "prompt_cache_breakpoint"


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (says("user", "a"), ["a"]),
        (says("user", []), []),
        ({"role": "user"}, []),
        (says("assistant"), []),
        # Only the engine's own model of a message accepts strings as parts. It is used if it has
        # more of the fields than OpenAI's, or if OpenAI's does not accept the message at all.
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
        (says("user", [{**PARTS[0], BREAKPOINT: {"mode": "explicit"}}]), ["a"]),
        (says("user", [*PARTS, {**PARTS[0], BREAKPOINT: None}]), ["a", "a"]),
        (says("developer", ["a"], tools=[TOOL]), ["a"]),
    ],
)
def test_contents_are_read(message: dict[str, Any], found: list[str | None]) -> None:
    """These are accepted by vLLM 0.32.0 as well."""
    content = read_messages([message])[0]["content"]
    texts = [content] if isinstance(content, str) else [part.text for part in content]
    assert texts == found


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("role", ["user", "system"])
def test_fields_are_in_the_engines_order(role: str, *, parts: bool) -> None:
    """Whatever the client's order was, as templates may write out all fields."""
    (found,) = conversation(read_messages([{"content": "a", "role": role}]), parts=parts)
    assert list(found) == ["role", "content"]


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
ODD_CALL = {**CALL, "function": {"name": "f", "arguments": {}}}

#: By the reason: what is refused of chats, each after a plain message.
MESSAGES: dict[str, list[Any]] = {
    "odd contents": [
        says("user", ["a"]),
        says("tool", ["a"], tool_call_id="1"),
        says("assistant", THOUGHT, **NOTHING),
        says("user", [{"type": "input_text", "text": "a"}]),
        says("user", [{"type": "text", "text": None}]),
        says("user", [{**PARTS[0], BREAKPOINT: {"mode": "x"}}]),
        says("user", {"type": "text", "text": "a"}),
    ],
    "odd parts": [
        says("user", [{"type": "text", "text": 5}]),
        says("user", [{"type": "thinking", "thinking": "a", "closed": 1}]),
    ],
    NOT_TEXT: [says("user", [5]), says("user", [IMAGE])],
    "odd messages": [
        says("user"),
        says("assistant", tool_calls=None),
        says("assistant", audio=5),
        says("user", "a", name=None),
        says("assistant", "a", reasoning=5),
        says("user", "a", author={"role": "user"}),
        {"role": None, "content": "a"},
        {"content": "a"},
        "user: a",
    ],
    "odd tool calls": [
        says("user", "a", tool_calls=[CALL]),
        says("assistant", "a", tool_calls={"0": CALL}),
        says("assistant", "a", tool_calls=[{**CALL, "type": "custom"}]),
        says("assistant", tool_calls=[ODD_CALL]),
    ],
    "odd tools": [says("developer", "a", tools=[{"type": "function"}])],
}
CHATS: dict[str, list[dict[str, Any]]] = {
    "no messages": [{"messages": None}, {"messages": []}, {"messages": {"0": HI}}],
    "a template of its own": [{"chat_template": "{{ 1 }}"}],
    "odd tools": [
        {"tools": []},
        {"tools": [{"type": "custom", "function": TOOL["function"]}]},
        {"tools": [{"type": "function"}]},
        {"tools": [{"function": {"name": "f", "strict": "yes"}}]},
        {"tools": [{"function": {"name": "f"}, "defer_loading": 1}]},
    ],
    "odd documents": [{"documents": {"0": "x"}}],
    "odd template keywords": [{"chat_template_kwargs": [1]}, {"reasoning_effort": "lots"}],
    "odd flags": [{"add_generation_prompt": "yes"}, {"continue_final_message": 1}],
    "odd token ids": [{"kv_transfer_params": {"prompt_token_ids": []}}],
}
ITEMS: dict[str, list[Any]] = {  # of `input` of `/v1/responses`
    "odd input": [
        5,
        {"role": "critic", "content": "a"},
        {"role": "user", "content": 5},
        {"role": "user", "content": "a", "status": "late"},
        {"role": "assistant", "type": "message", "content": []},
        {"type": "function_call_output", "call_id": "1"},
        {"type": "reasoning", "summary": None},
        {"type": "reasoning", "summary": [5]},
    ],
    "items that are not text": [{"type": []}, {"type": "item_reference", "id": "x"}],
    "odd tool calls": [{"type": "function_call", "name": "f"}],
    NOT_TEXT: [{"role": "user", "content": [{"type": "input_image"}]}],
    "odd parts": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}],
    "continues a message": [{"role": "user", "content": "a", "status": "incomplete"}],
    "what came before is with the engine": [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    ],
    "fields that templates may see": [
        {**HI, "name": "bob"},
        {"role": "developer", "content": "a", "tools": []},
        {"role": "user", "content": [{"type": "input_text", "text": "a", "zz": 1}]},
    ],
}
RESPONSES: dict[str, list[dict[str, Any]]] = {
    "odd input": [{"input": None}, {"instructions": 5}],
    "what came before is with the engine": [{"previous_response_id": "resp_1"}],
    "truncated by the engine": [{"truncation": "auto"}],
    "tools of the engine's own": [{"tools": [{"type": "web_search"}]}],
    "odd template keywords": [{"reasoning": {"effort": "lots"}}],
}
BLOCKS: dict[str, list[Any]] = {  # of a user's message to `/v1/messages`
    NOT_TEXT: [
        {"type": []},
        {"type": "image"},
        {"type": "tool_use", "id": "1", "name": "f"},
        {"type": "tool_result", "content": [{"type": "image"}]},
    ],
    "odd contents": ["a", {"type": "tool_result", "content": 5}],
    "odd parts": [{"type": "text", "text": 5}],
}
ANTHROPIC: dict[str, list[dict[str, Any]]] = {
    "odd messages": [{"messages": None}, {"messages": [says("tool", "a")]}],
    "odd contents": [{"messages": [says("user", None)]}, {"system": 5}],
    "odd tool calls": [{"messages": [says("assistant", [{"type": "tool_use", "name": "f"}])]}],
    "odd tools": [{"tools": [{"type": "web_search_20250305"}]}, {"tools": 5}],
    "odd template keywords": [
        {"output_config": {"effort": "none"}},
        {"output_config": 5},
    ],
    "no messages": [{"messages": [says("user", [])]}],
}


def anthropic(fields: dict[str, Any]) -> object:
    """Read a request to `/v1/messages`."""
    return chat_of_messages({"messages": [HI], **fields}, system_first=False, unthinking="none")


@pytest.mark.parametrize(
    ("read", "refused"),
    [
        (lambda message: read_messages([HI, message]), MESSAGES),
        (lambda more: chat_of({"messages": [HI], **more}), CHATS),
        (lambda item: chat_of_responses({"input": [item]}), ITEMS),
        (lambda more: chat_of_responses({"input": "a", **more}), RESPONSES),
        (lambda block: anthropic({"messages": [says("user", [block])]}), BLOCKS),
        (anthropic, ANTHROPIC),
    ],
    ids=["messages", "chats", "items", "responses", "blocks", "anthropic"],
)
def test_what_is_refused(read: Any, refused: dict[str, list[Any]]) -> None:
    """Because of what is not text, of what engines refuse, and of what only they know."""
    for reason, given in refused.items():
        for value in given:
            with pytest.raises(NotReproducible) as told:
                read(value)
            assert (told.value.reason, value) == (reason, value)


def test_null_is_as_good_as_nothing() -> None:
    """For fields where engines treat null as absent."""
    names = ("chat_template", "tools", "documents", "chat_template_kwargs", "reasoning_effort")
    given = {"messages": [HI], **dict.fromkeys((*names, "kv_transfer_params"))}
    assert chat_of(given) == chat_of({"messages": [HI]})


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
    for item, found in (
        ({"summary": summed, "content": thought}, "t"),
        ({"summary": summed, "content": []}, "s"),
        ({"summary": summed}, "s"),
        ({"summary": []}, ""),
    ):
        items = [{"type": "reasoning", "id": "r", **item}, says("assistant", "a")]
        (message,) = chat_of_responses({"input": items}).messages
        assert message["reasoning"] == found
        assert [part.text for part in message["content"]] == ["a"]
