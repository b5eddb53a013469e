"""What an engine makes of the messages it has read, before its chat template sees them.

The rules are vLLM's: renderers/chat_utils.py, `_parse_chat_message_content` and
`_postprocess_messages`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from router.rendering.errors import Unlike
from router.rendering.messages import Message
from router.rendering.parts import BARE, Part
from router.rendering.sizes import check_things

#: A line that Claude Code puts before its system prompt, different each time; engines drop it.
BILLING = "x-anthropic-billing-header"

#: Roles whose messages are changed even if their content is a single text.
_CHANGED = ("system", "developer")


def conversation(messages: Sequence[Message], *, parts: bool) -> list[Message]:
    """Return the messages as a chat template gets them, contents as `parts` or as text.

    `messages` are as returned by `reading.read`, and are not changed. Raises Unlike.
    """
    return [_message(message, parts=parts) for message in messages]


def _message(message: Message, *, parts: bool) -> Message:
    role = message["role"]
    content: str | Sequence[Part] | None = message["content"]
    if isinstance(content, str):
        if not parts and role not in _CHANGED:
            return message  # nearly all messages are this plain
        content = (Part("text", content),)
    given = content or ()
    if role == "system":
        given = [kept for part in given if (kept := _without_billing(part)) is not None]
    made: Message = {"role": role, "content": _content(given, parts=parts, joined=role == "tool")}
    if role == "assistant":
        _assistant(message, made)
    elif role == "tool" and "tool_call_id" in message:
        made["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if name in message:
            made[name] = message[name]
    if role == "developer":
        made["tools"] = message.get("tools")
    return made


def _content(given: Sequence[Part], *, parts: bool, joined: bool) -> str | list[dict[str, Any]]:
    """Return the texts as parts, or joined. Unless templates want parts, empty texts are left
    out."""
    said = [part for part in given if part.text is not None]
    if parts and not joined:
        return [{"type": "text", "text": part.text, **part.more} for part in said]
    return "\n".join([part.text or "" for part in said if part.text or parts])


def _without_billing(part: Part) -> Part | None:
    if part.kind not in {"text", BARE} or not (part.text or "").startswith(BILLING):
        return part
    rest = (part.text or "").partition("\n")[2]
    return part._replace(text=rest) if rest else None


def _assistant(message: Mapping[str, Any], made: Message) -> None:
    if message.get("tool_calls"):
        made["tool_calls"] = [with_arguments(call) for call in message["tool_calls"]]
    reasoning = message.get("reasoning")
    if reasoning is not None:
        made["reasoning"] = made["reasoning_content"] = reasoning


def with_arguments(call: Mapping[str, Any]) -> Message:
    """Return a tool call with its arguments as an object, empty if they are not a JSON object.

    Raises Unlike.
    """
    given = call["function"]["arguments"]
    if given:
        check_things(
            given.encode(errors="surrogatepass")
        )  # the body may have them escaped, so they were not counted there
    try:
        arguments = json.loads(given) if given else {}
    except json.JSONDecodeError:
        arguments = {}
    except (ValueError, RecursionError):  # too many digits, too deep: engines refuse these
        raise Unlike("odd tool calls") from None
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments}}
