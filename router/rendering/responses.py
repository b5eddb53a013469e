"""`/v1/responses` as the chat that an engine makes of it.

vLLM entrypoints/openai/responses/utils.py, `construct_input_messages`. One turn may come as several
items (reasoning, text, tool calls), which become one message if they follow each other.
Earlier responses that only the engine remembers raise NotReproducible, and so does anything that is
not text.
"""

from router.rendering.chat import Body, Chat, effort, forwarded, keywords
from router.rendering.messages import (
    NOT_TEXT,
    Json,
    Message,
    NotReproducible,
    TextPart,
    Tool,
    definition,
)

#: Fields that only the engine can resolve, or that it refuses.
_ELSEWHERE = ("previous_response_id", "previous_input_messages", "prompt")
_ROLES = ("user", "assistant", "system", "developer")
#: States of an unfinished item. If the last item is an unfinished message, it is continued.
_OPEN = ("in_progress", "incomplete")
_STATES = (None, "completed", *_OPEN)
#: Known fields of messages and of their parts. Engines pass others on to templates, which may write
#: them: a name, a task, or anything a client invents.
_IN_MESSAGE = frozenset(("type", "role", "content", "id", "status"))
_IN_PART = frozenset(("type", "text"))


def chat_of_responses(fields: Body) -> Chat:
    """Return the chat equivalent to a request to `/v1/responses`. Raises NotReproducible."""
    if any(fields.get(field) is not None for field in _ELSEWHERE):
        raise NotReproducible("what came before is with the engine")
    if fields.get("truncation", "disabled") != "disabled":
        raise NotReproducible("truncated by the engine")
    reasoning, instructions = fields.get("reasoning"), fields.get("instructions")
    if not isinstance(reasoning, dict | None) or not isinstance(instructions, str | None):
        raise NotReproducible("odd input")
    messages = [_text_message("system", instructions)] if instructions else []
    return Chat(
        messages + _messages(fields.get("input")),
        _tools(fields.get("tools")),
        keywords(fields),
        effort((reasoning or {}).get("effort")),
        # Unlike for other chats, engines leave this to the tokenizer's default.
        special=True,
        ids=forwarded(fields),
    )


def _messages(given: Json) -> list[Message]:
    if isinstance(given, str):
        return [_text_message("user", given)]
    if not isinstance(given, list):
        raise NotReproducible("odd input")
    if given and isinstance(given[-1], dict) and given[-1].get("status") in _OPEN:
        raise NotReproducible("continues a message")
    messages: list[Message] = []
    for item in given:
        if not isinstance(item, dict) or item.get("status") not in _STATES:
            raise NotReproducible("odd input")
        before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if (new := _message(item, before)) is not None:
            messages.append(new)
    return messages


def _message(item: Message, before: Message | None) -> Message | None:
    """Return the item as a new message; None if it was merged into the assistant's message before
    it."""
    match item.get("type", "message"):
        case "message":
            return _spoken(item, before)
        case "function_call":
            return _into(before, "tool_calls", _call(item))
        case "function_call_output":
            output, called = item.get("output"), item.get("call_id")
            if not isinstance(output, str) or not isinstance(called, str):
                raise NotReproducible("odd input")
            return {**_text_message("tool", output), "tool_call_id": called}
        case "reasoning":
            return _into(before, "reasoning", _thought(item))
    raise NotReproducible("items that are not text")


def _spoken(item: Message, before: Message | None) -> Message | None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise NotReproducible("odd input")
    if isinstance(content, str):
        parts = [TextPart("text", content)]
    elif isinstance(content, list):
        parts = [_part(part, role) for part in content]
    else:
        raise NotReproducible("odd input")
    if role != "assistant":
        if not item.keys() <= _IN_MESSAGE:
            raise NotReproducible("fields that templates may see")
        return {"role": role, "content": parts}
    if not parts or (isinstance(content, list) and "type" not in item):
        raise NotReproducible("odd input")
    return _into(before, "content", parts[:1])  # engines use only the first of several texts


def _part(part: Json, role: str) -> TextPart:
    kind = "output_text" if role == "assistant" else "input_text"
    if not isinstance(part, dict) or part.get("type") != kind:
        raise NotReproducible(NOT_TEXT)
    text = part.get("text")
    if not isinstance(text, str) or part.get("annotations") or part.get("logprobs"):
        raise NotReproducible("odd parts")
    if role != "assistant" and part.keys() != _IN_PART:
        raise NotReproducible("fields that templates may see")
    return TextPart(kind, text)


def _into(before: Message | None, field: str, value: Json) -> Message | None:
    """Add to the assistant's message before it, or return a new message."""
    if before is not None and field == "tool_calls":
        before[field] = [*(before.get(field) or ()), value]
        return None
    if before is not None and before.get(field) is None:
        before[field] = value
        return None
    made = [value] if field == "tool_calls" else value
    return {"role": "assistant", "content": None, field: made}


def _call(item: Message) -> Message:
    call_id, name, arguments = map(item.get, ("call_id", "name", "arguments"))
    if not all(isinstance(value, str) for value in (call_id, name, arguments)):
        raise NotReproducible("odd tool calls")
    if item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "function": function, "type": "function"}


def _thought(item: Message) -> str:
    if item.get("encrypted_content"):
        raise NotReproducible("what came before is with the engine")
    summary, content = item.get("summary"), item.get("content")
    if not isinstance(summary, list) or not isinstance(content, list | None):
        raise NotReproducible("odd input")
    texts = content or summary
    if not texts:
        return ""
    text = texts[0].get("text") if isinstance(texts[0], dict) else None
    if not isinstance(text, str):
        raise NotReproducible("odd input")
    return text


def _text_message(role: str, text: str) -> Message:
    return {"role": role, "content": [TextPart("text", text)]}


def _tools(given: Json) -> list[Tool] | None:
    if not given:
        return None
    if not isinstance(given, list) or not all(
        isinstance(tool, dict) and tool.get("type") == "function" for tool in given
    ):
        raise NotReproducible("tools of the engine's own")
    return [{"type": "function", "function": definition(tool)} for tool in given]
