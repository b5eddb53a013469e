"""The head of a worker's answer, and the part of it that passes on to the client."""

from router.api.errors import Headers
from router.http.headers import answer_fields, header


class Head:
    """Status and headers of an answer, names in lower case.

    Immutable, because it is reused for answers with an equal head.
    """

    __slots__ = ("_fields", "dated", "headers", "length", "redirects", "status", "stream")

    def __init__(self, status: int, headers: Headers, length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.redirects = 300 <= status < 400 and status != 304
        """It sends the client elsewhere (RFC 9110 section 15.4), which would lead around us."""
        self.length = length
        """`Content-Length`, if given. A reused head keeps that of the answer it was parsed from."""
        kind, coding = header(headers, b"content-type"), header(headers, b"content-encoding")
        plain = coding.lower() in {b"", b"identity"}
        self.stream = plain and kind.lower().startswith(b"text/event-stream")
        """It is a stream of server-sent events without compression, so events can be read."""
        self.dated = bool(header(headers, b"date"))
        self._fields: bytes | None = None

    def fields(self) -> bytes:
        """Return the header lines for the client; built once for all answers with this head."""
        if self._fields is None:
            self._fields = answer_fields(self.headers)
        return self._fields
