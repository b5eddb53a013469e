"""A chat request in any dialect, as an engine's renderer sees it, and as its chat template does.

The rules are vLLM's: renderers/chat_utils.py, `_parse_chat_message_content` and
`_postprocess_messages`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from router.rendering.messages import (
    BARE,
    Json,
    Message,
    NotReproducible,
    TextPart,
    Tool,
    chat_tools,
    check_values,
    read_messages,
)

Body = Mapping[str, Any]

#: Efforts that a client may ask for: how much the model should think.
EFFORTS = frozenset(("none", "minimal", "low", "medium", "high", "xhigh", "max"))


class Chat(NamedTuple):
    """Everything that determines a chat's prompt."""

    messages: list[Message]
    """As returned by `read_messages`."""
    tools: list[Tool] | None
    keywords: Mapping[str, Any]
    """The request's keywords for the template."""
    effort: str | None = None
    documents: list[dict[str, str]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    special: bool = False
    """Whether the tokenizer adds BOS and the like to the text."""
    ids: list[int] | None = None
    """The prompt's token ids, if the request contains them."""


def chat_of(fields: Body) -> Chat:
    """Return the chat of a request to `/v1/chat/completions`. Raises NotReproducible."""
    if fields.get("chat_template") is not None:
        raise NotReproducible("a template of its own")
    return Chat(
        read_messages(fields.get("messages")),
        chat_tools(fields.get("tools")),
        keywords(fields),
        effort(fields.get("reasoning_effort")),
        _documents(fields.get("documents")),
        flag(fields, "add_generation_prompt", default=True),
        flag(fields, "continue_final_message", default=False),
        flag(fields, "add_special_tokens", default=False),
        None if flag(fields, "echo", default=False) else forwarded(fields),
    )


def keywords(fields: Body) -> Mapping[str, Any]:
    """Return the request's own keywords for the template. Raises NotReproducible."""
    kwargs = fields.get("chat_template_kwargs")
    if not isinstance(kwargs, dict | None):
        raise NotReproducible("odd template keywords")
    return kwargs or {}


def effort(level: Json) -> str | None:
    """Return the requested effort, if any. Raises NotReproducible."""
    if level is None or (isinstance(level, str) and level in EFFORTS):
        return level
    raise NotReproducible("odd template keywords")


def flag(fields: Body, name: str, *, default: bool) -> bool:
    """Return a boolean field. Raises NotReproducible."""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise NotReproducible("odd flags")
    return value


def forwarded(fields: Body) -> list[int] | None:
    """Return the prompt's token ids if the request contains them. Raises NotReproducible."""
    params = fields.get("kv_transfer_params")
    ids = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if ids is not None and not (isinstance(ids, list) and ids):
        raise NotReproducible("odd token ids")
    return ids


def _documents(documents: Json) -> list[dict[str, str]] | None:
    if documents is not None and not (
        isinstance(documents, list)
        and all(isinstance(document, dict) for document in documents)
        and all(isinstance(value, str) for document in documents for value in document.values())
    ):
        raise NotReproducible("odd documents")
    return documents


#: A line that Claude Code puts before its system prompt, different each time; engines drop it.
BILLING = "x-anthropic-billing-header"

#: Roles whose messages are changed even if their content is a single text.
_CHANGED = ("system", "developer")


def conversation(messages: Sequence[Message], *, parts: bool) -> list[Message]:
    """Return the messages as a chat template gets them, contents as `parts` or as text.

    `messages` are as returned by `read_messages`, and are not changed. Raises NotReproducible.
    """
    return [_message(message, parts=parts) for message in messages]


def _message(message: Message, *, parts: bool) -> Message:
    role = message["role"]
    content: str | Sequence[TextPart] | None = message["content"]
    if isinstance(content, str):
        if not parts and role not in _CHANGED:
            return message  # nearly all messages are this plain
        content = (TextPart("text", content),)
    given_parts = content or ()
    if role == "system":
        given_parts = [kept for part in given_parts if (kept := _without_billing(part)) is not None]
    shown: Message = {
        "role": role,
        "content": _content(given_parts, parts=parts, joined=role == "tool"),
    }
    if role == "assistant":
        _assistant(message, shown)
    elif role == "tool" and "tool_call_id" in message:
        shown["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if name in message:
            shown[name] = message[name]
    if role == "developer":
        shown["tools"] = message.get("tools")
    return shown


def _content(given: Sequence[TextPart], *, parts: bool, joined: bool) -> str | list[dict[str, Any]]:
    """Return the texts as parts, or joined. Unless templates want parts, empty texts are left
    out."""
    shown = [part for part in given if part.text is not None]
    if parts and not joined:
        return [{"type": "text", "text": part.text, **part.more} for part in shown]
    return "\n".join([part.text or "" for part in shown if part.text or parts])


def _without_billing(part: TextPart) -> TextPart | None:
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

    Raises NotReproducible.
    """
    text = call["function"]["arguments"]
    if text:
        # The body may have them escaped, so they were not counted there.
        check_values(text.encode(errors="surrogatepass"))
    try:
        arguments = json.loads(text) if text else {}
    except json.JSONDecodeError:
        arguments = {}
    except (ValueError, RecursionError):  # too many digits, too deep: engines refuse these
        raise NotReproducible("odd tool calls") from None
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments}}
