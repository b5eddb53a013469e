"""What an engine makes of a request's messages and tools before its chat template sees them.

The rules are vLLM's: renderers/chat_utils.py, `_parse_chat_message_content` and
`_postprocess_messages`, and the models of its chat completion protocol. What it would refuse, and
what only it can know, is refused here too, by `Unlike`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from router.identity.unlike import Unlike

#: Parts that are text, and where they keep it.
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
#: Fields of a part that engines know; others are passed on to the template.
_KNOWN = frozenset(
    (
        "type",
        "text",
        "refusal",
        "thinking",
        "uuid",
        "cache_control",
        "prompt_cache_breakpoint",
        "closed",
        "annotations",
        "logprobs",
    )
)
#: A line that Claude Code puts before its system prompt, another one each time; engines drop it.
_BILLING = "x-anthropic-billing-header"

Message = dict[str, Any]


def conversation(messages: Any, *, parts: bool) -> list[Message]:
    """Return the messages as a chat template gets them, contents as `parts` or as text.

    `messages` is decoded JSON and is not changed. Raises Unlike.
    """
    if not isinstance(messages, list) or not messages:
        raise Unlike("no messages")
    return [_message(message, parts=parts) for message in messages]


def _message(message: Any, *, parts: bool) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        raise Unlike("odd messages")
    content = message.get("content")
    if content is None:
        content = []
    elif isinstance(content, str):
        content = [content]
    elif not isinstance(content, list):
        raise Unlike("odd contents")
    if role == "system":
        content = [kept for part in content if (kept := _without_billing(part)) is not None]
    read = [one for part in content if (one := _part(part)) is not None]
    made: Message = {"role": role}
    if parts and not (role == "tool"):
        made["content"] = [one for one in read if one]
    else:
        made["content"] = "\n".join(one["text"] for one in read if one["text"] or parts)
    if role == "assistant":
        _assistant(message, made)
    elif role == "tool" and "tool_call_id" in message:
        made["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            made[name] = message[name]
    if role == "developer":
        made["tools"] = message.get("tools")
    return made


def _part(part: Any) -> Message | None:
    """A part of text as parts are given to templates; None if it says nothing."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    field = _TEXTS.get(kind) if isinstance(kind, str) else None
    if field is None or part.get("uuid") is not None:
        raise Unlike("parts that are not text")
    text = part.get(field)
    if text is None and kind in {"text", "refusal"}:
        return None
    if not isinstance(text, str):
        raise Unlike("odd parts")
    more = {name: value for name, value in part.items() if name not in _KNOWN}
    return {"type": "text", "text": text, **more}


def _without_billing(part: Any) -> Any:
    text = part
    if isinstance(part, dict):
        text = part.get("text") if part.get("type") == "text" else None
    if not isinstance(text, str) or not text.startswith(_BILLING):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(part, str) else {**part, "text": rest}


def _assistant(message: Mapping[str, Any], made: Message) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise Unlike("odd tool calls")
        if calls:
            made["tool_calls"] = [_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        made["reasoning"] = made["reasoning_content"] = reasoning


def _call(call: Any) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Unlike("odd tool calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}


def tools(given: Any) -> list[Message] | None:
    """Return the tools as a chat template gets them; None if there are none. Raises Unlike.

    In the order of the engine's model, not the request's, and without what that does not name
    (vLLM entrypoints/generate/base/protocol.py, `FunctionDefinition`).
    """
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise Unlike("odd tools")
    return [_tool(tool) for tool in given]


def _tool(tool: Any) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Unlike("odd tools")
    name, description = function.get("name"), function.get("description")
    parameters = function.get("parameters")
    if (
        not isinstance(name, str)
        or not isinstance(description, str | None)
        or not isinstance(parameters, dict | None)
    ):
        raise Unlike("odd tools")
    made: Message = {"name": name, "description": description, "parameters": parameters}
    if isinstance(function.get("strict"), bool):
        made["strict"] = function["strict"]
    deferred = tool.get("defer_loading")
    own = function.get("defer_loading")
    made |= {} if own is None and deferred is None else {"defer_loading": own if own is not None else deferred}
    whole: Message = {"type": "function", "function": made}
    return whole if deferred is None else {**whole, "defer_loading": deferred}
