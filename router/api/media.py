"""Counts the parts of messages and documents that are not text: images, sounds and the like."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from router.api.errors import BadRequest
from router.api.messages import MAX_ENTRIES, UNEXPECTED, entries, is_list
from router.runtime.threads import ELEMENTS, rest

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

_TOO_MANY_PARTS = "Messages have too many parts, or one that is not an object."
_TOO_MANY_DOCUMENTS = "There are more documents than can be read, or something else among them."


class _Part(msgspec.Struct):
    type: Any = None
    uuid: Any = None
    """If given, vLLM looks for an image whatever the type (entrypoints/chat_utils)."""
    content: msgspec.Raw = msgspec.Raw()
    """The result of a tool, in `/v1/messages`."""


_part = msgspec.json.Decoder(_Part).decode
_texts = msgspec.json.Decoder(list[str]).decode


def images(contents: Sequence[list[msgspec.Raw] | msgspec.Raw]) -> int:
    """Count the parts of messages that are not text; contents that are not lists have none.

    Raises BadRequest if there are too many parts to look at, as all might be images.
    """
    count, inner = 0, []
    for part in _parts(contents):
        if _is_other(part):
            count += 1
        elif part.content:
            inner.append(part.content)
    return count + sum([_is_other(part) for part in _parts(inner)])


def documents(raw: msgspec.Raw, field: str) -> list[msgspec.Raw]:
    """Return the contents of what is to be scored: a text, which has none, a document, or a list.

    Raises BadRequest, which names the `field`, if a list that is not of texts alone is too long to
    look at.
    """
    items: list[msgspec.Raw] | None = [raw]
    if is_list(raw):
        if _decoded(_texts, raw) is not None:
            return []
        items = entries(raw)
    if items is None:
        raise BadRequest(_TOO_MANY_DOCUMENTS, param=field)
    return [part.content for part in _decoded_parts(items)]


def _parts(contents: Sequence[list[msgspec.Raw] | msgspec.Raw]) -> list[_Part]:
    """Return the parts of all contents. The bound is on all together, so many messages take no
    longer to look at than one."""
    items: list[msgspec.Raw] = []
    for content in contents:
        if isinstance(content, list):
            items += content
        elif is_list(content):
            listed = entries(content)
            if listed is None:
                raise BadRequest(_TOO_MANY_PARTS)
            items += listed
        if len(items) > MAX_ENTRIES:
            raise BadRequest(_TOO_MANY_PARTS)
    return _decoded_parts(items)


def _decoded_parts(items: Sequence[msgspec.Raw]) -> list[_Part]:
    """Return those that are objects; a string is text."""
    parts = list[_Part]()
    for start in range(0, len(items), ELEMENTS):
        if start:
            rest()
        decoded = [_decoded(_part, item) for item in items[start : start + ELEMENTS]]
        parts += [part for part in decoded if part is not None]
    return parts


def _is_other(part: _Part) -> bool:
    return not isinstance(part.type, str) or part.type not in _WORDS or part.uuid is not None


def _decoded(decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw) -> T | None:
    try:
        return decode(raw)
    except UNEXPECTED:
        return None
