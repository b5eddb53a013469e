"""A request's prompt → its length and its chained block keys.

Without a tokenizer, keys are taken over the prompt's canonical bytes: the same conversation gives
the same bytes whatever the spacing of its JSON, and a longer one begins with the shorter one's.
How many bytes make a token is learned from the `usage` that workers report.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec
from xxhash import xxh3_128_digest

from router.openai import UNEXPECTED, Endpoint, Message, Prompted, Request, messages
from strategies.base import Prompt
from strategies.blocks import TEXT_ENDS, chain, root_key

#: Bytes a token until usage was seen; English text with a large vocabulary.
BYTES_PER_TOKEN = 4.0
#: Weight of one answer's usage in what is learned, once there were many.
LEARNING = 0.05
#: Prompts of fewer tokens teach nothing: their chat template would weigh too much.
SHORTEST = 64
#: Tokens of an answer that the client did not limit.
ANSWER_TOKENS = 512
#: A client's limit is an upper bound, seldom reached: no more than this is expected.
LONGEST_ANSWER = 2048
#: Bytes a token id takes in its canonical form.
ID_BYTES = 4


#: Tokens of a part that is not text, an image say; it may be anything from 64 to some thousands.
PART_TOKENS = 768


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None


_content = msgspec.json.Decoder(str | list[msgspec.Raw] | None).decode
_part = msgspec.json.Decoder(_Part).decode
_text = msgspec.json.Decoder(str | list[str]).decode
_ids = msgspec.json.Decoder(list[int | list[int]]).decode


class _Canonical(NamedTuple):
    """A prompt as bytes: equal prompts give equal bytes, longer ones begin with shorter ones."""

    data: bytes = b""
    unread: int = 0
    """Bytes that nobody looks at; they only count."""
    tokens: int | None = None
    """Counted, where it was given as token ids."""
    parts: int = 0
    """Images and the like; in `data` they are only hashes."""
    plain: bool = True
    """All of it is text in `data`, so `usage` tells how many bytes make a token."""


class Prompts:
    """Makes prompts, and learns how long they are. One for each pool.

    Without `keyed` nobody looks at keys, and prompts are only measured.
    """

    def __init__(self, *, keyed: bool = True) -> None:
        self._keyed = keyed
        self.bytes_per_token = BYTES_PER_TOKEN
        self._seen = 0

    def prompt(self, endpoint: Endpoint, request: Request) -> Prompt:
        """Turn `request` into what a strategy may know of it."""
        prompt = _canonical(endpoint, request) if self._keyed else _measured(endpoint, request)
        per_token = self.bytes_per_token if prompt.tokens is None else ID_BYTES
        model = request.model or ""
        keys: list[int] = []
        if self._keyed:
            salt = request.cache_salt if isinstance(request.cache_salt, str) else ""
            keys = chain(root_key(endpoint.prompted.name, model, salt), prompt.data)
        answer = 0
        if endpoint.answers:
            answer = min(request.answer_limit or ANSWER_TOKENS, LONGEST_ANSWER)
        return Prompt(
            model=model,
            tokens=int((len(prompt.data) + prompt.unread) / per_token) + PART_TOKENS * prompt.parts,
            keys=keys,
            ends=TEXT_ENDS,
            unit_tokens=1.0 / per_token,
            answer_tokens=answer,
            estimated=prompt.plain and prompt.tokens is None,
            stream=request.stream is True,
        )

    def learn(self, prompt: Prompt, reported_tokens: int) -> None:
        """Correct bytes a token from the length that a worker reported for `prompt`."""
        if not prompt.estimated or prompt.tokens < SHORTEST or reported_tokens <= 0:
            return
        self._seen += 1
        weight = max(LEARNING, 1 / self._seen)
        step = min(2.0, max(0.5, prompt.tokens / reported_tokens)) ** weight
        self.bytes_per_token = min(16.0, max(1.0, self.bytes_per_token * step))


def _canonical(endpoint: Endpoint, request: Request) -> _Canonical:
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
            return _Canonical(plain=False)


def _measured(endpoint: Endpoint, request: Request) -> _Canonical:
    """The prompt as it was written: as long as its text, or nearly so."""
    match endpoint.prompted:
        case Prompted.CHAT | Prompted.MESSAGES:
            return _Canonical(unread=sum([len(message.content) for message in request.messages]))
        case Prompted.COMPLETION:
            return _Canonical(unread=len(request.prompt))
        case Prompted.INPUT | Prompted.RESPONSES:
            return _Canonical(unread=len(request.input))
        case Prompted.NOTHING:
            return _Canonical(plain=False)


def _conversation(head: bytes, found: Sequence[Message]) -> _Canonical:
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
    return _Canonical(b"".join(pieces), parts=others, plain=not others)


def _items(head: bytes, raw: msgspec.Raw) -> _Canonical:
    """The input of `/v1/responses`: items, or one text."""
    items = messages(raw)
    return _conversation(head, items) if items else _Canonical(head + bytes(raw), plain=False)


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


def _plain(raw: msgspec.Raw) -> _Canonical:
    """Text or token ids; of several prompts the first one decides."""
    try:
        text = _text(raw)
    except UNEXPECTED:
        return _packed(raw)
    if isinstance(text, list):
        return _Canonical(text[0].encode() if text else b"", plain=len(text) == 1)
    return _Canonical(text.encode())


def _packed(raw: msgspec.Raw) -> _Canonical:
    try:
        ids = _ids(raw)
        first = cast("list[int]", ids[0] if ids and isinstance(ids[0], list) else ids)
        return _Canonical(array("I", first).tobytes(), tokens=len(first))
    except (*UNEXPECTED, OverflowError, TypeError, ValueError):
        return _Canonical(bytes(raw), plain=False)
