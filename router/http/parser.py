"""Turns the bytes of one connection into requests, within limits.

httptools (llhttp) parses. Whatever two parsers could read differently, or is larger than allowed,
raises an error. Nothing is read after that, because the start of the next request is not known.

Remembers the last head on a connection: most are the same each time, apart from the length.

A head that equals one already parsed and checked, byte for byte except for the digits of its
`Content-Length`, means the same, and comparing costs a tenth of parsing. A head is recognised only
if it arrives in one piece and no more bytes follow than it declares; anything else is parsed.
"""

import re
from typing import Final, Generic, Protocol, TypeVar

import httptools

from router.api.errors import (
    APIError,
    BadRequest,
    BodyTooLarge,
    Headers,
    HeadersTooLarge,
    UrlTooLong,
    parted,
)
from router.http.exchange import ClientConnection, Exchange
from router.http.validation import RequestHead, check, glimpse
from router.settings.server import LimitSettings

T = TypeVar("T")

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})(?=\r\n)", re.IGNORECASE)
#: Longer heads are not remembered, because every connection may keep one.
MAX_RECALLED_HEAD_BYTES = 4096
#: Most digits of a length.
MAX_LENGTH_DIGITS: Final = 18
_0: Final = 0x30
_9: Final = 0x39


class Recall(Generic[T]):
    """Remembers one head, and the value that was made from it."""

    __slots__ = ("_after", "_before", "_value")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self._value: T | None = None

    def keep(self, message: bytes, value: T) -> None:
        """Remember the head at the start of `message`, which the parser accepted as one message.

        `message` may lack the end of its body.
        """
        end = message.find(b"\r\n\r\n", 0, MAX_RECALLED_HEAD_BYTES) + 4
        lengths = list(_LENGTH.finditer(message, 0, end - 2))
        if end >= 4 and len(lengths) == 1 and end + int(lengths[0][1]) >= len(message):
            self._before = message[: lengths[0].start(1)]
            self._after = message[lengths[0].end(1) : end]
            self._value = value

    def find(self, message: bytes) -> tuple[T, bytes, int] | None:
        """If `message` begins with the remembered head, return its value; else None.

        Along with it, return the part of the body that has arrived, and how many bytes are missing.
        """
        value, after = self._value, self._after
        if value is None or not message.startswith(self._before):
            return None
        end = len(self._before)
        most = min(len(message), end + MAX_LENGTH_DIGITS)
        length = 0
        while end < most and _0 <= message[end] <= _9:
            length = 10 * length + message[end] - _0
            end += 1
        start = end + len(after)
        if message[end:start] != after or end == len(self._before):
            return None
        missing = length - len(message) + start
        if missing < 0:
            return None
        return value, message[start:], missing


#: Bytes allowed for the framing of a chunk: its size in hexadecimal and two line ends.
CHUNK_FRAMING_BYTES = 12
#: Pieces of a body that are kept apart before they are joined: each costs Python some 40 bytes more
#: than its content.
MAX_PIECES: Final = 256
CHUNKED = b"transfer-encoding: chunked"


class ParserOwner(ClientConnection, Protocol):
    """The connection that is read from."""

    def admit(self, exchange: Exchange) -> int:
        """Check a complete head; return the longest body it may have. Raises APIError."""

    def received(self, exchange: Exchange) -> None:
        """Take a complete request. Raises APIError."""


class RequestParser:
    """Reads the requests of one connection, one after the other."""

    __deletable__ = ("_owner",)  # mypyc: see `close`

    def __init__(self, owner: ParserOwner, limits: LimitSettings) -> None:
        self._owner = owner
        self._parser = httptools.HttpRequestParser(self)
        self._limits = limits
        self.current: Exchange | None = None
        """The request whose body is being read."""
        self.in_head = False
        """A request has begun, but its head is not complete."""
        self.expects = False
        """The client waits for `100 Continue` before it sends the body."""
        self.last = False
        """The last request of this connection was read; whatever follows is ignored."""
        self.progress = 0
        """Counts every start of a request, complete head and piece of a body."""
        self.pieces = 0
        """Body chunks in the last read."""
        self.taken = 0
        """Bytes that have arrived of the body that is being read."""
        self._bodiless = b""
        """The framing header of a body that is still to be read after an `Upgrade` request."""
        self._read = self._head_bytes = 0
        self._first = self._behind = False
        """`_first`: a new request starts at the first byte of this read. `_behind`: the current
        one started later in its read, after others."""
        self._recall: Recall[RequestHead] = Recall()
        self._whole: RequestHead | None = None
        """The head that was read last, if it may be remembered to recognise the next one."""
        self._missing = 0
        """Bytes still missing of a body whose head was recognised."""
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: Headers = []
        self._add = self._headers.append
        self._body: list[bytes] = []
        self._folded: list[bytes] = []
        self._body_bytes = self._body_limit = 0
        self._trailers = self._trailer_bytes = self._chunks = 0
        self._received = self._read

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises APIError."""
        self.pieces = 0
        if self._missing:
            data = self._more(data)
            if not data:
                return
        between = self.current is None and not self.in_head
        known = self._recall.find(data) if between else None
        if known is not None:
            head, body, missing = known
            self._again(head, body, missing)
        else:
            self._parse(data, between=between)

    def _parse(self, data: bytes, *, between: bool) -> None:
        """Let llhttp read the next bytes; `between`: they begin with a new request."""
        self._read = size = len(data)
        self._received += size
        self._head_bytes = self._head_bytes + size if self.in_head else size
        self._first = between
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            raise (cause if isinstance(cause, APIError) else error) from None
        except httptools.HttpParserError as error:
            if not self.last:
                raise BadRequest(f"This is not a valid HTTP/1.1 request: {error}.") from None
        if rest is not None:
            self._received -= len(rest)  # counted again when it is read
            self._pass_over(rest)
        if self._whole is not None and between and not self.in_head:
            self._recall.keep(data, self._whole)
        if self._chunks:
            self._check_overhead()
        if self.in_head and self._head_bytes > self._limits.headers + self._limits.url:
            raise self._headers_too_large()

    def _again(self, head: RequestHead, body: bytes, missing: int) -> None:
        """Begin a request whose head was recognised, so it needs no parsing and no checks."""
        self.progress += 1
        self.current = exchange = Exchange(self._owner, head, keep=True)
        try:
            limit = self._owner.admit(exchange)
        except APIError as error:
            if body or missing:
                raise
            exchange.refusal, limit = parted(error), 0
        if len(body) + missing > limit:
            raise BodyTooLarge(limit)
        self._take(body)
        self._missing = missing
        if not missing:
            self._complete(exchange)

    def _more(self, data: bytes) -> bytes:
        """Take the missing bytes of a body; return what follows it."""
        self.progress += 1
        piece = data[: self._missing]
        self._take(piece)
        self._missing -= len(piece)
        if not self._missing and self.current is not None:
            self._complete(self.current)
        return data[len(piece) :]

    def close(self) -> None:
        """Drop the parser and the owner, which refer to this reader, at the end of the connection.

        This breaks the reference cycles, so closed connections need no garbage collection.
        """
        self._parser = _CLOSED
        self.current = None
        del self._owner

    def unread(self) -> RequestHead:
        """Stand for a head that could not be read: where it was to go may be known all the same."""
        return RequestHead(path=glimpse(self._url[: self._limits.url]))

    def follow(self, limits: LimitSettings) -> None:
        """Use other limits from the next request on."""
        self._limits = limits
        self._recall = Recall()

    def _pass_over(self, rest: bytes) -> None:
        """Ignore an `Upgrade` header (RFC 9110 section 7.8) and go on with `rest`.

        llhttp reads no body after such a head, so another parser does. The request is the last one
        on its connection.
        """
        framing, self._bodiless = self._bodiless, b""
        if framing:
            self._parser = httptools.HttpRequestParser(_Body(self))
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
            self.feed(rest)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin a request at its first byte."""
        self._begin()
        self._behind, self._first = not self._first, False
        if self._behind:  # how much of this read belongs to it is not known
            self._received = self._head_bytes = 0
        self.in_head = True
        self._whole = None
        self.progress += 1

    def on_url(self, piece: bytes) -> None:
        """Take the request target, or a piece of it."""
        self._url += piece
        if len(self._url) > self._limits.url:
            raise UrlTooLong(self._limits.url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field; drop a trailer field (RFC 9112 section 7.1.2)."""
        if self.in_head:
            self._add((name.lower(), value))
            return
        limits = self._limits
        self._trailer_bytes += len(name) + len(value)
        self._trailers += 1
        if self._trailer_bytes > limits.headers or self._trailers > limits.header_count:
            raise self._headers_too_large(self._trailers)

    def on_headers_complete(self) -> None:
        """Check the complete head before any of the body is read."""
        self.in_head = False
        self.progress += 1
        parser, headers, limits = self._parser, self._headers, self._limits
        if len(headers) > limits.header_count or (
            (self._behind or self._head_bytes > limits.headers)
            and sum([len(name) + len(value) for name, value in headers]) > limits.headers
        ):
            raise self._headers_too_large(len(headers))
        version = parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            raise BadRequest("Only HTTP/1.1 and HTTP/1.0 are supported.")
        method: bytes = parser.get_method()
        head, length = check(method, version, self._url, headers)
        has_body = length > 0 or head.chunked
        upgrade = parser.should_upgrade()
        keep = head.keep and parser.should_keep_alive() and not upgrade
        self._whole = head if keep and not head.identity and not head.expects else None
        self.current = exchange = Exchange(self._owner, head, keep=keep)
        try:
            self._body_limit = self._owner.admit(exchange)
        except APIError as error:
            if has_body:
                raise
            # It has no body, so the connection can be used again.
            exchange.refusal = parted(error)
        if length > self._body_limit:
            raise BodyTooLarge(self._body_limit)
        self.expects = head.expects and has_body
        if upgrade and has_body:
            self._bodiless = CHUNKED if head.chunked else b"content-length: %d" % length

    def on_chunk_header(self) -> None:
        """Count a chunk of the body."""
        self._chunks += 1
        self.pieces += 1

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self.progress += 1
        self._take(data)
        self._body_bytes += len(data)
        if self._body_bytes > self._body_limit:
            raise BodyTooLarge(self._body_limit)

    def on_message_complete(self) -> None:
        """Hand on the complete request."""
        exchange = self.current
        if self._bodiless or exchange is None:
            return  # only its head is complete: see `_pass_over`
        if self._chunks:
            self._check_overhead()
        self._complete(exchange)

    def _take(self, piece: bytes) -> None:
        """Keep a piece of a body; join many small ones."""
        self.taken += len(piece)
        self._body.append(piece)
        if len(self._body) == MAX_PIECES:
            self._folded.append(b"".join(self._body))
            self._body = []

    def _complete(self, exchange: Exchange) -> None:
        self.current = None
        self.expects = False
        self.taken = 0
        body = [*self._folded, *self._body] if self._folded else self._body
        exchange.body = body[0] if len(body) == 1 else b"".join(body)
        self._body, self._folded = [], []
        self.last = not exchange.keep
        self._owner.received(exchange)

    def _check_overhead(self) -> None:
        """Bound the bytes of chunk extensions and trailers too. Raises APIError."""
        limits = self._limits
        most = (
            self._body_bytes + CHUNK_FRAMING_BYTES * self._chunks + 2 * limits.headers + limits.url
        )
        if self._received > most:
            raise self._headers_too_large()

    def _headers_too_large(self, fields: int = 0) -> HeadersTooLarge:
        """Return the error for too many `fields`, or else for too many bytes."""
        size, count = self._limits.headers, self._limits.header_count
        if fields > count:
            return HeadersTooLarge(f"The request has more header fields than the {count} allowed.")
        return HeadersTooLarge(f"The request's header is over this server's limit of {size} bytes.")


#: Replaces a parser that is not needed any more.
_CLOSED = httptools.HttpRequestParser(object())


class _Body:
    """Parser callbacks that take only the body; the head was read by another parser."""

    def __init__(self, reader: RequestParser) -> None:
        self.on_body = reader.on_body
        self.on_chunk_header = reader.on_chunk_header
        self.on_message_complete = reader.on_message_complete
