"""What a request's head must be like before anything else is done with it. Pure.

llhttp has parsed it and refused what is not HTTP/1.1. These rules are about meaning: a request
that two readers could understand differently is refused, never repaired.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

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


class Framing(NamedTuple):
    """What the head says of what follows it."""

    target: bytes
    """Path and query, beginning with a slash; or `*`."""
    length: int | None
    """Bytes of the body; None if it comes in chunks."""
    expects: bool
    """The client waits for `100 Continue` before it sends the body."""


#: The fields that are looked at here.
_JUDGED = frozenset((b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"))


def check(method: bytes, version: str, target: bytes, headers: Headers) -> Framing:
    """Judge the head of a request. Raises a DoorError."""
    fields: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name in _JUDGED:
            fields.setdefault(name, []).append(value)
    hosts = fields.get(b"host", ())
    # RFC 9112 section 3.2: exactly one in HTTP/1.1, at most one before.
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise BadRequest("A request needs one header field `Host`, and not more than one.")
    for host in hosts:
        _check_host(host)
    if b"connection" in fields:
        _check_connection(headers)
    length = _body_length(
        version, fields.get(b"content-length", ()), fields.get(b"transfer-encoding", ())
    )
    expects = False
    for expectation in fields.get(b"expect", ()):
        if expectation.lower() != b"100-continue":
            raise Unmet("The only expectation that is met here is 100-continue.")
        expects = length != 0 and version == "1.1"
    return Framing(_target(method, target), length, expects)


@lru_cache(maxsize=256)  # clients say the same again and again
def _check_host(value: bytes) -> None:
    found = _HOST.fullmatch(value)
    if found is None or int(found[1] or 0) > 65535:
        raise BadRequest("The header field `Host` must be a host and, if needed, a port.")


def _check_connection(headers: Headers) -> None:
    named = connection_named(headers)
    if named and named & _END_TO_END:
        field = min(named & _END_TO_END).decode()
        raise BadRequest(f"The header field `Connection` must not name `{field}`.")


def _body_length(version: str, lengths: Sequence[bytes], codings: Sequence[bytes]) -> int | None:
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


@lru_cache(maxsize=256)
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
