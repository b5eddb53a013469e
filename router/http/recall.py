"""Remembers the last head on a connection: most are the same each time, apart from the length.

A head that equals one already parsed and checked, byte for byte except for the digits of its
`Content-Length`, means the same, and comparing costs a tenth of parsing. A head is recognised only
if it arrives in one piece and no more bytes follow than it declares; anything else is parsed.
"""

import re
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})(?=\r\n)", re.IGNORECASE)
#: Longer heads are not remembered, because every connection may keep one.
LONGEST = 4096
#: Most digits of a length.
DIGITS: Final = 18
_0: Final = 0x30
_9: Final = 0x39


class Recall(Generic[T]):
    """Remembers one head, and the value that was made from it."""

    __slots__ = ("_after", "_before", "_value")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._value: T | None = None

    def keep(self, message: bytes, value: T) -> None:
        """Remember the head at the start of `message`, which the parser accepted as one message.

        `message` may lack the end of its body.
        """
        end = message.find(b"\r\n\r\n", 0, LONGEST) + 4
        lengths = list(_LENGTH.finditer(message, 0, end - 2))
        if end >= 4 and len(lengths) == 1 and end + int(lengths[0][1]) >= len(message):
            self._before = message[: lengths[0].start(1)]
            self._after = message[lengths[0].end(1) : end]
            self._value = value

    def find(self, message: bytes) -> tuple[T, bytes, int] | None:
        """If `message` begins with the remembered head, return its value; else None.

        Along with it, return the part of the body that has arrived, and how many bytes are missing.
        """
        value, after = self._value, self._after
        if value is None or not message.startswith(self._before):
            return None
        end = len(self._before)
        most = min(len(message), end + DIGITS)
        length = 0
        while end < most and _0 <= message[end] <= _9:
            length = 10 * length + message[end] - _0
            end += 1
        start = end + len(after)
        if message[end:start] != after or end == len(self._before):
            return None
        missing = length - len(message) + start
        if missing < 0:
            return None
        return value, message[start:], missing
