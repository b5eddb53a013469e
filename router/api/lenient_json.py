"""JSON as Python's `json` reads it, and with it every engine, where msgspec refuses it.

`json.loads` also takes UTF-16, UTF-32, a byte order mark, unpaired surrogates, NaN and Infinity
(CPython `Lib/json/__init__.py`, `detect_encoding`, and `Lib/json/decoder.py`). The worker gets such
a body as it came. What is read here is a rewritten copy, in which every value stands in its place.

Values as pydantic reads them for vLLM, which is not strict: `"7"` is a number, `"on"` is true.

(pydantic-core, `input/shared.rs`; the conversion table in pydantic's documentation.)
"""

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from itertools import chain
from json import detect_encoding
from typing import Final, NamedTuple

from router.runtime.threads import rest, sliced

#: Bodies up to this size are rewritten on the event loop.
_MAX_INLINE_BYTES: Final = 32 << 10
#: Most values of one body that are rewritten: each takes a microsecond.
MAX_REWRITTEN_VALUES: Final = 1 << 16
#: Bytes that are looked through at once.
_PIECE_BYTES: Final = 1 << 20
_BOM: Final = b"\xef\xbb\xbf"
_BACKSLASH: Final = ord("\\")

#: An escaped pair of surrogates, or an unpaired one, with the digit (group 1) that tells it. A
#: private character stands for each (U+E000 to U+E7FF), so that they differ here too.
_ESCAPED = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|([89a-fA-F])[0-9a-fA-F]{2})"
)
_MAX_ESCAPED_BYTES: Final = 12
#: An unpaired one in UTF-8.
SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
#: What stands for a constant: an object of the same length, which no field that is read here takes.
_CONSTANTS = {b"NaN": b"{ }", b"Infinity": b"{      }", b"-Infinity": b"{       }"}
_CONSTANT = re.compile(rb"NaN|-?Infinity")
#: A byte after which no escaped character and no constant goes on. Outside of texts there is one
#: after so many others.
_BREAK = re.compile(rb"[^\\A-Za-z-]")
_MAX_WORD_BYTES: Final = 16


class Rewritten(NamedTuple):
    """A body that a strict reader may refuse."""

    body: bytes
    """For the worker: as it came, but in UTF-8."""
    seen: bytes
    """For readers here, of the same length."""


async def rewritten(body: bytes) -> Rewritten:
    """Return a body with what stands for those of its values that strict readers refuse.

    What is no JSON to Python either stays none. Raises ValueError if it is no text either, or has
    more than `MAX_REWRITTEN_VALUES` such values.
    """
    if len(body) <= _MAX_INLINE_BYTES:
        return rewrite(body)
    return await asyncio.to_thread(sliced, partial(rewrite, body))


def rewrite(body: bytes) -> Rewritten:
    """Do what `rewritten` does, at once."""
    encoding = detect_encoding(body)
    if not encoding.startswith("utf-8"):
        body = body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    seen = bytearray(body)
    if body.startswith(_BOM):
        seen[: len(_BOM)] = b" " * len(_BOM)
    for count, (at, stand_in) in enumerate(chain(_unpaired(body), _constants(body))):
        if count == MAX_REWRITTEN_VALUES:
            raise ValueError(
                f"it has more than {MAX_REWRITTEN_VALUES} unpaired surrogates, NaN and Infinity"
            )
        seen[at : at + len(stand_in)] = stand_in
    return Rewritten(body, bytes(seen))


def _unpaired(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Find unpaired surrogates: where what is to be put."""
    at = 0
    for end in range(_PIECE_BYTES, len(body) + _PIECE_BYTES, _PIECE_BYTES):
        for single in SURROGATE.finditer(body, end - _PIECE_BYTES, end + 1):
            yield single.start(), bytes((0xEE, single[0][1] - 0x20))
        while (
            match := _ESCAPED.search(body, at, end + _MAX_ESCAPED_BYTES)
        ) and match.start() < end:
            start, at = match.start(), match.end()
            if _is_escaped(body, start):
                at = start + 2
            elif match[1]:
                yield start + 2, b"e%d" % (int(match[1], 16) - 8)
        at = max(at, end)
        rest()


def _is_escaped(body: bytes, at: int) -> bool:
    """Whether the backslash there is itself escaped: an odd number of others is before it."""
    first = at
    while first and body[first - 1] == _BACKSLASH:
        first -= 1
    return (at - first) % 2 == 1


def _constants(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Find constants outside of texts: where what is to be put."""
    if not _holds(body, b"NaN") and not _holds(body, b"Infinity"):
        return
    quotes = 0
    for start, end in _pieces(body):
        # Of the quotation marks, only those that begin or end a text are left.
        piece = body[start:end].replace(rb"\\", b"__").replace(rb"\"", b"__")
        at = 0
        for match in _CONSTANT.finditer(piece):
            quotes += piece.count(b'"', at, match.start())
            at = match.start()
            if quotes % 2 == 0:
                yield start + at, _CONSTANTS[match[0]]
        quotes += piece.count(b'"', at)
        rest()


def _holds(body: bytes, word: bytes) -> bool:
    for start in range(0, len(body), _PIECE_BYTES):
        if body.find(word, start, start + _PIECE_BYTES + len(word)) >= 0:
            return True
        rest()
    return False


def _pieces(body: bytes) -> Iterator[tuple[int, int]]:
    """Cut a body where neither an escaped character nor a constant is cut."""
    start = 0
    while start < len(body):
        end = start + _PIECE_BYTES
        if end + _MAX_WORD_BYTES >= len(body):
            end = len(body)
        elif match := _BREAK.search(body, end, end + _MAX_WORD_BYTES):
            end = match.end()
        else:  # within a text: between escapes
            end += (_PIECE_BYTES - len(body[start:end].rstrip(b"\\"))) % 2
        yield start, end
        start = end


_TRUE: Final = frozenset(("1", "on", "t", "true", "y", "yes"))
#: The space around a number is Unicode's: Python's has four separators more.
_SPACE = r"[^\S\x1c-\x1f]*"
#: Between leading zeros and the digits there may be any underscores, elsewhere single ones.
_WHOLE = re.compile(_SPACE + r"[+-]?(?:0[0_]*)?[0-9]+(?:_[0-9]+)*(?:\.0+)?" + _SPACE)
#: Most characters of a number that are read.
_MAX_NUMBER_DIGITS: Final = 64


def true(value: object) -> bool:
    """Whether a field is true; what is no truth value is not."""
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, int | float) and value == 1


def whole(value: object) -> int | None:
    """Return a field's whole number; None if it is none."""
    if isinstance(value, str):
        if len(value) > _MAX_NUMBER_DIGITS or not _WHOLE.fullmatch(value):
            return None
        return int(value.partition(".")[0].replace("_", ""))
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None
