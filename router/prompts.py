"""A request's prompt → its length and its chained block keys.

Without a tokenizer, keys are taken over the prompt's canonical bytes: the same conversation gives
the same bytes whatever the spacing of its JSON, and a longer one begins with the shorter one's.
How many bytes make a token is learned from the `usage` that workers report.
"""

from array import array
from collections.abc import Sequence
from typing import cast

import msgspec

from router.openai import Endpoint, Prompted, Request
from strategies.base import Prompt
from strategies.blocks import TEXT_BLOCK, chain, root_key

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


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


_messages = msgspec.json.Decoder(list[_Message]).decode
_text = msgspec.json.Decoder(str | list[str]).decode
_ids = msgspec.json.Decoder(list[int | list[int]]).decode


class Prompts:
    """Makes prompts, and learns how long they are. One for each pool."""

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN
        self._seen = 0

    def prompt(self, endpoint: Endpoint, request: Request) -> Prompt:
        """Turn `request` into what a strategy may know of it."""
        text, is_ids = _canonical(endpoint, request)
        per_token = ID_BYTES if is_ids else self.bytes_per_token
        salt = request.cache_salt if isinstance(request.cache_salt, str) else ""
        model = request.model or ""
        answer = 0
        if endpoint.answers:
            answer = min(request.answer_limit or ANSWER_TOKENS, LONGEST_ANSWER)
        return Prompt(
            model=model,
            tokens=int(len(text) / per_token),
            keys=chain(root_key(endpoint.prompted.name, model, salt), text),
            block_tokens=TEXT_BLOCK / per_token,
            answer_tokens=answer,
            exact=is_ids,
            stream=request.stream is True,
        )

    def learn(self, prompt: Prompt, reported_tokens: int) -> None:
        """Correct bytes a token from the length that a worker reported for `prompt`."""
        if prompt.exact or prompt.tokens < SHORTEST or reported_tokens <= 0:
            return
        self._seen += 1
        weight = max(LEARNING, 1 / self._seen)
        step = min(2.0, max(0.5, prompt.tokens / reported_tokens)) ** weight
        self.bytes_per_token = min(16.0, max(1.0, self.bytes_per_token * step))


def _canonical(endpoint: Endpoint, request: Request) -> tuple[bytes, bool]:
    """Return the prompt's bytes, and whether they are packed token ids."""
    match endpoint.prompted:
        case Prompted.CHAT:
            return bytes(request.tools) + _conversation(request.messages), False
        case Prompted.MESSAGES:
            head = bytes(request.tools) + bytes(request.system)
            return head + _conversation(request.messages), False
        case Prompted.RESPONSES:
            head = bytes(request.tools) + bytes(request.instructions)
            return head + _conversation(request.input), False
        case Prompted.COMPLETION:
            return _plain(request.prompt)
        case Prompted.INPUT:
            return _plain(request.input)
        case Prompted.NOTHING:
            return b"", False


def _conversation(raw: msgspec.Raw) -> bytes:
    """Messages as role and content, in order; anything unexpected as it was written."""
    try:
        messages = _messages(raw)
    except (ValueError, RecursionError):  # not JSON, not messages, or not UTF-8
        return bytes(raw)
    parts: list[bytes] = []
    for message in messages:
        parts.append(b"\x1e" + message.role.encode() + b"\x1f")
        if isinstance(message.content, str):
            parts.append(message.content.encode())
        elif message.content is not None:
            parts.extend(bytes(part) for part in message.content)
        parts.append(bytes(message.tool_calls))
    return b"".join(parts)


def _plain(raw: msgspec.Raw) -> tuple[bytes, bool]:
    """Text or token ids; of several prompts the first one decides."""
    try:
        text = _text(raw)
    except (ValueError, RecursionError):
        return _packed(raw)
    if isinstance(text, list):
        text = text[0] if text else ""
    return text.encode(), False


def _packed(raw: msgspec.Raw) -> tuple[bytes, bool]:
    try:
        ids = _ids(raw)
        first = ids[0] if ids and isinstance(ids[0], list) else ids
        return array("I", cast("Sequence[int]", first)).tobytes(), True
    except (ValueError, RecursionError, OverflowError, TypeError):
        return bytes(raw), False
