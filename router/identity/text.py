"""A prompt's canonical bytes, where its tokens are not known.

The same conversation gives the same bytes whatever the spacing of its JSON, and a longer one begins
with the shorter one's.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec
from xxhash import xxh3_128_digest

from router.openai import UNEXPECTED, Endpoint, Message, Prompted, Request, messages


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None


_content = msgspec.json.Decoder(str | list[msgspec.Raw] | None).decode
_part = msgspec.json.Decoder(_Part).decode
_text = msgspec.json.Decoder(str | list[str]).decode
_ids = msgspec.json.Decoder(list[int | list[int]]).decode


class Text(NamedTuple):
    """A prompt as bytes: equal prompts give equal bytes, longer ones begin with shorter ones."""

    data: bytes = b""
    tokens: int | None = None
    """Counted, where it was given as token ids."""
    parts: int = 0
    """Images and the like; in `data` they are only hashes."""
    plain: bool = True
    """All of it is text in `data`, so `usage` tells how many bytes make a token."""


def canonical(endpoint: Endpoint, request: Request) -> Text:
    """Return what makes the prompt what it is."""
    match endpoint.prompted:
        case Prompted.CHAT:
            return _conversation(bytes(request.tools), request.messages)
        case Prompted.MESSAGES:
            return _conversation(bytes(request.tools) + bytes(request.system), request.messages)
        case Prompted.RESPONSES:
            head = bytes(request.tools) + bytes(request.instructions)
            return _items(head, request.input)
        case Prompted.COMPLETION:
            return _plain(request.prompt)
        case Prompted.INPUT:
            return _plain(request.input)
        case Prompted.NOTHING:
            return Text(plain=False)


def measured(endpoint: Endpoint, request: Request) -> int:
    """Return how many bytes the prompt has as it was written, or nearly so."""
    match endpoint.prompted:
        case Prompted.CHAT | Prompted.MESSAGES:
            return sum([len(message.content) for message in request.messages])
        case Prompted.COMPLETION:
            return len(request.prompt)
        case Prompted.INPUT | Prompted.RESPONSES:
            return len(request.input)
        case Prompted.NOTHING:
            return 0


def _conversation(head: bytes, found: Sequence[Message]) -> Text:
    """Role and content of each message, in order; anything unexpected as it was written."""
    pieces = [head]
    others = 0
    for message in found:
        pieces.append(b"\x1e" + message.role.encode() + b"\x1f")
        content = _read(message.content)
        if isinstance(content, list):
            for part in content:
                text = _text_of(part)
                others += text is None
                pieces.append(xxh3_128_digest(part) if text is None else text)
        else:
            pieces.append(content)
        pieces.append(bytes(message.tool_calls))
    return Text(b"".join(pieces), parts=others, plain=not others)


def _items(head: bytes, raw: msgspec.Raw) -> Text:
    """The input of `/v1/responses`: items, or one text."""
    items = messages(raw)
    return _conversation(head, items) if items else Text(head + bytes(raw), plain=False)


def _read(raw: msgspec.Raw) -> bytes | list[msgspec.Raw]:
    """Return the text of a message, or its parts."""
    try:
        content = _content(raw) if raw else None
    except UNEXPECTED:
        return bytes(raw)
    return content if isinstance(content, list) else (content or "").encode()


def _text_of(raw: msgspec.Raw) -> bytes | None:
    """Return the text of a part of a message; None if it is of another kind."""
    try:
        part = _part(raw)
    except UNEXPECTED:
        return None
    return None if part.text is None else part.text.encode()


def _plain(raw: msgspec.Raw) -> Text:
    """Text or token ids; of several prompts the first one decides."""
    try:
        text = _text(raw)
    except UNEXPECTED:
        return _packed(raw)
    if isinstance(text, list):
        return Text(text[0].encode() if text else b"", plain=len(text) == 1)
    return Text(text.encode())


def _packed(raw: msgspec.Raw) -> Text:
    try:
        ids = _ids(raw)
        first = cast("list[int]", ids[0] if ids and isinstance(ids[0], list) else ids)
        return Text(array("I", first).tobytes(), tokens=len(first))
    except (*UNEXPECTED, OverflowError, TypeError, ValueError):
        return Text(bytes(raw), plain=False)
