"""The messages of a request, and the parts of each: what is read of them, and how many at most."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any

import msgspec

from router.errors import BadRequest


class Object(msgspec.Struct, gc=False):
    """Whatever it holds."""


class Message(msgspec.Struct, gc=False):
    """What routing and the limits need of a message; of an item of `/v1/responses` too."""

    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    """Text or parts. What is neither, or more than can be looked at, is one part as it stands."""
    output: msgspec.Raw = msgspec.Raw()
    """What a tool returned, in `/v1/responses`."""
    tool_calls: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    """What it thought, and the older name of that."""


class Unread(msgspec.Struct, gc=False):
    """The same, but nobody has looked at its content."""

    role: str = ""
    content: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()


#: Bytes of JSON in which no list can have so many parts that making them takes long: a quarter of
#: a million of them 15 ms. A text is decoded where it stands, which takes half of looking for its
#: end and then decoding it.
SAFE = 512 << 10
#: Elements of a list that are looked at one by one.
MOST_ENTRIES = 16_384
#: What decoding raises.
UNEXPECTED = (msgspec.DecodeError, UnicodeError, RecursionError)

_Way = Callable[[msgspec.Raw], Message | Unread]
_message: _Way = msgspec.json.Decoder(Message).decode
_unread: _Way = msgspec.json.Decoder(Unread).decode
_text = msgspec.json.Decoder(str | None).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_shapes = msgspec.json.Decoder(list[str | Object]).decode
_BRACKET = (ord("["),)
_first: Any = Struct("B").unpack_from  # a third of what a view of it costs


def messages(raw: msgspec.Raw) -> list[Message | Unread]:
    """Read a list of messages or items; none if it is no list. Raises BadRequest."""
    found = entries(raw)
    if found is None:
        if is_list(raw):
            raise BadRequest(
                "The request has more messages than can be read, or something else among them."
            )
        return []
    ways = (_message, _unread) if len(raw) <= SAFE else (_unread,)
    return [_read(entry, ways) for entry in found]


def entries(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    """Return what a list holds; None if it is none, or if that is too much to look at each.

    Each takes microseconds, in which nobody is served. So of a long one no more than
    `MOST_ENTRIES` are looked at, and none where one is neither an object nor a text: no worker
    takes those.
    """
    try:
        if len(raw) > 2 * MOST_ENTRIES and len(_shapes(raw)) > MOST_ENTRIES:
            return None
        return _list(raw)
    except UNEXPECTED:
        return None


def is_list(raw: msgspec.Raw) -> bool:
    """Whether what stands there can be nothing else than a list."""
    return len(raw) > 0 and _first(raw) == _BRACKET


def content_of(raw: msgspec.Raw) -> str | list[msgspec.Raw] | None:
    """Look at the content of a message."""
    if not raw:
        return None
    if is_list(raw):
        found = entries(raw)
        return [raw] if found is None else found
    try:
        text: str | None = _text(raw)
    except UNEXPECTED:
        return [raw]
    return text


def _read(raw: msgspec.Raw, ways: Sequence[_Way]) -> Message | Unread:
    for way in ways:
        with suppress(*UNEXPECTED):
            return way(raw)
    return Message()
