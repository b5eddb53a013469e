"""The simulator's own tokenizer and chat template: reversible, without a vocabulary, and fast.

Text is split into segments, and each segment into pieces of four UTF-8 bytes; a piece's id is those
bytes as a little-endian 32-bit number. A shorter last piece is padded with 0xff, which UTF-8 never
contains. Segments begin after every special token, and after the header line (the role) that
follows `<|im_start|>`. So a message's content is tokenized the same way wherever it stands in a
conversation, and an answer sent back in the next turn has the ids it was generated with.

Ids need 32 bits, unsigned. Tokenizing 50 kB takes about 0.05 ms.

The chat template is ChatML, with tools before all messages:

<|im_start|>{role}\\n{content}<|im_end|>\\n       a message
<|im_start|>assistant\\n                         the generation prompt
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

Message = dict[str, Any]

IM_START = b"<|im_start|>"
IM_END = b"<|im_end|>"

# 0xfe does not occur in UTF-8 either, so no piece of text has these ids.
IM_START_ID = 0xFFFF_FE01
IM_END_ID = 0xFFFF_FE02
_SPECIAL_IDS = {IM_START_ID: IM_START, IM_END_ID: IM_END}

#: The array type of token ids: four bytes, unsigned, on every platform CPython supports.
TYPECODE = "I"


def tokenize(text: str | bytes) -> array[int]:
    """Return token ids of a text in which special tokens may occur."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    tokens = array(TYPECODE)
    mark = data.find(b"<|im_")
    start = 0
    while mark >= 0:
        if data.startswith(IM_START, mark):
            special, width = IM_START_ID, len(IM_START)
        elif data.startswith(IM_END, mark):
            special, width = IM_END_ID, len(IM_END)
        else:
            mark = data.find(b"<|im_", mark + 1)
            continue
        _cut(data, start, mark, tokens)
        tokens.append(special)
        start = mark + width
        mark = data.find(b"<|im_", start)
        if special == IM_START_ID:
            header_end = data.find(b"\n", start, mark if mark >= 0 else len(data)) + 1
            if header_end:
                _cut(data, start, header_end, tokens)
                start = header_end
    _cut(data, start, len(data), tokens)
    return tokens


def detokenize(tokens: Iterable[int]) -> str:
    """Return the text of token ids; ids that are not valid text become replacement characters."""
    parts: list[bytes] = []
    for token in tokens:
        special = _SPECIAL_IDS.get(token)
        parts.append(special or (token & 0xFFFF_FFFF).to_bytes(4, "little").rstrip(b"\xff"))
    return b"".join(parts).decode("utf-8", "replace")


def _cut(data: bytes, start: int, stop: int, tokens: array[int]) -> None:
    """Append the ids of one segment, `data[start:stop]`."""
    if start >= stop:
        return
    filler = -(stop - start) % 4
    pieces = array(TYPECODE)
    pieces.frombytes(data[start:stop] + b"\xff" * filler)
    if sys.byteorder == "big":
        pieces.byteswap()
    tokens.extend(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatParams:
    """The parts of a chat request that determine its prompt."""

    messages: Sequence[Message]
    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    #: Whether the tokenizer adds BOS and the like to the rendered text.
    add_special_tokens: bool = False
    #: Additional template variables.
    keywords: Mapping[str, Any] = field(default_factory=dict)


def render(chat: ChatParams) -> str:
    """Return the prompt text of a conversation in ChatML."""
    blocks: list[str] = []
    if chat.tools:
        blocks.append(f"<|im_start|>tools\n{_json(chat.tools)}<|im_end|>\n")
    for message in chat.messages:
        text = "".join(texts_of(message.get("content")))
        if calls := message.get("tool_calls"):
            text += _json(calls)
        blocks.append(f"<|im_start|>{message.get('role', 'user')}\n{text}<|im_end|>\n")
    if chat.continue_final_message and blocks:
        blocks[-1] = blocks[-1].removesuffix("<|im_end|>\n")
    elif chat.add_generation_prompt:
        blocks.append("<|im_start|>assistant\n")
    return "".join(blocks)


def texts_of(content: object) -> list[str]:
    """Return the texts of a message's content; a part that is not text becomes its JSON."""
    if content is None:
        return []
    return [_text(part) for part in (content if isinstance(content, list) else [content])]


def _text(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else _json(part)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
