"""Counts what is no text among the parts of messages: images, sounds and the like."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from router.errors import BadRequest
from router.messages import MOST_ENTRIES, UNEXPECTED, entries, is_list

T = TypeVar("T")

#: The types of a message's parts that are no image, sound or the like, in the APIs of OpenAI and
#: Anthropic. Whatever else there will be counts as an image.
_WORDS = frozenset(
    (
        "text",
        "input_text",
        "output_text",
        "summary_text",
        "reasoning_text",
        "reasoning",
        "refusal",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "tool_reference",
    )
)

_TOO_MANY = "A message has too many parts, or one that is not an object."


class _Part(msgspec.Struct):
    type: Any = None
    uuid: Any = None
    """vLLM looks for an image where this is given, whatever the type (entrypoints/chat_utils)."""
    content: msgspec.Raw = msgspec.Raw()
    """What a tool returned, in `/v1/messages`."""


_part = msgspec.json.Decoder(_Part).decode


def others(parts: Sequence[msgspec.Raw], *, outermost: bool = True) -> int:
    """Count those of a message's parts that are not text.

    Raises BadRequest: a list that is too much to look at might hold nothing else.
    """
    if len(parts) > MOST_ENTRIES:
        raise BadRequest(_TOO_MANY)
    count = 0
    for entry in parts:
        part = _decoded(_part, entry)
        if part is None:
            count += listed(entry, outermost=False) if outermost else 0
        elif not isinstance(part.type, str) or part.type not in _WORDS or part.uuid is not None:
            count += 1
        elif outermost:
            count += listed(part.content, outermost=False)
    return count


def listed(raw: msgspec.Raw, *, outermost: bool = True) -> int:
    """The same of what may be a list of parts: anything else, a text say, has none."""
    if not is_list(raw):
        return 0
    found = entries(raw)
    if found is None:
        raise BadRequest(_TOO_MANY)
    return others(found, outermost=outermost)


def _decoded(decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw) -> T | None:
    try:
        return decode(raw)
    except UNEXPECTED:
        return None
