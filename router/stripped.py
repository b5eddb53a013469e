"""A request as a worker may see it, without what is between its client and the router."""

from router.headers import Incoming


class Stripped:
    """The same request without one header field."""

    __slots__ = ("_line", "_request", "identity", "query")

    def __init__(self, request: Incoming, line: bytes) -> None:
        """`line` is how the field begins: a line end, its name in lower case, and a colon."""
        self.query, self.identity = request.query, request.identity
        self._request = request
        self._line = line

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines that pass on to a worker."""
        lines = b"\n" + self._request.passing(keyed=keyed)
        while (start := lines.find(self._line)) >= 0:
            lines = lines[:start] + lines[lines.index(b"\n", start + 1) :]
        return lines[1:]
