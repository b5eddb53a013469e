"""Chats with images and the like: where the first of them is in the prompt. Pure.

Only engines know what they make of an image, but up to the first one a prompt is text. To find
where that text ends, two renderings of the chat are compared: with the image, and with a word in
its place. Both are the same up to there.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, AnyStr, NamedTuple
from uuid import uuid4

from router.rendering.body import Body
from router.rendering.decoded import Json
from router.rendering.errors import NOT_TEXT, Unlike
from router.rendering.messages import Message

#: Parts that are not text, by type, and the type that engines show to templates (vLLM
#: renderers/chat_utils.py, `_parse_chat_message_content_part`).
_MEDIA = {
    "image_url": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
#: Fields allowed in a message with such parts: others could change how it is read.
_PLAIN = frozenset(("role", "content", "name"))
#: Placeholder for media: a random word that nobody else has written.
_WORD = uuid4().hex
#: Token-like text that represents an image in a prompt: `<|image_pad|>`, `[IMG]`.
_TOKENS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")


class Head(NamedTuple):
    """What is known of a prompt with media."""

    ids: bytes
    """Ids before the first of the media, 32 bits each, little-endian."""
    tokens: int
    """Number of tokens of the whole prompt, with each of the media counted only as its text."""
    media: int
    """Number of media."""


def with_words(asked: Body) -> tuple[Body, int]:
    """Return the request with words in place of media, and their number. Raises Unlike."""
    messages = asked.get("messages")
    if not isinstance(messages, list):
        raise Unlike(NOT_TEXT)
    made = [_with_words(message) for message in messages]
    count = sum(
        _is_word(part)
        for message in made
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for part in message["content"]
    )
    if not count:
        raise Unlike(NOT_TEXT)
    return {**asked, "messages": made}, count


def with_media(conversation: Sequence[Message], most: int) -> list[Message]:
    """Return a conversation with its first `most` words turned back into media."""
    left = iter(range(most))
    return [
        {**message, "content": [_medium(part, left) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in conversation
    ]


def head(one: str, all_: str, none: str) -> str:
    """Return the text before the first of the media. Raises Unlike.

    `one` is the prompt with only the first of the media, `all_` with all, `none` with words only.
    """
    place = none.find(_WORD)
    if place < 0:
        raise Unlike(NOT_TEXT)
    found = none[:place] if one.startswith(none[:place]) else none[: same_start(one, none)]
    after = none[place + len(_WORD) :]
    shown = one[len(found) : len(one) - _same_end(one, after)]
    tokens = _TOKENS.findall(shown)
    # A user may have written the image's token: engines could take that for the first image.
    if not tokens or any(token in found for token in tokens) or not all_.startswith(found):
        raise Unlike(NOT_TEXT)
    return found


def same_start(one: AnyStr, other: AnyStr) -> int:
    """Return the length of the common prefix, by bisection: comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _with_words(message: Json) -> Json:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not any(map(_is_medium, content)):
        return message
    if not message.keys() <= _PLAIN:
        raise Unlike(NOT_TEXT)
    return {**message, "content": [_word(part) for part in content]}


def _is_medium(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _MEDIA


def _word(part: Json) -> Json:
    if not _is_medium(part):
        return part
    kind = part["type"]
    if part.keys() != {"type", kind} or not part[kind]:
        raise Unlike(NOT_TEXT)
    return {"type": "text", "text": f"{_WORD}{_MEDIA[kind]}"}


def _is_word(part: object) -> bool:
    return isinstance(part, dict) and str(part.get("text", "")).startswith(_WORD)


def _medium(part: Mapping[str, Any], left: Iterator[int]) -> Mapping[str, Any]:
    if not _is_word(part) or next(left, None) is None:
        return part
    return {"type": part["text"][len(_WORD) :]}


def _same_end(one: str, other: str) -> int:
    """Return the length of the common suffix."""
    return same_start(one[::-1], other[::-1])
