"""`/v1/messages` as the chat that an engine makes of it, for one chat template.

vLLM entrypoints/anthropic/serving.py, `to_chat_completion_request`; and, for what engines detect by
rendering a template, `_detect_merge_inline_system` and `_probe_disabled_thinking_effort`. Content
that is not text, and anything that adds or removes tools on the way, raises NotReproducible.
"""

import json
from collections.abc import Mapping
from typing import Any

from router.rendering.chat import BILLING, Body, Chat, effort, forwarded, keywords
from router.rendering.messages import (
    NOT_TEXT,
    Json,
    Message,
    NotReproducible,
    Tool,
    definition,
    read_messages,
)
from router.rendering.sandbox import TOO_LONG, Sandbox, render
from router.rendering.template import ChatTemplate

#: Blocks that engines skip.
_SAY_NOTHING = ("redacted_thinking", "tool_reference")
#: Blocks that are supported here, by role.
_FOLLOWED = {"user": ("text", "tool_result"), "assistant": ("text", "thinking", "tool_use")}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
#: Longest output for four words, in characters.
_MAX_PROBE_CHARS = 1 << 20


def chat_of_messages(fields: Body, *, system_first: bool, unthinking: str) -> Chat:
    """Return the chat equivalent to a request to `/v1/messages`. Raises NotReproducible.

    With `system_first`, all system messages are merged into one at the start. `unthinking` is the
    effort used for "do not think".
    """
    given = fields.get("messages")
    if not isinstance(given, list):
        raise NotReproducible("odd messages")
    system = _system_texts(fields.get("system") or [], whole=True)
    messages: list[Message] = []
    for message in given:
        role = message.get("role") if isinstance(message, dict) else None
        if role == "system":
            text = "".join(_system_texts(message.get("content"), whole=False))
            if text and system_first:
                system.append(text)
            elif text:
                messages.append({"role": "system", "content": text})
        elif isinstance(role, str) and role in _FOLLOWED:
            messages.extend(_messages(role, message.get("content")))
        else:
            raise NotReproducible("odd messages")
    if system:
        messages.insert(0, {"role": "system", "content": "".join(system)})
    return Chat(
        read_messages(messages),
        _tools(fields.get("tools")),
        keywords(fields),
        _effort(fields, unthinking),
        ids=forwarded(fields),
    )


def _system_texts(content: Json, *, whole: bool) -> list[str]:
    """Return the texts of a system prompt, without billing lines.

    If `whole`, a content that is a single string is kept even if it is a billing line.
    """
    if isinstance(content, str):
        return [content] if content and (whole or not content.startswith(BILLING)) else []
    texts = [_text(block) for block in _blocks(content) if block.get("type") == "text"]
    return [text for text in texts if text and not text.startswith(BILLING)]


def _messages(role: str, content: Json) -> list[Message]:
    """Return the messages of one message: its tool results first, then what it says itself."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = [block for block in _blocks(content) if block.get("type") not in _SAY_NOTHING]
    if any(block.get("type") not in _FOLLOWED[role] for block in blocks):
        raise NotReproducible(NOT_TEXT)
    of = {kind: [block for block in blocks if block["type"] == kind] for kind in _FOLLOWED[role]}
    texts = [text for block in of["text"] if (text := _text(block))]
    message: Message = {"role": role}
    if thoughts := [_text(block, "thinking") for block in of.get("thinking", ())]:
        message["reasoning"] = "".join(thoughts)
    if calls := [_call(block) for block in of.get("tool_use", ())]:
        message["tool_calls"] = calls
    if texts:
        parts = [{"type": "text", "text": text} for text in texts]
        message["content"] = texts[0] if len(texts) == 1 else parts
    results = [_result(block) for block in of.get("tool_result", ())]
    return results if role == "user" and not texts else [*results, message]


def _blocks(content: Json) -> list[Message]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise NotReproducible("odd contents")
    return content


def _text(block: Message, field: str = "text") -> str:
    text = block.get(field)
    if not isinstance(text, str | None):
        raise NotReproducible("odd parts")
    return text or ""


def _call(block: Message) -> Message:
    call_id, arguments = block.get("id"), block.get("input")
    if not isinstance(call_id, str) or not call_id or not isinstance(arguments, dict | None):
        raise NotReproducible("odd tool calls")
    function = {"name": _text(block, "name"), "arguments": json.dumps(arguments or {})}
    return {"id": call_id, "type": "function", "function": function}


def _result(block: Message) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise NotReproducible(NOT_TEXT)
        content = "\n".join(_text(part) for part in content)
    elif not isinstance(content, str | None):
        raise NotReproducible("odd contents")
    return {"role": "tool", "tool_call_id": _text(block, "tool_use_id"), "content": content or ""}


def _tools(given: Json) -> list[Tool] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise NotReproducible("odd tools")
    tools: list[Tool] = []
    for tool in given:
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict):
            raise NotReproducible("odd tools")
        typed = schema if "type" in schema else {**schema, "type": "object"}
        tools.append({"type": "function", "function": definition({**tool, "parameters": typed})})
    return tools


def _effort(fields: Body, unthinking: str) -> str | None:
    """Return the effort; switched-off thinking takes precedence."""
    thinking, output = fields.get("thinking"), fields.get("output_config")
    if not isinstance(thinking, dict | None) or not isinstance(output, dict | None):
        raise NotReproducible("odd template keywords")
    if thinking and thinking.get("type") == "disabled":
        return unthinking
    requested = effort(output.get("effort")) if output else None
    if requested in {"none", "minimal"}:
        raise NotReproducible("odd template keywords")
    return requested


def wants_system_first(text: str) -> bool:
    """Return true if a template refuses system messages after the first: they have to be merged.

    As in the engine, this is tested in an environment without most of what templates usually get,
    so a template that needs that counts as refusing. Raises NotReproducible if it writes too much.
    """
    messages = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
    variables = {"messages": messages, "add_generation_prompt": False}
    try:
        render(Sandbox().compiled(text), variables, _MAX_PROBE_CHARS)
    except NotReproducible:
        raise
    except Exception:  # noqa: BLE001 - on errors not Jinja's an engine would not even start
        return True
    return False


def effort_for_none(template: ChatTemplate | None, keywords: Mapping[str, Any]) -> str:
    """Return the effort to use for "do not think": `low` if `none` changes nothing.

    Raises NotReproducible if the template writes too much.
    """
    unthinking = _prompt(template, keywords, "none")
    if unthinking is None or any(
        _prompt(template, keywords, level) == unthinking for level in _EFFORTS
    ):
        return "low"
    return "none"


def _prompt(template: ChatTemplate | None, keywords: Mapping[str, Any], effort: str) -> str | None:
    if template is None:
        return None
    content = [{"type": "text", "text": "Hi"}] if template.wants_parts else "Hi"
    more = {**keywords, "reasoning_effort": effort, "enable_thinking": effort != "none"}
    messages = [{"role": "user", "content": content}]
    try:
        return template.render(messages, more=more, max_chars=_MAX_PROBE_CHARS)
    except NotReproducible as error:
        if error.reason == TOO_LONG:
            raise
        return None
