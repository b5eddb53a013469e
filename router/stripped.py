"""A request for a worker, without a header field that is only for the router."""

from router.headers import Incoming


class Stripped:
    """The same request without one header field."""

    __slots__ = ("_line", "_request", "identity", "query")

    def __init__(self, request: Incoming, line: bytes) -> None:
        """`line` is the start of the field: a line end, its name in lower case, and a colon."""
        self.query, self.identity = request.query, request.identity
        self._request = request
        self._line = line

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines that are passed on to a worker."""
        lines = b"\n" + self._request.passing(keyed=keyed)
        while (start := lines.find(self._line)) >= 0:
            lines = lines[:start] + lines[lines.index(b"\n", start + 1) :]
        return lines[1:]
