"""Messages and tools as an engine prepares them before it renders the chat template.

Written for the simulator alone, after what vLLM does, and not shared with the router: if the two
agree, each has implemented vLLM's rules independently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from simulator.http.errors import bad_request

Message = dict[str, Any]

#: Types of content parts that are text, and the field that holds the text.
_TEXT = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
#: Fields of a tool's function that an engine knows, in its order; `strict` may be missing.
_FUNCTION = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The parts of a chat request that determine its prompt."""

    messages: Sequence[Message]
    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    #: Whether the tokenizer adds BOS and the like to the rendered text.
    add_special_tokens: bool = False
    #: Additional template variables.
    keywords: Mapping[str, Any] = field(default_factory=dict)


def prepared(messages: Sequence[Message], *, parts: bool) -> list[Message]:
    """The messages as templates get them: contents as lists of parts, or as strings."""
    return [_message(message, parts=parts) for message in messages]


def prepared_tools(tools: Sequence[Any] | None) -> list[Message] | None:
    """The tools as templates get them: known fields, in the engine's order."""
    return None if tools is None else [_tool(tool) for tool in tools]


def _message(message: Message, *, parts: bool) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise bad_request("Every message needs a role.", "messages")
    texts = [part for part in _parts(message.get("content")) if part["text"] or parts]
    made: Message = {"role": role}
    if parts and role != "tool":
        made["content"] = texts
    else:
        made["content"] = "\n".join(part["text"] for part in texts)
    if role == "assistant":
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [_call(call) for call in calls]
        reasoning = message.get("reasoning", message.get("reasoning_content"))
        if reasoning is not None:
            made["reasoning"] = made["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        made["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        made["name"] = message["name"]
    if role == "developer":
        made["tools"] = message.get("tools")
    return made


def _parts(content: object) -> list[Message]:
    """The parts of a content as text parts; a part that is not text becomes its JSON."""
    if content is None:
        return []
    given = content if isinstance(content, list) else [content]
    return [{"type": "text", "text": _text(part)} for part in given]


def _text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get(_TEXT.get(str(part.get("type")), ""))
        if isinstance(text, str):
            return text
    return msgspec.json.encode(part).decode()


def _call(call: Any) -> Message:  # noqa: ANN401 - any JSON value
    """A tool call, with its arguments as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise bad_request("Only calls of functions are known.", "tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    known = arguments if isinstance(arguments, dict) else {}
    # Engines do not keep the client's field order; theirs comes from OpenAI's library models.
    inner = _ordered({**function, "arguments": known}, ("arguments", "name"))
    return _ordered({**call, "function": inner}, ("id", "function", "type"))


def _ordered(given: Message, first: Sequence[str]) -> Message:
    """The same fields, with those in `first` moved to the front."""
    return {**{name: given[name] for name in first if name in given}, **given}


def _tool(tool: Any) -> Message:  # noqa: ANN401 - any JSON value
    """A tool in the chat format; other APIs omit the `function` level or rename `parameters`."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request("Only functions with a name are known as tools.", "tools")
    made = {name: function.get(name) for name in _FUNCTION}
    if "input_schema" in function:
        made["parameters"] = function["input_schema"]
    if made["strict"] is None:
        del made["strict"]
    return {"type": "function", "function": made}
