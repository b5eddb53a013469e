"""The last message on a connection: most of them say the same each time, but for the length.

A head that is the same as one that was parsed and judged, byte for byte but for the digits of its
`Content-Length`, means the same; comparing costs a tenth of parsing. Only a head that came in one
piece, with no more bytes after it than it tells, is recognised: of everything else the parser
decides.
"""

import re
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})(?=\r\n)", re.IGNORECASE)
#: Longer heads are not remembered: every connection may have one.
LONGEST = 4096
#: As many as a length may have.
DIGITS: Final = 18
_0: Final = 0x30
_9: Final = 0x39


class Recall(Generic[T]):
    """Remembers one head, and what was made of it."""

    __slots__ = ("_after", "_before", "_value")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._value: T | None = None

    def keep(self, message: bytes, value: T) -> None:
        """Remember the head of `message`, which the parser found to be one, or its beginning."""
        end = message.find(b"\r\n\r\n", 0, LONGEST) + 4
        lengths = list(_LENGTH.finditer(message, 0, end - 2))
        if end >= 4 and len(lengths) == 1 and end + int(lengths[0][1]) >= len(message):
            self._before = message[: lengths[0].start(1)]
            self._after = message[lengths[0].end(1) : end]
            self._value = value

    def find(self, message: bytes) -> tuple[T, bytes, int] | None:
        """Return what was made of this head, if it is the one remembered.

        With it come what is there of the body, and how many bytes are still missing.
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
