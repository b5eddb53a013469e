"""Counts what is no text among the parts of messages: images, sounds and the like."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from router.errors import BadRequest
from router.openai import UNEXPECTED, entries, is_list

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


class _Part(msgspec.Struct):
    type: Any = None
    uuid: Any = None
    """vLLM looks for an image where this is given, whatever the type (entrypoints/chat_utils)."""
    content: msgspec.Raw = msgspec.Raw()
    """What a tool returned, in `/v1/messages`."""


_part = msgspec.json.Decoder(_Part).decode


def others(raw: msgspec.Raw, *, outermost: bool = True) -> int:
    """Count the parts that are not text in what may be a list of parts.

    Raises BadRequest: a list that is too much to look at might hold nothing else.
    """
    if not is_list(raw):
        return 0
    found = entries(raw)
    if found is None:
        raise BadRequest("A message has too many parts, or one that is not an object.")
    count = 0
    for entry in found:
        part = _decoded(_part, entry)
        if part is None:  # a string, which is text
            continue
        if not isinstance(part.type, str) or part.type not in _WORDS or part.uuid is not None:
            count += 1
        elif outermost:
            count += others(part.content, outermost=False)
    return count


def _decoded(decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw) -> T | None:
    try:
        return decode(raw)
    except UNEXPECTED:
        return None
