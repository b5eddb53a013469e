"""The simulated model's chat template: ChatML, with tools before all messages.

<|im_start|>{role}\n{content}<|im_end|>\n       a message
<|im_start|>assistant\n                         the generation prompt
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from simulator.model.conversation import Message


def render(
    messages: Sequence[Message],
    tools: Sequence[Any] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """The prompt text of a conversation."""
    parts: list[str] = []
    if tools:
        parts.append(f"<|im_start|>tools\n{_json(tools)}<|im_end|>\n")
    parts.extend(
        f"<|im_start|>{message.get('role', 'user')}\n{_text(message)}<|im_end|>\n"
        for message in messages
    )
    if continue_final_message and parts:
        parts[-1] = parts[-1].removesuffix("<|im_end|>\n")
    elif add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def _text(message: Message) -> str:
    """A message's content as text; parts that are not text and tool calls become JSON."""
    content = message.get("content")
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "".join(_part(part) for part in content)
    else:
        text = "" if content is None else _json(content)
    calls = message.get("tool_calls")
    return text + _json(calls) if calls else text


def _part(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else _json(part)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
