"""The head of a worker's answer, and what of it passes on to the client."""

from router.errors import Headers
from router.headers import answer_fields, header


class Head:
    """Status and headers of an answer, names in lower case. Never changed; workers repeat it."""

    __slots__ = ("_fields", "dated", "headers", "length", "status", "stream")

    def __init__(self, status: int, headers: Headers, length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.length = length
        """Bytes of the body, if it was told; of another answer, if it is told again."""
        kind, coding = header(headers, b"content-type"), header(headers, b"content-encoding")
        plain = coding.lower() in {b"", b"identity"}
        self.stream = plain and kind.lower().startswith(b"text/event-stream")
        """It is a stream of events, and they can be told apart."""
        self.dated = bool(header(headers, b"date"))
        self._fields: bytes | None = None

    def fields(self) -> bytes:
        """Return the header lines that pass on to the client; made once for all answers alike."""
        if self._fields is None:
            self._fields = answer_fields(self.headers)
        return self._fields
