"""Checks the head of a request before anything else is done with it. Pure.

llhttp has parsed it and refused what is not HTTP/1.1. These rules are about meaning: a request
that two parsers could read differently is refused, never repaired.
"""

import re
import string
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address

from router.api.errors import BadRequest, ExpectationFailed, Headers, Unimplemented, WrongMethod
from router.http.content_coding import listed
from router.http.headers import passing_fields

#: RFC 3986 section 3.2.2, but without user information, commas and escapes, which no host needs.
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|[A-Za-z0-9._~-]{1,255})(?::([0-9]{0,5}))?")
_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?#]*)(.*)")
#: Characters of path and query (RFC 3986 sections 3.3 and 3.4); no fragment, no spaces.
_ORIGIN = re.compile(rb"/[\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7c\x7e%]*")
#: Fields for framing or authentication can never be hop-by-hop (RFC 9110 section 7.6.1).
_END_TO_END = frozenset(
    (b"authorization", b"content-length", b"content-type", b"host", b"transfer-encoding")
)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(string.ascii_letters + string.digits + "-._~")
#: A `Content-Length` with more digits than this is too large, whatever its value.
_MAX_LENGTH_DIGITS = 19


class RequestHead:
    """The head of a request, without the length of its body.

    Immutable, because it is reused for requests with an equal head.
    """

    __slots__ = (
        "_passing",
        "chunked",
        "codings",
        "expects",
        "headers",
        "identity",
        "keep",
        "method",
        "named",
        "origin",
        "path",
        "query",
        "version",
    )

    def __init__(
        self,
        method: str = "GET",
        version: str = "1.1",
        headers: Headers | None = None,
        path: str = "",
        query: bytes = b"",
        *,
        identity: bytes = b"",
        named: frozenset[bytes] | None = None,
        keep: bool = False,
        expects: bool = False,
        chunked: bool = False,
        origin: bytes = b"",
        codings: Sequence[bytes] = (),
    ) -> None:
        self.method = method
        self.version = version
        self.headers = headers or []
        """In order, names in lower case."""
        self.path = path
        """With unreserved characters percent-decoded; or `*`."""
        self.query = query
        """With its question mark; or empty."""
        self.identity = identity
        """The client's request id, if it is safe in a log and a header; or empty."""
        self.named = named
        """Names of the fields that `Connection` lists; None without any."""
        self.keep = keep
        """The client wants to use the connection again."""
        self.expects = expects
        """The client waits for `100 Continue` before it sends the body."""
        self.chunked = chunked
        """The body is chunked, so its length is not known in advance."""
        self.origin = origin
        """Origin of the web page for which a browser sends the request; or empty."""
        self.codings = codings
        """Content codings of the body, in the order in which they were applied."""
        self._passing: dict[int, bytes] = {}

    def passing(self, *, keyed: bool, steers: bool = False) -> bytes:
        """Return the header lines for a worker, as `passing_fields`.

        Built once for all requests with this head.
        """
        form = 2 * steers + keyed
        lines = self._passing.get(form)
        if lines is None:
            lines = passing_fields(self.headers, self.named, keyed=keyed, steers=steers)
            self._passing[form] = lines
        return lines


#: The fields that `check` looks at.
_CHECKED_FIELDS = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"connection", b"content-encoding"),
        *(b"expect", b"origin", b"x-request-id"),
    )
)


def check(method: bytes, version: str, target: bytes, headers: Headers) -> tuple[RequestHead, int]:
    """Check the head of a request; return it and the length of the body. Raises APIError."""
    hosts, lengths, codings = 0, list[bytes](), list[bytes]()
    expects, identity, named, options, origin = False, b"", None, b"", b""
    contents = list[bytes]()
    for name, written in [pair for pair in headers if pair[0] in _CHECKED_FIELDS]:
        value = written.rstrip(b" \t")  # not part of the value (RFC 9112 section 5.1)
        if name == b"host":
            hosts += 1
            _check_host(value)
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"x-request-id":
            identity = identity or (value if _REQUEST_ID.fullmatch(value) else b"")
        elif name == b"origin":
            origin = origin + b"," + value if origin else value
        elif name.endswith(b"-encoding"):
            (codings if name == b"transfer-encoding" else contents).append(value)
        elif name == b"expect":
            expects = _expects(value)
        else:
            options = options + b"," + value if options else value
    # RFC 9112 section 3.2: exactly one `Host` in HTTP/1.1, at most one in HTTP/1.0.
    if hosts != 1 and (hosts or version == "1.1"):
        raise BadRequest("A request needs one header field `Host`, and not more than one.")
    chunked = _is_chunked(version, lengths, codings)
    length = _body_length(lengths[0]) if lengths else 0
    keep = version == "1.1"
    if options:
        named, keep = _options(options, version)
    path, query = _target(method, target)
    head = RequestHead(
        method.decode(),
        version,
        headers,
        path,
        query,
        identity=identity,
        named=named,
        keep=keep,
        expects=expects and version == "1.1",
        chunked=chunked,
        origin=origin,
        codings=listed(contents) if contents else (),
    )
    return head, length


def _expects(value: bytes) -> bool:
    """Check an `Expect` field (RFC 9110 section 10.1.1). Raises ExpectationFailed."""
    if value.lower() != b"100-continue":
        raise ExpectationFailed("The only expectation that is met here is 100-continue.")
    return True


def _body_length(digits: bytes) -> int:
    """Parse a `Content-Length`; one with too many digits counts as 10**19. Raises BadRequest."""
    if not digits.isdigit():
        raise BadRequest("The header field `Content-Length` must be a number of bytes.")
    return int(digits) if len(digits) <= _MAX_LENGTH_DIGITS else 10**_MAX_LENGTH_DIGITS


@lru_cache(maxsize=256)
def _options(value: bytes, version: str) -> tuple[frozenset[bytes], bool]:
    """Return the fields that `Connection` lists, and whether the connection is to be kept.

    RFC 9112 section 9.3: `close` wins; HTTP/1.0 has to ask for `keep-alive`. Raises BadRequest for
    fields that can never be hop-by-hop.
    """
    named = frozenset(option.strip(b" \t").lower() for option in value.split(b","))
    wrong = sorted(_END_TO_END & named)
    if wrong:
        raise BadRequest(f"The header field `Connection` must not name `{wrong[0].decode()}`.")
    return named, b"close" not in named and (version == "1.1" or b"keep-alive" in named)


@lru_cache(maxsize=256)  # clients repeat the same value
def _check_host(value: bytes) -> None:
    match = _HOST.fullmatch(value)
    if match is None or int(match[2] or 0) > 65535 or not _is_address(match[1]):
        raise BadRequest("The header field `Host` must be a host and, if needed, a port.")


def _is_address(literal: bytes | None) -> bool:
    """Whether the text in brackets, if any, is an IPv6 address (RFC 3986 section 3.2.2)."""
    try:
        return literal is None or bool(IPv6Address(literal.decode()))
    except ValueError:
        return False


def _is_chunked(version: str, lengths: Sequence[bytes], codings: Sequence[bytes]) -> bool:
    """Whether the body is chunked; any ambiguity is refused (RFC 9112 section 6.3)."""
    if len(lengths) + len(codings) > 1 or (codings and version != "1.1"):
        raise BadRequest("The request's framing is ambiguous: give one length, once.")
    if codings and codings[0].lower() != b"chunked":
        raise Unimplemented("The only transfer coding that is understood here is chunked.")
    return bool(codings)


@lru_cache(maxsize=256)
def _target(method: bytes, target: bytes) -> tuple[str, bytes]:
    """Return path and query of a target: origin form, absolute form, or `*` with OPTIONS.

    RFC 9112 section 3.2. Raises BadRequest, WrongMethod.
    """
    if method in {b"CONNECT", b"TRACE"}:
        raise WrongMethod(method.decode(), "GET, HEAD, OPTIONS, POST")
    if target == b"*" and method == b"OPTIONS":
        return "*", b""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        _check_host(absolute[1])
        target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
    if _ORIGIN.fullmatch(target) is None:
        raise BadRequest("The request's target is not a path, or has characters it must not have.")
    path, question, query = target.partition(b"?")
    return _ESCAPED.sub(_plain, path.decode("ascii")), question + query


def glimpse(target: bytes) -> str:
    """Return the path of a target that nobody has judged, as far as it can be one; or nothing."""
    match = _ORIGIN.search(target)
    return match[0].partition(b"?")[0].decode("ascii") if match else ""


def _plain(escaped: re.Match[str]) -> str:
    """Decode an escaped unreserved character, which means the same (RFC 3986 section 6.2.2.2)."""
    character = chr(int(escaped[1], 16))
    return character if character in _UNRESERVED else escaped[0]
