"""How engines read the messages of a chat: what they accept, and the order of the fields.

vLLM has two models of a message: OpenAI's for its role, and one of its own that takes any role. It
uses the one that knows more of the message's fields, including those of parts and tool calls, and
OpenAI's if both know equally many; OpenAI's knows fewer kinds of parts. Fields that the model knows
come first, in its order, then the others. (Its renderers/chat_utils.py,
`ChatCompletionMessageParam`; the choice is pydantic's, for a union. Tools:
entrypoints/generate/base/protocol.py, `FunctionDefinition`.)
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

#: Any JSON value: string, number, true, false, null, or a list or object of these.
Json: TypeAlias = Any
Message = dict[str, Any]
Tool = dict[str, Any]

#: The reason for most prompts whose tokens cannot be known: images and the like.
NOT_TEXT = "parts that are not text"


class NotReproducible(Exception):
    """The engine's tokens cannot be known.

    The reason is a few words, the same for all prompts of that kind. It is a metric's label, so it
    must not contain anything that a client wrote.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


#: Most objects and lists in a request. `ENTRIES_PER_VALUE` entries of lists or objects, or as many
#: commas in text, count as one. The maximum takes some hundredths of a second to read, and decoding
#: or encoding JSON in C blocks all other threads until it ends, even if done in a thread.
MAX_VALUES, ENTRIES_PER_VALUE = 1 << 18, 4
#: Bytes scanned at a time.
_SLICE = 1 << 20


def check_values(json: bytes) -> None:
    """Raise NotReproducible if a body, not decoded yet, holds too many objects and entries."""
    if len(json) <= MAX_VALUES:
        return
    things = 0.0
    for start in range(0, len(json), _SLICE):
        objects, lists, commas = (
            json.count(mark, start, start + _SLICE) for mark in (b"{", b"[", b",")
        )
        things += objects + lists + commas / ENTRIES_PER_VALUE
        if things > MAX_VALUES:
            raise NotReproducible("too long")


# The parts of a message's content that are text.

#: Types of parts that are text, and the field that holds it.
_TEXTS = {
    "text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "input_text": "text",
    "output_text": "text",
}
#: Kinds for which engines have a pydantic model, and those that are skipped if their text is null.
_MODELLED, _NULLABLE = frozenset(("text", "refusal", "thinking")), frozenset(("text", "refusal"))
#: Fields that engines know, for parts of any kind; all others reach the template.
_KNOWN = frozenset(
    ("closed", "data", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type")
)
#: Fields that may make a part something other than text.
_ELSE = frozenset(
    (
        "audio_embeds",
        "audio_url",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "uuid",
        "video_embeds",
        "video_url",
    )
)
#: The kind of a part that is a bare string.
BARE = "a string"


class TextPart(NamedTuple):
    """One text of a message's content."""

    kind: str
    text: str | None
    """None if the part is to be skipped."""
    more: Mapping[str, Any] = {}
    """Fields that engines do not know."""
    proper: bool = True
    """Whether engines have a model for this kind, and it accepts this part."""


def read_parts(content: Json) -> tuple[list[TextPart], int]:
    """Return the texts of a content, and how many of their fields are counted.

    Raises NotReproducible.
    """
    if content is None:
        return [], 0
    if isinstance(content, str):
        return [TextPart("text", content)], 0
    if not isinstance(content, list):
        raise NotReproducible("odd contents")
    parts, known = [], 0
    for entry in content:
        part, fields = _part(entry)
        parts.append(part)
        known += fields
    return parts, known


def _part(entry: Json) -> tuple[TextPart, int]:
    if isinstance(entry, str):
        return TextPart(BARE, entry, proper=False), 0
    kind = entry.get("type") if isinstance(entry, dict) else None
    field = _TEXTS.get(kind) if isinstance(kind, str) else None
    if kind is None or field is None or not _ELSE.isdisjoint(entry):
        raise NotReproducible(NOT_TEXT)
    text = entry.get(field)
    if text is None and kind in _NULLABLE:
        return TextPart(kind, None, proper=False), 0
    closed = kind == "thinking" and "closed" in entry
    if not isinstance(text, str) or (closed and not isinstance(entry["closed"], bool)):
        raise NotReproducible("odd parts")
    marked = _marked(entry) if kind == "text" else int(closed)
    more = {name: entry[name] for name in entry if name not in _KNOWN}
    if kind not in _MODELLED or marked is None:
        return TextPart(kind, text, more, proper=False), 0
    return TextPart(kind, text, more), 2 + marked


def _marked(entry: Mapping[str, Any]) -> int | None:
    """Return how many fields a cache mark adds; None if it is not valid."""
    if "prompt_cache_breakpoint" not in entry:
        return 0
    mark = entry["prompt_cache_breakpoint"]
    if not isinstance(mark, dict) or mark.get("mode") != "explicit":
        return None
    if "ttl" not in mark:
        return 2
    return 3 if mark["ttl"] in ("30m", "12h") else None


# Tools as chat templates get them: fields in the order of the engine's models.


def chat_tools(given: Json) -> list[Tool] | None:
    """Return the tools of a chat request; None if there are none. Raises NotReproducible."""
    if given is None:
        return None
    if not isinstance(given, list) or not given:
        raise NotReproducible("odd tools")
    return [_chat_tool(tool) for tool in given]


def _chat_tool(given: Json) -> Tool:
    if not isinstance(given, dict) or given.get("type", "function") != "function":
        raise NotReproducible("odd tools")
    deferred = given.get("defer_loading")
    made: Tool = {"type": "function", "function": definition(given.get("function"), deferred)}
    return made if deferred is None else {**made, "defer_loading": deferred}


def definition(given: Json, deferred: Json = None) -> Tool:
    """Return a function's definition; `deferred` is its tool's `defer_loading`.

    Raises NotReproducible.
    """
    if not isinstance(given, Mapping):
        raise NotReproducible("odd tools")
    name, description, parameters = map(given.get, ("name", "description", "parameters"))
    own = given.get("defer_loading")
    flags = {"strict": given.get("strict"), "defer_loading": deferred if own is None else own}
    if (
        not isinstance(name, str)
        or not isinstance(description, str | None)
        or not isinstance(parameters, dict | None)
        or not all(isinstance(flag, bool | None) for flag in (*flags.values(), deferred))
    ):
        raise NotReproducible("odd tools")
    made: Tool = {"name": name, "description": description, "parameters": parameters}
    return made | {name: flag for name, flag in flags.items() if flag is not None}


def _ordered(given: Mapping[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields with those in `first` first, in that order."""
    known = {name: given[name] for name in first if name in given}
    return known | {name: value for name, value in given.items() if name not in known}


# Messages.

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
_KINDS, _TEXT = {"assistant": frozenset(("text", "refusal"))}, frozenset(("text",))
#: Fields that must be strings if present, and those that may also be null.
_STRINGS, _NULLABLE_STRINGS = ("name", "task"), ("tool_call_id", "reasoning", "refusal")
#: Objects in an assistant's message, and their required fields.
_INNER = {"audio": ("id",), "function_call": ("arguments", "name")}
#: Number of fields counted for a tool call and its function.
_IN_CALL = 5


def read_messages(messages: Json) -> list[Message]:
    """Return decoded messages as an engine reads them; they are not changed.

    Raises NotReproducible.

    `content` is a list of `TextPart`, or a string if the message has only a role and a string.
    Other fields are included only if given.
    """
    if not isinstance(messages, list) or not messages:
        raise NotReproducible("no messages")
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
        raise NotReproducible("odd messages")
    message = with_reasoning_renamed(given)
    role = message.get("role")
    if (
        not isinstance(role, str)
        or not all(isinstance(message.get(name, ""), str) for name in _STRINGS)
        or not all(isinstance(message.get(name), str | None) for name in _NULLABLE_STRINGS)
    ):
        raise NotReproducible("odd messages")
    parts, in_parts = read_parts(message.get("content"))
    calls = _calls(message.get("tool_calls"))
    tools, in_tools = _tools(message.get("tools"))
    if calls and role != "assistant":
        raise NotReproducible("odd tool calls")
    theirs = _known_to_openai(role, message)
    own = None
    if message.get("content", "") is not None:
        own = len(_OWN & message.keys()) + in_parts + in_tools + _IN_CALL * len(calls or ())
    if theirs is not None and (own is None or theirs >= own):
        kinds = _KINDS.get(role, _TEXT)
        if any(part.kind not in kinds or not part.proper for part in parts):
            raise NotReproducible("odd contents")
    elif own is None:
        raise NotReproducible("odd messages")
    parsed = {"tool_calls": calls, "tools": tools}
    inner = {name: parsed[name] for name in parsed if name in message}
    return {**message, "content": parts, **inner}


def with_reasoning_renamed(given: Message) -> Message:
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
    for name, needed in _INNER.items() if role == "assistant" else ():
        value = message.get(name)
        if value is None:
            continue
        if not isinstance(value, dict) or not all(
            isinstance(value.get(field), str) for field in needed
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
        raise NotReproducible("odd tool calls")
    return [_call(call) for call in given]


def _call(given: Json) -> Message:
    function = given.get("function") if isinstance(given, dict) else None
    if (
        not isinstance(function, dict)
        or given.get("type") != "function"
        or not isinstance(given.get("id"), str)
        or not isinstance(function.get("name"), str)
        or not isinstance(function.get("arguments"), str)
    ):
        raise NotReproducible("odd tool calls")
    inner = _ordered(function, ("arguments", "name"))
    return _ordered({**given, "function": inner}, ("id", "function", "type"))


#: Fields of a function, in a developer message.
_FUNCTION = {"name": str, "description": str, "parameters": dict, "strict": bool | None}


def _tools(given: Json) -> tuple[list[Tool] | None, int]:
    """Return the tools of a developer message, and how many of their fields are known."""
    if given is None:
        return None, 0
    if not isinstance(given, list):
        raise NotReproducible("odd tools")
    tools, known = [], 0
    for tool in given:
        function = tool.get("function") if isinstance(tool, dict) else None
        if (
            not isinstance(function, dict)
            or tool.get("type") != "function"
            or "name" not in function
            or not all(
                isinstance(function.get(name), kind)
                for name, kind in _FUNCTION.items()
                if name in function
            )
        ):
            raise NotReproducible("odd tools")
        inner = _ordered(function, tuple(_FUNCTION))
        tools.append(_ordered({**tool, "function": inner}, ("function", "type")))
        known += 2 + len(_FUNCTION.keys() & function.keys())
    return tools, known
