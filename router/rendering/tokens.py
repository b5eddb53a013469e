"""A request's prompt as the token ids that its engine will compute, for one model.

Chats with images and the like: where the first of them is in the prompt. Pure.

Only engines know what they make of an image, but up to the first one a prompt is text. To find
where that text ends, two renderings of the chat are compared: with the image, and with a word in
its place. Both are the same up to there.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, AnyStr, NamedTuple, Protocol
from uuid import uuid4

from router.api.endpoints import Endpoint, Prompted
from router.rendering.body import Body, chosen, plain, readable
from router.rendering.errors import NOT_TEXT, Json, Unlike
from router.rendering.messages import Message
from router.runtime.threads import BYTES, rest

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


#: Longest prompt that is tokenized, in characters: a million tokens of most languages. Also the
#: longest request read for that, in bytes, unless it has images and the like. The slowest input for
#: tokenizers, one letter repeated, takes two seconds at this length.
LONGEST = 4 << 20
#: Strings that occur in requests with images and the like.
_MEDIA_MARKS = (b"image_url", b"audio_url", b"video_url", b"input_audio")


class Way(Protocol):
    """How the engines of one model make tokens. May be used by several threads at once."""

    @property
    def short(self) -> int:
        """Largest request, in bytes, that is tokenized on the event loop."""

    @property
    def dated(self) -> bool:
        """Whether prompts may contain the time, by the engine's clock and in its time zone."""

    def chat(self, endpoint: Endpoint, asked: Body, size: int) -> bytes:
        """Return the ids of a chat in any dialect whose body has `size` bytes. Raises Unlike."""

    def head(self, endpoint: Endpoint, asked: Body, size: int) -> Head:
        """Return what is known of a chat with images and the like. Raises Unlike."""

    def text(self, text: str, *, special: bool) -> bytes:
        """Return the ids of a text of at most `LONGEST` characters; with `special`, BOS too. Raises
        Unlike."""


class Exact:
    """Computes one model's tokens. May be used by several threads at once."""

    def __init__(self, way: Way) -> None:
        self._way = way

    @property
    def short(self) -> int:
        """Largest request, in bytes, that is tokenized on the event loop."""
        return self._way.short

    @property
    def dated(self) -> bool:
        """Whether prompts may contain the time, in which case ours may differ from the engine's."""
        return self._way.dated

    def ids(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> bytes:
        """Return the prompt's ids, 32 bits each, little-endian. Raises Unlike.

        `left_out`: whether the engine leaves out tools with `tool_choice: none`; None: not known.
        """
        if len(body) > LONGEST:
            raise Unlike(NOT_TEXT if _has_media(body) else "too long")
        asked = readable(endpoint, body)
        match endpoint.prompted:
            case Prompted.COMPLETION | Prompted.INPUT:
                return self._plain(asked, endpoint)
            case Prompted.NOTHING:
                raise Unlike("no prompt")
        return self._way.chat(endpoint, chosen(asked, left_out=left_out), len(body))

    def head(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> Head:
        """Return what is known of a chat with images and the like. Raises Unlike."""
        return self._way.head(
            endpoint, chosen(readable(endpoint, body), left_out=left_out), len(body)
        )

    def _plain(self, asked: Body, endpoint: Endpoint) -> bytes:
        found = plain(asked, endpoint)
        if isinstance(found, bytes):
            return found
        if len(found.text) > LONGEST:
            raise Unlike("too long")
        return self._way.text(found.text, special=found.special)


def _has_media(body: bytes) -> bool:
    for start in range(0, len(body), BYTES):
        piece = body[start : start + BYTES + max(map(len, _MEDIA_MARKS))]
        if any(name in piece for name in _MEDIA_MARKS):
            return True
        rest()
    return False
