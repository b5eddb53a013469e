"""CORS: which web pages may read answers (fetch.spec.whatwg.org). Pure.

Keys travel in header fields, never in cookies, so no page ever gets a visitor's credentials.
"""

import re
from collections.abc import Collection

from router.api.errors import Headers
from router.http.headers import header

#: Seconds for which a browser may cache a preflight; the lowest cap among browsers.
MAX_AGE_S = 600
#: Header fields of an answer that a page may read, besides those it always may.
_EXPOSED = (
    b"x-request-id, x-warmroute-worker, x-warmroute-decision, x-warmroute-reason, x-warmroute-cost,"
    b" x-warmroute-preempted, retry-after, x-warmroute-session, x-amzn-sagemaker-new-session-id,"
    b" x-amzn-sagemaker-closed-session-id"
)
#: A list of field names (RFC 9110 section 5.6.2) that is safe to send back.
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")


class Cors:
    """Makes CORS header fields for the pages of some origins, or of all."""

    def __init__(self, origins: Collection[str]) -> None:
        self._all = "*" in origins
        self._allowed = {origin.encode(): _answer(origin) for origin in origins}

    def lets(self, origin: bytes) -> bool:
        """Whether pages of this origin are allowed."""
        return self._all or origin in self._allowed

    def answer(self, headers: Headers) -> bytes:
        """Return the header lines for an answer that is not to a preflight; errors included."""
        if self._all:
            return self._allowed[b"*"]
        # `Vary`, so that no cache serves one origin's answer to another (RFC 9110 section 12.5.5).
        return self._allowed.get(header(headers, b"origin"), b"vary: origin\r\n")

    def preflight(self, headers: Headers, method: str) -> bytes | None:
        """Return the header lines that permit a request by `method`.

        None if the request is not a preflight, or its origin is not allowed.
        """
        origin = header(headers, b"origin")
        if not origin or not header(headers, b"access-control-request-method"):
            return None
        if self._all:
            origin = b"*"
        elif origin not in self._allowed:
            return None
        lines = [
            b"access-control-allow-origin: %b\r\n" % origin,
            b"access-control-allow-methods: %b\r\n" % method.encode(),
            b"access-control-max-age: %d\r\n" % MAX_AGE_S,
            b"vary: origin\r\n",
        ]
        wanted = header(headers, b"access-control-request-headers")
        if _NAMES.fullmatch(wanted):  # repeated, as `*` would not include Authorization
            lines.append(b"access-control-allow-headers: %b\r\n" % wanted)
        return b"".join(lines)


def _answer(origin: str) -> bytes:
    vary = b"" if origin == "*" else b"vary: origin\r\n"
    return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\n%b" % (
        origin.encode(),
        _EXPOSED,
        vary,
    )
