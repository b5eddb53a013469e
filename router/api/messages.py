"""The messages of a request and their parts: which fields are read, and how many at most."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import Annotated, Any

import msgspec

from router.api.errors import BadRequest
from router.runtime.threads import count, rest


class Object(msgspec.Struct, gc=False):
    """Any JSON object; its content is not kept."""


class _Entry(msgspec.Struct, gc=False):
    """What a message, or an item in `/v1/responses`, has besides its role and content."""

    output: msgspec.Raw = msgspec.Raw()
    """The output of a tool, in `/v1/responses`."""
    tool_calls: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    """The older name of `reasoning`."""


class Message(_Entry, gc=False):
    """The fields that routing and limits need."""

    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    """Text or parts. Anything else, or a list too long to look at, is kept raw as one part."""


class Unread(_Entry, gc=False):
    """A `Message` whose content is not decoded yet."""

    role: str = ""
    content: msgspec.Raw = msgspec.Raw()


class _Odd(_Entry, gc=False):
    """An `Unread` whose role is no text, or is one only in the last of several fields `role`."""

    role: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()


#: JSON of up to this many bytes is decoded in one pass: a list in it has a quarter of a million
#: parts at most, which take 15 ms. Decoding a text in place takes half the time of first finding
#: its end and decoding it later.
MAX_ONE_PASS_BYTES = 512 << 10
#: Most elements of a list that are looked at one by one.
MAX_ENTRIES = 16_384
#: The errors that decoding raises.
UNEXPECTED = (msgspec.DecodeError, UnicodeError, RecursionError)

_Decode = Callable[[msgspec.Raw], Message | Unread]
_message: _Decode = msgspec.json.Decoder(Message).decode
_unread: _Decode = msgspec.json.Decoder(Unread).decode
_odd = msgspec.json.Decoder(_Odd).decode
_text = msgspec.json.Decoder(str | None).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
#: No value has this type.
_Nothing = Annotated[int, msgspec.Meta(ge=1, le=0)]


#: No list has this form. One that is short enough is too short for it; otherwise nothing is read
#: beyond the first element that is not allowed, or is one too many.
def _no_more_than(most: int) -> Callable[[msgspec.Raw], Any]:
    form: Any = tuple[(*[str | Object] * most, _Nothing)]  # type: ignore[misc]
    return msgspec.json.Decoder(form).decode


_other = _no_more_than(MAX_ENTRIES)
_TOO_SHORT = "Expected `array` of length "
_BRACKET = (ord("["),)
_BLANKS, _NUMBER = b" \t\r\n", b"-0123456789"
#: Bytes of a list in which its first element begins.
_BEGINNING_BYTES = 4096
_first: Any = Struct("B").unpack_from  # a third of the cost of a memoryview


def messages(raw: msgspec.Raw, field: str | None = None) -> list[Message | Unread]:
    """Read a list of messages or items; empty if `raw` is not a list.

    Raises BadRequest, which names the `field`.
    """
    items = entries(raw)
    if items is None:
        if is_list(raw):
            raise BadRequest(
                "The request has more messages than can be read, or something else among them.",
                param=field,
            )
        return []
    decoders = (_message, _unread) if len(raw) <= MAX_ONE_PASS_BYTES else (_unread,)
    rest()
    return [_read(entry, decoders) for entry in items]


def entries(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    """Return the elements of a list; None if `raw` is not a list, or one with too many elements.

    Each element takes microseconds, which block the event loop. So there may be `MAX_ENTRIES` at
    most, and in a long list each must be an object or a text: no worker accepts others.
    """
    try:
        if len(raw) > 2 * MAX_ENTRIES:
            if not _is_short(raw, _other):
                return None
            rest()
        return _list(raw)
    except UNEXPECTED:
        return None


def _is_short(raw: msgspec.Raw, too_long: Callable[[msgspec.Raw], Any]) -> bool:
    try:
        too_long(raw)
    except msgspec.ValidationError as error:
        return str(error).startswith(_TOO_SHORT)
    return False


def is_list(raw: msgspec.Raw) -> bool:
    """Whether `raw`, which is valid JSON, is a list."""
    return len(raw) > 0 and _first(raw) == _BRACKET


_longer = lru_cache(maxsize=4)(_no_more_than)


def numerous(raw: msgspec.Raw, most: int) -> bool:
    """Whether `raw` is a list of more than `most` texts, lists or objects, not one of numbers.

    So is a long one of other things, which no worker accepts.
    """
    if len(raw) <= 2 * most or not is_list(raw):
        return False
    first = bytes(memoryview(raw)[1:_BEGINNING_BYTES]).lstrip(_BLANKS)[:1]
    if first in _NUMBER:
        return False
    if first == b"[":
        return count(bytes(raw), b"[") - 1 > most
    try:
        return not _is_short(raw, _longer(most))
    except UNEXPECTED:
        return True


def content_of(raw: msgspec.Raw) -> str | list[msgspec.Raw] | None:
    """Decode the content of a message, as `Message.content` describes it."""
    if not raw:
        return None
    if is_list(raw):
        items = entries(raw)
        return [raw] if items is None else items
    try:
        text: str | None = _text(raw)
    except UNEXPECTED:
        return [raw]
    return text


def _read(raw: msgspec.Raw, decoders: Sequence[_Decode]) -> Message | Unread:
    for decode in decoders:
        with suppress(*UNEXPECTED):
            return decode(raw)
    try:
        odd = _odd(raw)
    except UNEXPECTED:
        return Message()
    role = content_of(odd.role)
    return Unread(
        odd.output,
        odd.tool_calls,
        odd.reasoning,
        odd.reasoning_content,
        role=role if isinstance(role, str) else "",
        content=odd.content,
    )


class KeyedPart(msgspec.Struct):
    """One part. It is text if it has text and none of the other fields."""

    type: str = "text"
    text: str | None = None
    # Fields that make it something other than text, whatever its type.
    image_url: msgspec.Raw = msgspec.Raw()
    input_audio: msgspec.Raw = msgspec.Raw()
    audio_url: msgspec.Raw = msgspec.Raw()
    video_url: msgspec.Raw = msgspec.Raw()
    file: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()
    uuid: msgspec.Raw = msgspec.Raw()

    @property
    def is_text(self) -> bool:
        """Return true if it is nothing but text."""
        media = (self.image_url, self.input_audio, self.audio_url, self.video_url)
        return self.text is not None and not any((*media, self.file, self.source, self.uuid))
