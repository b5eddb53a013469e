"""What a request's head must be like before anything else is done with it. Pure.

llhttp has parsed it and refused what is not HTTP/1.1. These rules are about meaning: a request
that two readers could understand differently is refused, never repaired.
"""

import re
from dataclasses import dataclass

from router.errors import BadRequest, Headers, Unimplemented, Unmet, WrongMethod
from router.headers import connection_named

#: RFC 3986 section 3.2.2, without what no host needs: user information, commas, escapes.
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~-]{1,255})(?::([0-9]{1,5}))?")
_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?#]*)(.*)")
#: RFC 3986 section 3.3 and 3.4: what path and query are written with; no fragment, no spaces.
_ORIGIN = re.compile(rb"/[\x21\x24-\x3b\x3d\x3f-\x5b\x5d\x5f\x61-\x7a\x7c\x7e%]*")
#: A field that frames or authenticates cannot be a matter of one hop (RFC 9110 section 7.6.1).
_END_TO_END = frozenset(
    (b"authorization", b"content-length", b"content-type", b"host", b"transfer-encoding")
)
#: A length of more digits is too large, whatever its value.
_LONGEST_NUMBER = 19


@dataclass(frozen=True, slots=True)
class Framing:
    """What the head says of what follows it."""

    target: bytes
    """Path and query, beginning with a slash; or `*`."""
    length: int | None
    """Bytes of the body; None if it comes in chunks."""
    expects: bool
    """The client waits for `100 Continue` before it sends the body."""


def check(method: bytes, version: str, target: bytes, headers: Headers) -> Framing:
    """Judge the head of a request. Raises a DoorError."""
    hosts = 0
    lengths: list[bytes] = []
    codings: list[bytes] = []
    expects = connection = False
    for name, value in headers:
        if name == b"host":
            hosts += 1
            _check_host(value)
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"connection":
            connection = True
        elif name == b"expect":
            expects = True
            if value.lower() != b"100-continue":
                raise Unmet("The only expectation that is met here is 100-continue.")
    # RFC 9112 section 3.2: exactly one in HTTP/1.1, at most one before.
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise BadRequest("A request needs one header field `Host`, and not more than one.")
    if connection:
        _check_connection(headers)
    length = _body_length(version, lengths, codings)
    has_body = length is None or length > 0
    return Framing(_target(method, target), length, expects and has_body and version == "1.1")


def _check_host(value: bytes) -> None:
    found = _HOST.fullmatch(value)
    if found is None or int(found[1] or 0) > 65535:
        raise BadRequest("The header field `Host` must be a host and, if needed, a port.")


def _check_connection(headers: Headers) -> None:
    named = connection_named(headers)
    if named and named & _END_TO_END:
        field = min(named & _END_TO_END).decode()
        raise BadRequest(f"The header field `Connection` must not name `{field}`.")


def _body_length(version: str, lengths: list[bytes], codings: list[bytes]) -> int | None:
    """RFC 9112 section 6.3, every ambiguity refused."""
    if codings:
        if lengths or len(codings) > 1 or version != "1.1":
            raise BadRequest("The request's framing is ambiguous: give one length, once.")
        if codings[0].lower() != b"chunked":
            raise Unimplemented("The only transfer coding that is understood here is chunked.")
        return None
    if len(lengths) > 1:
        raise BadRequest("The request's framing is ambiguous: give one length, once.")
    if not lengths:
        return 0
    if not lengths[0].isdigit():
        raise BadRequest("The header field `Content-Length` must be a number of bytes.")
    return int(lengths[0]) if len(lengths[0]) <= _LONGEST_NUMBER else 10**_LONGEST_NUMBER


def _target(method: bytes, target: bytes) -> bytes:
    """RFC 9112 section 3.2: origin form, absolute form, or `*` of OPTIONS."""
    if method in {b"CONNECT", b"TRACE"}:
        raise WrongMethod(method.decode(), "GET, HEAD, OPTIONS or POST")
    if target == b"*" and method == b"OPTIONS":
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        _check_host(absolute[1])
        target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
    if _ORIGIN.fullmatch(target) is None:
        raise BadRequest("The request's target is not a path, or has characters it must not have.")
    return target
