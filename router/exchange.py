"""The request's own side of HTTP: its id, its body, and the headers that may pass.

Hop-by-hop fields are those of RFC 9110 section 7.6.1, and every field that `Connection` names.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from router.errors import BodyTooLarge, Headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: RFC 9110 section 7.6.1; Proxy-* belong to this hop as well (section 11.7).
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
#: Written anew towards the worker.
_REWRITTEN = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}

#: Digits that a length may have; none that fits in 64 bits has more.
LONGEST_NUMBER = 20
#: Seconds that a client may go on sending a body that was refused.
LINGER_S = 5.0

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class ClientLeft(Exception):
    """The client closed its connection; nobody is there to be answered."""

    def __init__(self, *, asked_worker: bool) -> None:
        super().__init__("the client left")
        self.asked_worker = asked_worker
        """A worker was working on it, and it is counted there."""


def request_id(headers: Headers) -> bytes:
    """Return the client's own id if it is harmless in a log and a header, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return os.urandom(16).hex().encode()


def header(headers: Headers, wanted: bytes) -> bytes:
    """Return the first value of a field, names being in lower case already; or nothing."""
    return next((value for name, value in headers if name == wanted), b"")


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """Read the whole body. Raises BodyTooLarge before reading what is declared too large."""
    length = header(headers, b"content-length")
    # The parser let only digits through, however many.
    if len(length) > LONGEST_NUMBER or (length and int(length) > limit):
        raise BodyTooLarge(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft(asked_worker=False)
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def discard_body(headers: Headers, receive: Receive) -> None:
    """Let the client finish sending, for a while: closing at once would destroy our answer.

    A client that waits for `100 Continue` sends nothing more and needs no waiting for.
    """
    if header(headers, b"expect"):
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            message = await receive()
            while message["type"] == "http.request" and message.get("more_body", False):
                message = await receive()


def upstream_head(
    scope: Scope, host: str, api_key: str | None, identity: bytes, length: int
) -> bytes:
    """Write the request line and header fields for a worker."""
    headers: Headers = scope["headers"]
    dropped = _REWRITTEN | _connection_named(headers)
    if api_key:
        dropped |= {b"authorization"}
    target = scope["path"].encode()
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [
        b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (target, host.encode()),
        b"x-request-id: %b\r\ncontent-length: %d\r\n" % (identity, length),
    ]
    if api_key:
        lines.append(b"authorization: Bearer %b\r\n" % api_key.encode())
    lines += [b"%b: %b\r\n" % (name, value) for name, value in headers if name not in dropped]
    lines.append(b"via: 1.1 warmroute\r\n\r\n")  # after those of proxies before us
    return b"".join(lines)


def answer_headers(status: int, headers: Headers, added: Headers) -> Headers:
    """Return a worker's header fields as the client may see them, and ours."""
    ours = {name for name, _ in added}
    dropped = HOP_BY_HOP | _connection_named(headers) | ours
    if status in {204, 304}:  # without a body, whatever length is told (RFC 9110 section 8.6)
        dropped |= {b"content-length"}
    return [pair for pair in headers if pair[0] not in dropped] + added


def _connection_named(headers: Headers) -> frozenset[bytes]:
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named)
