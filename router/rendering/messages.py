"""How engines read the messages of a chat: what they accept, and the order of the fields.

vLLM has two models of a message: OpenAI's for its role, and one of its own that takes any role. It
uses the one that knows more of the message's fields, including those of parts and tool calls, and
OpenAI's if both know equally many; OpenAI's knows fewer kinds of parts. Fields that the model knows
come first, in its order, then the others. (Its renderers/chat_utils.py,
`ChatCompletionMessageParam`; the choice is pydantic's, for a union.)
"""

from collections.abc import Mapping
from typing import Any

from router.rendering.decoded import Json
from router.rendering.errors import Unlike
from router.rendering.parts import read_parts
from router.rendering.tools import Tool, ordered

_PLAIN = frozenset(("role", "content"))
_SPOKEN = _PLAIN | {"name"}
#: The fields of OpenAI's models, by role.
_THEIRS = {
    "developer": _SPOKEN,
    "system": _SPOKEN,
    "user": _SPOKEN,
    "assistant": _SPOKEN | {"audio", "function_call", "refusal", "tool_calls"},
    "tool": frozenset(("role", "content", "tool_call_id")),
    "function": _SPOKEN,
}
_OWN = _SPOKEN | {"tool_call_id", "tool_calls", "reasoning", "tools", "task"}
#: Kinds of parts that OpenAI's models know.
_KINDS = {"assistant": frozenset(("text", "refusal"))}
_TEXT = frozenset(("text",))
#: Fields that must be strings or null.
_NULLABLE = ("tool_call_id", "reasoning", "refusal")
#: Fields that must be strings if present.
_STRINGS = ("name", "task")
#: Objects in an assistant's message, and their required fields.
_INNER = {"audio": ("id",), "function_call": ("arguments", "name")}
#: Number of fields counted for a tool call and its function.
_IN_CALL = 5

Message = dict[str, Any]


def read(messages: Json) -> list[Message]:
    """Return decoded messages as an engine reads them; they are not changed. Raises Unlike.

    `content` is a list of `Part`, or a string if the message has only a role and a string. Other
    fields are included only if given.
    """
    if not isinstance(messages, list) or not messages:
        raise Unlike("no messages")
    return [_message(message) for message in messages]


def _message(given: Json) -> Message:
    # Nearly all messages are this plain, and both models accept them.
    if isinstance(given, dict) and given.keys() == _PLAIN:
        role, content = given["role"], given["content"]
        if isinstance(role, str) and isinstance(content, str):
            return given if next(iter(given)) == "role" else {"role": role, "content": content}
    return _other(given)


def _other(given: Json) -> Message:
    if not isinstance(given, dict) or "author" in given:
        raise Unlike("odd messages")
    message = renamed(given)
    role = message.get("role")
    if (
        not isinstance(role, str)
        or not all(isinstance(message.get(name, ""), str) for name in _STRINGS)
        or not all(isinstance(message.get(name), str | None) for name in _NULLABLE)
    ):
        raise Unlike("odd messages")
    parts, in_parts = read_parts(message.get("content"))
    calls = _calls(message.get("tool_calls"))
    tools, in_tools = _tools(message.get("tools"))
    if calls and role != "assistant":
        raise Unlike("odd tool calls")
    theirs = _known_to_openai(role, message)
    own = None
    if message.get("content", "") is not None:
        own = len(_OWN & message.keys()) + in_parts + in_tools + _IN_CALL * len(calls or ())
    if theirs is not None and (own is None or theirs >= own):
        kinds = _KINDS.get(role, _TEXT)
        if any(part.kind not in kinds or not part.proper for part in parts):
            raise Unlike("odd contents")
    elif own is None:
        raise Unlike("odd messages")
    found = {"tool_calls": calls, "tools": tools}
    return {**message, "content": parts, **{name: found[name] for name in found if name in message}}


def renamed(given: Message) -> Message:
    """Return a message with `reasoning_content` renamed to `reasoning`, its current name."""
    if "reasoning_content" not in given:
        return given
    message = dict(given)
    older = message.pop("reasoning_content")
    if older is not None and message.get("reasoning") is None:
        message["reasoning"] = older
    return message


def _known_to_openai(role: str, message: Mapping[str, Any]) -> int | None:
    """Return how many fields OpenAI's model knows; None if it does not accept the message."""
    fields = _THEIRS.get(role)
    if fields is None or not _taken_by_openai(role, message):
        return None
    known = len(fields & message.keys())
    if role == "assistant":
        for name, needed in _INNER.items():
            value = message.get(name)
            if value is not None:
                if not isinstance(value, dict) or not all(
                    isinstance(value.get(one), str) for one in needed
                ):
                    return None
                known += len(needed)
    return known


def _taken_by_openai(role: str, message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    match role:
        case "assistant":
            return message.get("tool_calls", ()) is not None
        case "function":
            return {"content", "name"} <= message.keys() and isinstance(content, str | None)
        case "tool":
            return content is not None and isinstance(message.get("tool_call_id"), str)
    return content is not None


def _calls(given: Json) -> list[Message] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise Unlike("odd tool calls")
    return [_call(one) for one in given]


def _call(given: Json) -> Message:
    function = given.get("function") if isinstance(given, dict) else None
    if (
        not isinstance(function, dict)
        or given.get("type") != "function"
        or not isinstance(given.get("id"), str)
        or not isinstance(function.get("name"), str)
        or not isinstance(function.get("arguments"), str)
    ):
        raise Unlike("odd tool calls")
    inner = ordered(function, ("arguments", "name"))
    return ordered({**given, "function": inner}, ("id", "function", "type"))


def _tools(given: Json) -> tuple[list[Tool] | None, int]:
    """Return the tools of a developer message, and how many of their fields are known."""
    if given is None:
        return None, 0
    if not isinstance(given, list):
        raise Unlike("odd tools")
    kinds = {"name": str, "description": str, "parameters": dict, "strict": bool | None}
    tools, known = [], 0
    for one in given:
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or one.get("type") != "function":
            raise Unlike("odd tools")
        if "name" not in function or not all(
            isinstance(function[name], kind) for name, kind in kinds.items() if name in function
        ):
            raise Unlike("odd tools")
        inner = ordered(function, tuple(kinds))
        tools.append(ordered({**one, "function": inner}, ("function", "type")))
        known += 2 + len(kinds.keys() & function.keys())
    return tools, known
