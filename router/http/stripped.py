"""A request as a worker may see it: without a header field that is not for it, or renumbered."""

from router.http.headers import Incoming


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


class Numbered:
    """The same request with a number at the end of its id, as it is sent once more.

    vLLM before 0.14 uses the id from the client as its own key. It may not have forgotten the first
    request yet when the second one arrives, and would abort that one in its place
    (`v1/engine/output_processor.py`, `add_request`).
    """

    __slots__ = ("_request", "identity", "query")

    def __init__(self, request: Incoming, number: int) -> None:
        """`number` is how often it was sent before."""
        self.query, self.identity = request.query, b"%b-%d" % (request.identity, number)
        self._request = request

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines that are passed on to a worker."""
        return self._request.passing(keyed=keyed)
