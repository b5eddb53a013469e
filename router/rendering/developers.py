"""Developer messages, for templates that do not know that role (vLLM renderers/hf.py)."""

from collections.abc import Mapping, Sequence
from typing import Any

from router.rendering.decoded import Json

Messages = Sequence[Mapping[str, Any]]


def without_developers(messages: Messages) -> Messages:
    """Turn developer messages into system messages, and merge all of those into one at the
    start."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    changed = [_as_system(message) for message in messages]
    systems = [place for place, message in enumerate(changed) if message["role"] == "system"]
    if systems == [0]:
        return changed
    texts = [_text(changed[place]["content"]) for place in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in changed if message["role"] != "system")]


def _as_system(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] != "developer":
        return message
    kept = {name: value for name, value in message.items() if name != "tools"}
    return {**kept, "role": "system"}


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
