"""A prompt's canonical bytes, used as its key when its tokens are not known.

The same conversation gives the same bytes however its JSON is spaced, and the bytes of a longer
conversation begin with those of a shorter one.

A long text in JSON, decoded in slices: one call for all of it would hold the GIL too long.
"""

import re
from array import array
from collections.abc import Sequence
from enum import Enum, auto
from operator import attrgetter
from typing import cast

import msgspec
from msgspec import Raw
from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from router.api.endpoints import CHAT, COMPLETION, INPUT, MESSAGES, NOTHING, RESPONSES, Endpoint
from router.api.messages import (
    MAX_ENTRIES,
    UNEXPECTED,
    KeyedPart,
    Message,
    Unread,
    content_of,
    entries,
    is_list,
    messages,
)
from router.api.request import SCORED, Adapted, Request
from router.runtime.threads import BYTES, ELEMENTS, count, rest

#: A place where a JSON string may be cut: not inside an escape, the longest of which is a pair of
#: surrogates of twelve characters, nor inside a character of UTF-8.
_PLACE = re.compile(rb"[^\\]{12}(?![\x80-\xbf])")
#: Bytes in which a place is looked for.
_NEAR = 4096

_text = msgspec.json.Decoder(str).decode


def encoded(raw: msgspec.Raw) -> list[bytes] | None:
    """Return a text as UTF-8, in pieces; None if `raw` is none, or is not valid as a whole."""
    given = bytes(raw)
    if given[:1] != b'"':
        return None
    pieces, start, end = list[bytes](), 1, len(given) - 1
    try:
        while start < end:
            cut = _cut(given, start + BYTES, end)
            pieces.append(_text(b'"%b"' % given[start:cut]).encode())
            start = cut
            rest()
    except UNEXPECTED:
        return None
    return pieces


def _cut(given: bytes, wanted: int, end: int) -> int:
    """Return where the piece ends that should end at `wanted`."""
    while wanted < end:
        place = _PLACE.search(given, wanted, min(wanted + _NEAR, end))
        if place is not None and place.end() < end:
            return place.end()
        wanted += BYTES
    return end


class _Kind(Enum):
    """Kinds of parts: text, words with their purpose, or something of unknown length."""

    TEXT = auto()
    WORDS = auto()
    MEDIUM = auto()


#: Types of parts that are words too, and marks of media that such a part may contain.
_WORDS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking"))
_HOLDS_MEDIA = (b'"image"', b'"document"', b"_url")

#: Fields of a request that make prompts different even if their words are the same.
_APART = (
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "output_config",
    "previous_response_id",
    "prompt_embeds",
    "reasoning",
    "reasoning_effort",
    "suffix",
    "thinking",
)

#: Bytes of a token id.
ID_BYTES = 4
#: Most ids of a prompt that are packed, and most values (counted as `_Spelling` does) that one
#: request has spelled anew. Each becomes an object, and nobody else is served meanwhile: ten
#: milliseconds at most.
MAX_IDS, MAX_SPELLED_IDS = 1 << 18, 1 << 14
#: Bytes in which commas are counted at once.
_STEP = 4096
#: Messages that are taken in one slice.
_AT_ONCE = 16
_BLANKS = b" \t\r\n"


def _marked(role: str) -> bytes:
    """Return the bytes that precede a message of that role."""
    return b"\x1e" + role.encode() + b"\x1f"


_ROLES = {role: _marked(role) for role in ("system", "developer", "user", "assistant", "tool")}
_apart = attrgetter(*_APART)
_any = msgspec.json.Decoder().decode
_sorted = msgspec.json.Encoder(order="sorted").encode
_raws = msgspec.json.Decoder(list[Raw]).decode
_part = msgspec.json.Decoder(KeyedPart).decode
_canonical_text = msgspec.json.Decoder(str | list[str]).decode
_ids = msgspec.json.Decoder(list[int | list[int]]).decode


class CanonicalText:
    """A prompt as bytes: equal prompts give equal bytes, longer ones begin with shorter ones."""

    __slots__ = ("data", "further", "parts", "plain", "tokens", "unread")

    def __init__(
        self,
        data: bytes = b"",
        tokens: int | None = None,
        parts: int = 0,
        *,
        plain: bool = True,
        further: int = 0,
        unread: int = 0,
    ) -> None:
        self.data = data
        self.further = further
        """Number of further prompts in the same request."""
        self.unread = unread
        """Bytes of those."""
        self.tokens = tokens
        """Number of tokens, if the prompt was given as token ids."""
        self.parts = parts
        """Number of images and the like, of which `data` has only hashes."""
        self.plain = plain
        """Whether all of the prompt is text in `data`, so that `usage` tells how many bytes a token
        has."""


def canonical(endpoint: Endpoint, request: Request) -> CanonicalText:
    """Return a prompt's canonical bytes."""
    text = _canonical(endpoint, request)
    if endpoint.native and isinstance(request, Adapted):
        native = request.native
        text.parts += sum(native.media.values())
        text.further += native.further
        text.unread += sum([_length(message.content) for message in native.others])
    return text


def _canonical(endpoint: Endpoint, request: Request) -> CanonicalText:
    kind = endpoint.prompted
    if kind is CHAT:
        head = bytes(request.tools)
        if _is_given(request.documents):
            head += bytes(request.documents)
        return _conversation(head, request.messages)
    if kind is MESSAGES:
        return _conversation(bytes(request.tools) + bytes(request.system), request.messages)
    if kind is RESPONSES:
        head = bytes(request.tools) + bytes(request.instructions)
        return _items(head, request.input)
    if kind is COMPLETION:
        return _plain(request.prompt)
    if kind is INPUT:
        chat = request.messages and not request.input
        return _conversation(b"", request.messages) if chat else _plain(request.input)
    return _scored(request)


def apart(endpoint: Endpoint, request: Request) -> str:
    """Return what distinguishes the prompt from others with the same words; empty for most."""
    raws = _apart(request)
    kept = endpoint.prompted is RESPONSES and request.prompt  # remembered by the engine
    native = endpoint.native and isinstance(request, Adapted)
    beside = cast("Adapted", request).native.beside if native else None
    if not kept and not beside and not any(raws):  # nearly all requests
        return ""
    given = {name: raw for name, raw in zip(_APART, raws, strict=True) if _is_given(raw)}
    if kept and _is_given(kept):
        given["prompt"] = kept
    if beside:
        given |= beside
    spelling = _Spelling()
    return "".join(
        [f"{name} {xxh3_128_hexdigest(spelling.of(raw))} " for name, raw in given.items()]
    )


def measured(endpoint: Endpoint, request: Request) -> int:
    """Return the approximate size of the prompt as written, in bytes."""
    kind = endpoint.prompted
    if kind is CHAT or kind is MESSAGES or (kind is INPUT and not request.input):
        return sum([_length(message.content) for message in request.messages])
    if kind is COMPLETION:
        return len(request.prompt)
    if kind is NOTHING:
        return sum([len(getattr(request, field)) for field in SCORED])
    return len(request.input)


def further(endpoint: Endpoint, request: Request) -> int:
    """Return about how many more prompts than one a request holds, without reading them."""
    if request.prompt and endpoint.prompted is COMPLETION and is_list(request.prompt):
        return _further(request.prompt)
    return 0


def _length(content: str | list[Raw] | Raw | None) -> int:
    if isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode())
    if isinstance(content, Raw):
        return len(content)
    return sum(map(len, content)) if content else 0


def _conversation(
    head: bytes, conversation: Sequence[Message | Unread], spelling: "_Spelling | None" = None
) -> CanonicalText:
    """Return role and content of each message, in order. A part that cannot be read is hashed."""
    spelling = spelling or _Spelling()
    pieces = [head]
    others = 0
    plain = True
    for at, message in enumerate(conversation, 1):
        role, content = message.role, message.content
        pieces.append(_ROLES.get(role) or _marked(role))
        if isinstance(content, Raw):
            content = _content(content, pieces)
        if isinstance(content, str):
            pieces.append(content.encode())
        elif content is not None:
            media, words = _parts(content, pieces, spelling)
            others += media
            plain &= not words
        if message.tool_calls:
            pieces.append(bytes(message.tool_calls))
        thought = message.reasoning or message.reasoning_content
        if thought and _is_given(thought):
            pieces += b"\x1d", bytes(thought)
            plain = False  # templates leave out much of it
        if at % _AT_ONCE == 0:
            rest()
    return CanonicalText(b"".join(pieces), parts=others, plain=plain)


def _content(raw: Raw, pieces: list[bytes]) -> str | list[Raw] | None:
    """Decode the content of a message; add a long text to `pieces` instead."""
    if len(raw) > BYTES // _AT_ONCE and (text := encoded(raw)) is not None:
        pieces += text
        return None
    return content_of(raw)


def _parts(content: list[Raw], pieces: list[bytes], spelling: "_Spelling") -> tuple[int, bool]:
    """Add the parts of a message to `pieces`; return how many are images and the like, and whether
    any is not plain text."""
    if len(content) > MAX_ENTRIES:
        pieces += map(bytes, content)
        return 0, False
    media, words = 0, False
    for start in range(0, len(content), ELEMENTS):
        for part in content[start : start + ELEMENTS]:
            piece, kind = _piece(part, spelling)
            pieces.append(piece)
            media += kind is _Kind.MEDIUM
            words |= kind is not _Kind.TEXT
        rest()
    return media, words


def _items(head: bytes, raw: Raw) -> CanonicalText:
    """Return the input of `/v1/responses`: items, or one text.

    Items that are not messages (tool calls, their results, reasoning) are included whole.
    """
    items = messages(raw)
    if not items:
        return CanonicalText(head + bytes(raw), plain=False)
    spelling = _Spelling()
    texts = [
        _conversation(b"", [item], spelling)
        if item.role
        else CanonicalText(b"\x1e\x1f" + spelling.of(whole), plain=False)
        for item, whole in zip(items, _raws(raw), strict=True)
    ]
    data = head + b"".join([text.data for text in texts])
    plain = all(text.plain for text in texts)
    return CanonicalText(data, parts=sum(text.parts for text in texts), plain=plain)


def _is_text(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b'"'


def _is_given(raw: Raw) -> bool:
    return bool(raw) and bytes(memoryview(raw)[:4]) != b"null"


class _Spelling:
    """Spells the JSON values of one request canonically, until there were `MAX_SPELLED_IDS`.

    The rest is kept as it was written. As values come in the order of the prompt, a longer
    conversation still begins like a shorter one.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_SPELLED_IDS

    def of(self, raw: Raw) -> bytes:
        """Return a JSON value in canonical form, however it was written; marks in texts count."""
        given = bytes(raw)
        self._left -= given.count(b"{") + given.count(b"[") + given.count(b",")
        if self._left < 0:
            return given
        try:
            return _sorted(_any(raw))
        except (*UNEXPECTED, ValueError, TypeError):
            return given


def _piece(raw: Raw, spelling: _Spelling) -> tuple[bytes, _Kind]:
    """Return the bytes that represent a part of a message, and its kind."""
    try:
        part = _part(raw)
    except UNEXPECTED:
        return xxh3_128_digest(raw), _Kind.MEDIUM
    if part.is_text and part.type not in _WORDS:
        return (part.text or "").encode(), _Kind.TEXT
    if len(raw) > BYTES:
        rest()
    if part.type in _WORDS and not any(mark in bytes(raw) for mark in _HOLDS_MEDIA):
        return spelling.of(raw), _Kind.WORDS
    return xxh3_128_digest(raw), _Kind.MEDIUM


def _plain(raw: Raw) -> CanonicalText:
    """Return a text or token ids; of several prompts only the first has data."""
    if len(raw) > BYTES:
        return _long(raw)
    try:
        text = _canonical_text(raw)
    except UNEXPECTED:
        return _packed(raw)
    if isinstance(text, list):
        first, unread = (text[0].encode() if text else b""), sum(map(_length, text[1:]))
        others = max(0, len(text) - 1)
        return CanonicalText(first, plain=len(text) == 1, further=others, unread=unread)
    return CanonicalText(text.encode())


def _long(raw: Raw) -> CanonicalText:
    """Return the same of what is too long to be decoded in one call."""
    if (text := encoded(raw)) is not None:
        return CanonicalText(b"".join(text))
    texts = entries(raw)
    rest()
    if texts is None:
        are_texts = bytes(memoryview(raw)[1:_STEP]).lstrip(_BLANKS)[:1] == b'"'
        return _many(raw) if are_texts else _packed(raw)
    if not all(map(_is_text, texts)):
        return _packed(raw)
    first = encoded(texts[0]) if texts else []
    if first is None:
        return CanonicalText(bytes(raw), plain=False)
    unread = sum(map(len, texts)) - len(texts[0]) if texts else 0
    others = max(0, len(texts) - 1)
    return CanonicalText(b"".join(first), plain=not others, further=others, unread=unread)


def _scored(request: Request) -> CanonicalText:
    """Return the size of what is to be scored, each text by itself. Nothing of it has keys."""
    size, others = 0, 0
    for field in SCORED:
        if raw := getattr(request, field):
            size += len(raw)
            others += 1 + _further(raw)
    return CanonicalText(plain=False, further=others, unread=size)


def _further(raw: Raw) -> int:
    """Return how many elements, about, a list has beside its first one."""
    if not is_list(raw):
        return 0
    given = bytes(raw)
    if _nested(given):
        return count(given, b"[") - 2
    return max(0, (count(given, b'"') - given.count(b'\\"')) // 2 - 1)


def _nested(given: bytes) -> bool:
    """Return true if the first element of a list is a list."""
    return given[1:_STEP].lstrip(_BLANKS)[:1] == b"["


def _many(raw: Raw) -> CanonicalText:
    """Return the size of more prompts than may be looked at one by one, about as many as there are.

    They have no data: the first of so many hardly matters.
    """
    others = max(1, _further(raw))
    if _nested(given := bytes(raw)):
        return CanonicalText(tokens=0, further=others, unread=ID_BYTES * (count(given, b",") + 1))
    return CanonicalText(plain=False, further=others, unread=len(raw))


def _packed(raw: Raw) -> CanonicalText:
    """Return token ids; what comes after `MAX_IDS` of them is kept as it was written."""
    given = bytes(raw)
    nested, commas = count(given, b"[") - 1, count(given, b",")
    if nested > MAX_ENTRIES or (nested > 0 and commas >= MAX_IDS):
        return _many(raw)
    read, others, more = given, memoryview(b""), 0
    if commas >= MAX_IDS:
        end = _end(given, MAX_IDS)
        read, others, more = given[:end] + b"]", memoryview(given)[end:], commas + 1 - MAX_IDS
    try:
        ids = _ids(read)
        rest()
        if not (ids and isinstance(ids[0], list)):
            data = array("I", cast("list[int]", ids))
            return CanonicalText(b"".join((data, others)), tokens=len(ids) + more)
        first, *lists = cast("list[list[int]]", ids)
        packed = array("I", first)
        unread = packed.itemsize * sum(map(len, lists))
        return CanonicalText(packed.tobytes(), tokens=len(first), further=len(lists), unread=unread)
    except (*UNEXPECTED, OverflowError, TypeError, ValueError):
        return CanonicalText(given, plain=False)


def _end(given: bytes, commas: int) -> int:
    """Return where the last of so many commas is; there must be as many."""
    at, left = 0, commas
    while (some := given.count(b",", at, at + _STEP)) < left:
        left -= some
        at += _STEP
    for _ in range(left):
        at = given.index(b",", at) + 1
    return at - 1
