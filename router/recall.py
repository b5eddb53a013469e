"""The last head on a connection: most clients say the same each time, but for the length.

Comparing two lists of header fields costs a tenth of judging one and writing it for a worker.
"""

from router.errors import Headers
from router.guard import Head, body_length

_LENGTH = b"content-length"


class Recall:
    """Remembers one head; what is equal to it byte for byte was judged already."""

    __slots__ = ("_after", "_at", "_before", "_count", "_head", "_line")

    def __init__(self) -> None:
        self._count = 0

    def keep(
        self, method: bytes, version: str, target: bytes, headers: Headers, head: Head
    ) -> None:
        """Remember this head, if it has one length and nothing of its own."""
        names = [name for name, _ in headers]
        self._count = 0
        if _LENGTH in names and not head.identity:
            self._at = at = names.index(_LENGTH)
            self._before, self._after = headers[:at], headers[at + 1 :]
            self._line = (method, version, target)
            self._head = head
            self._count = len(headers)

    def find(
        self, method: bytes, version: str, target: bytes, headers: Headers
    ) -> tuple[Head, int] | None:
        """Return the head that these are equal to, and the length they tell; or None."""
        if len(headers) != self._count or not headers:
            return None
        at = self._at
        name, length = headers[at]
        if (
            name != _LENGTH
            or (method, version, target) != self._line
            or headers[:at] != self._before
            or headers[at + 1 :] != self._after
        ):
            return None
        return self._head, body_length(length)
