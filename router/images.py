"""Counts the parts of messages that are not text: images, sounds and the like."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from router.errors import BadRequest
from router.messages import MOST_ENTRIES, UNEXPECTED, entries, is_list

T = TypeVar("T")

#: The types of message parts that hold text, reasoning or tool calls, in the APIs of OpenAI and
#: Anthropic. Any other type counts as an image.
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
    """If given, vLLM looks for an image whatever the type (entrypoints/chat_utils)."""
    content: msgspec.Raw = msgspec.Raw()
    """The result of a tool, in `/v1/messages`."""


_part = msgspec.json.Decoder(_Part).decode


def others(parts: Sequence[msgspec.Raw], *, outermost: bool = True) -> int:
    """Count the parts of a message that are not text.

    Raises BadRequest if there are too many parts to look at, as all might be images.
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
    """Count likewise in a value that may be a list of parts; anything else counts 0."""
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
