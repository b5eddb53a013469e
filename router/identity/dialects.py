"""`/v1/responses` and `/v1/messages` as the chat that an engine makes of them.

Only what is plain text is followed (vLLM entrypoints/openai/responses/utils.py,
`construct_input_messages`, and entrypoints/anthropic/serving.py, `_convert_messages`); tools, items
of other kinds and thinking are the engine's affair, and raise Unlike.
"""

from collections.abc import Mapping
from typing import Any

from router.identity.unlike import Unlike

Body = Mapping[str, Any]

#: What else could change the prompt, by dialect.
_RESPONSES = ("tools", "previous_response_id", "previous_input_messages", "prompt", "reasoning")
_MESSAGES = ("tools", "thinking", "output_config", "mcp_servers")
_BILLING = "x-anthropic-billing-header"


def chat_of_responses(asked: Body) -> dict[str, Any]:
    """Return the chat that stands for a request to `/v1/responses`. Raises Unlike."""
    _refuse(asked, _RESPONSES)
    messages: list[dict[str, Any]] = []
    if asked.get("instructions"):
        messages.append({"role": "system", "content": asked["instructions"]})
    given = asked.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        messages.extend(map(_item, given))
    else:
        raise Unlike("odd input")
    return {**_kept(asked), "messages": messages}


def _item(item: Any) -> dict[str, Any]:
    """One item of the input: a message, or nothing that is known."""
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        raise Unlike("items that are not messages")
    if set(item) - {"type", "role", "content"}:  # an id or a status: what was answered before
        raise Unlike("items that are not messages")
    return {"role": item.get("role"), "content": item.get("content")}


def chat_of_messages(asked: Body) -> dict[str, Any]:
    """Return the chat that stands for a request to `/v1/messages`. Raises Unlike."""
    _refuse(asked, _MESSAGES)
    messages: list[dict[str, Any]] = []
    system = _texts(asked.get("system") or [], "")
    if system:
        messages.append({"role": "system", "content": "".join(system)})
    given = asked.get("messages")
    for message in given if isinstance(given, list) else ():
        if not isinstance(message, dict) or message.get("role") not in {"user", "assistant"}:
            raise Unlike("odd messages")
        content = message.get("content")
        if not isinstance(content, str):
            texts = _texts(content, None)
            if not texts:
                raise Unlike("odd contents")
            parts = [{"type": "text", "text": text} for text in texts]
            content = texts[0] if len(texts) == 1 else parts
        messages.append({"role": message["role"], "content": content})
    return {**_kept(asked), "messages": messages}


def _texts(content: Any, dropped: str | None) -> list[str]:
    """The texts of a content's blocks, without empty ones; `dropped` where it is a billing line."""
    if isinstance(content, str):
        return [content]
    found = []
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict) or block.get("type") != "text":
            raise Unlike("blocks that are not text")
        text = block.get("text")
        if not isinstance(text, str):
            raise Unlike("odd blocks")
        if text and not (dropped is not None and text.startswith(_BILLING)):
            found.append(text)
    return found


def _refuse(asked: Body, fields: tuple[str, ...]) -> None:
    for field in fields:
        if asked.get(field):
            raise Unlike(f"{field} in another dialect")


def _kept(asked: Body) -> dict[str, Any]:
    """Fields that mean the same in every dialect."""
    names = ("chat_template_kwargs", "kv_transfer_params", "truncate_prompt_tokens")
    return {name: asked[name] for name in names if name in asked}
