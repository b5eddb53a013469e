"""A chat request in any dialect, in the form that an engine's renderer sees."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from router.rendering.decoded import Json
from router.rendering.errors import Unlike
from router.rendering.messages import Message, read
from router.rendering.tools import Tool, chat_tools

Body = Mapping[str, Any]

#: Efforts that a client may ask for: how much the model should think.
EFFORTS = frozenset(("none", "minimal", "low", "medium", "high", "xhigh", "max"))


class Chat(NamedTuple):
    """Everything that determines a chat's prompt."""

    messages: list[Message]
    """As returned by `reading.read`."""
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


def chat_of(asked: Body) -> Chat:
    """Return the chat of a request to `/v1/chat/completions`. Raises Unlike."""
    if asked.get("chat_template") is not None:
        raise Unlike("a template of its own")
    return Chat(
        read(asked.get("messages")),
        chat_tools(asked.get("tools")),
        keywords(asked),
        effort(asked.get("reasoning_effort")),
        _documents(asked.get("documents")),
        flag(asked, "add_generation_prompt", default=True),
        flag(asked, "continue_final_message", default=False),
        flag(asked, "add_special_tokens", default=False),
        None if flag(asked, "echo", default=False) else forwarded(asked),
    )


def keywords(asked: Body) -> Mapping[str, Any]:
    """Return the request's own keywords for the template. Raises Unlike."""
    found = asked.get("chat_template_kwargs")
    if not isinstance(found, dict | None):
        raise Unlike("odd template keywords")
    return found or {}


def effort(found: Json) -> str | None:
    """Return the requested effort, if any. Raises Unlike."""
    if found is None or (isinstance(found, str) and found in EFFORTS):
        return found
    raise Unlike("odd template keywords")


def flag(asked: Body, name: str, *, default: bool) -> bool:
    """Return a boolean field. Raises Unlike."""
    value = asked.get(name, default)
    if not isinstance(value, bool):
        raise Unlike("odd flags")
    return value


def forwarded(asked: Body) -> list[int] | None:
    """Return the prompt's token ids if the request contains them. Raises Unlike."""
    given = asked.get("kv_transfer_params")
    ids = given.get("prompt_token_ids") if isinstance(given, dict) else None
    if ids is not None and not (isinstance(ids, list) and ids):
        raise Unlike("odd token ids")
    return ids


def _documents(found: Json) -> list[dict[str, str]] | None:
    if found is not None and not (
        isinstance(found, list)
        and all(isinstance(one, dict) for one in found)
        and all(isinstance(value, str) for one in found for value in one.values())
    ):
        raise Unlike("odd documents")
    return found
