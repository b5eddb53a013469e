"""One connection of a client: HTTP/1.1 in, answers out, and every way it can go wrong.

httptools (llhttp) parses. Here are the deadlines, the sizes, the order of answers, back pressure,
and what a client that leaves means: the exchange it left is cancelled at once, wherever it is.

A request is given to the door only when all of it is there, so a slow or broken one costs no
task. After anything that is not HTTP the connection is closed: nobody can say where the next
request would begin. As in nginx, a client that closes its sending side has left.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, cast

import httptools

from router.errors import (
    BadRequest,
    BodyTooLarge,
    DoorError,
    Headers,
    HeadersTooLarge,
    NoWorker,
    TooSlow,
    UrlTooLong,
)
from router.exchange import Exchange, Source
from router.guard import Framing, check

NEVER = float("inf")
#: Seconds a client may go on sending after a refusal: closing at once would destroy our answer
#: (RFC 9112 section 9.6).
LINGER_S = 2.0
#: Bytes for a slow client that are kept here; its worker waits while there are more.
WRITE_HIGH, WRITE_LOW = 64 * 1024, 16 * 1024
#: Stands for a head that could not be read.
UNREAD = Framing("", b"", 0, expects=False, identity=b"", named=None)
#: Requests sent before the first one was answered.
PIPELINED = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one client may take, in seconds and bytes."""

    header_s: float = 10.0
    body_s: float = 30.0
    write_s: float = 60.0
    keepalive_s: float = 75.0
    url: int = 8 << 10
    headers: int = 32 << 10
    header_count: int = 100
    connections: int = 10_000


class House(Protocol):
    """What is behind the connections."""

    bounds: Bounds
    stopping: bool
    clients: "set[Client]"

    def admit(self, exchange: Exchange) -> int:
        """Judge a request by its head; return the longest body it may have. Raises DoorError."""

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer a request that is there as a whole."""

    def unserved(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """A request was refused, or its client left, before anybody served it."""


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, house: House, loop: asyncio.AbstractEventLoop) -> None:
        self._house = house
        self._loop = loop
        self._bounds = house.bounds
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.stopping = house.stopping
        self.deadline = NEVER
        self._reading: Exchange | None = None
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._refusal: DoorError | None = None
        self._deaf = False
        """What else the client sends means nothing."""
        self._closing = False
        self._source: Source | None = None
        self._full = False
        """The client does not take what is sent."""
        self._unsent = 0
        self._head_bytes = 0
        """What came until the head was complete; never less than the head itself."""
        self._begin_head()

    def _begin_head(self) -> None:
        self._url = b""
        self._headers: Headers = []
        self._trailer_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._body_limit = 0
        self._in_head = False

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; it is expected to say something soon."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self.deadline = self._loop.time() + self._bounds.header_s
        self._house.clients.add(self)
        if len(self._house.clients) > self._bounds.connections:
            self._refuse(NoWorker("This server has as many connections as it allows."))

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._deaf:
            return
        self._head_bytes = len(data) + (self._head_bytes if self._in_head else 0)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._deaf = True  # ignored (RFC 9110 section 7.8): the request was served as it is
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, DoorError):
                raise
            self._refuse(cause)
        except httptools.HttpParserError as error:
            if not self._deaf:  # else it is what follows the last request there was to be
                self._refuse(BadRequest(f"This is not a request in HTTP/1.1: {error}."))
        if (
            self._in_head
            and self._head_bytes > self._bounds.headers + self._bounds.url
            and not self._deaf
        ):
            self._refuse(self._headers_too_large())

    def eof_received(self) -> bool:
        """A client that will say no more has left."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """It is gone: whatever is being done for it ends now."""
        self.deadline = NEVER
        self._house.clients.discard(self)
        self._deaf = self._closing = True
        if self._reading is not None:
            self._house.unserved(self._reading, 499, "the client left")
        for exchange in (self._answering, *self._waiting):
            if exchange is not None and not exchange.ended:
                exchange.left = True
                if not exchange.served:
                    self._house.unserved(exchange, 499, "the client left")
                if exchange.task is not None:
                    exchange.task.cancel()
        self._waiting.clear()

    def pause_writing(self) -> None:
        """The client is slower than the worker."""
        self._full = True
        self._unsent = self._transport.get_write_buffer_size() if self._transport else 0
        self.deadline = self._loop.time() + self._bounds.write_s
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._full = False
        self.deadline = NEVER
        if self._source is not None:
            self._source.resume()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begin_head()
        self._in_head = True
        if self._answering is None:
            self.deadline = self._loop.time() + self._bounds.header_s

    def on_url(self, piece: bytes) -> None:
        """The target, or a piece of it."""
        self._url += piece
        if len(self._url) > self._bounds.url:
            raise UrlTooLong(self._bounds.url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field, or a trailer field, which is dropped (RFC 9112 section 7.1.2)."""
        if self._in_head:
            self._headers.append((name.lower(), value))
        else:
            self._trailer_bytes += len(name) + len(value)
            if self._trailer_bytes > self._bounds.headers:
                raise self._headers_too_large()

    def on_headers_complete(self) -> None:
        """The head is there: judge it before anything of the body is read."""
        self._in_head = False
        parser, headers, bounds = self._parser, self._headers, self._bounds
        if len(headers) > bounds.header_count or (
            self._head_bytes > bounds.headers
            and sum([len(name) + len(value) for name, value in headers]) > bounds.headers
        ):
            raise self._headers_too_large()
        version = parser.get_http_version()
        method: bytes = parser.get_method()
        if version not in {"1.1", "1.0"}:
            raise BadRequest("The only versions of HTTP that are spoken here are 1.1 and 1.0.")
        framing = check(method, version, self._url, headers)
        exchange = Exchange(
            self,
            method.decode("ascii"),
            version,
            headers,
            framing,
            keep=parser.should_keep_alive() and not parser.should_upgrade(),
        )
        self._reading = exchange
        self._body_limit = self._house.admit(exchange)
        if framing.length is not None and framing.length > self._body_limit:
            raise BodyTooLarge(self._body_limit)
        if self._answering is None:
            self.deadline = self._loop.time() + self._bounds.body_s
        if framing.expects and self._answering is None and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > self._body_limit:
            raise BodyTooLarge(self._body_limit)
        if self._answering is None:
            self.deadline = self._loop.time() + self._bounds.body_s

    def on_message_complete(self) -> None:
        """The request is whole."""
        exchange, self._reading = self._reading, None
        if exchange is None:
            return
        body = self._body
        exchange.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        if not exchange.keep:
            self._deaf = True
        if self._answering is None:
            self._begin(exchange)
        elif len(self._waiting) < PIPELINED:
            self._waiting.append(exchange)
            if self._transport is not None:
                self._transport.pause_reading()  # one in hand is enough
        else:
            raise BadRequest("Too many requests were sent before the first was answered.")

    # Answering, in order.

    def _begin(self, exchange: Exchange) -> None:
        self._answering = exchange
        self.deadline = NEVER
        exchange.task = self._loop.create_task(self._house.serve(exchange))

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the client takes them."""
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def finished(self, exchange: Exchange) -> None:
        """An answer is complete; what waited is next."""
        self._answering = self._source = None
        if self._closing:
            return
        if not exchange.keep:
            self.close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
            if not self._waiting and self._transport is not None:
                self._transport.resume_reading()
        elif self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self.deadline = self._loop.time() + self._patience()

    def _patience(self) -> float:
        if self._in_head:
            return self._bounds.header_s
        return self._bounds.body_s if self._reading is not None else self._bounds.keepalive_s

    def feed_from(self, source: Source | None) -> None:
        """Let `source` be paused while the client is slow."""
        self._source = source
        if source is not None and self._full:
            source.pause()

    def _refuse(self, error: DoorError) -> None:
        """Answer what was not understood, after the answers that are owed; then close."""
        self._deaf = True
        self._refusal = error
        if self._answering is not None or self._closing:
            return
        exchange = self._reading or Exchange(self, "GET", "1.1", [], UNREAD, keep=False)
        self._reading = None
        exchange.keep = False
        exchange.refuse(error)
        self._house.unserved(exchange, error.status, error.message)

    def _headers_too_large(self) -> HeadersTooLarge:
        size, count = self._bounds.headers, self._bounds.header_count
        return HeadersTooLarge(
            f"The request's header is over this server's limits of {size} bytes, {count} fields."
        )

    # Closing.

    def close(self) -> None:
        """Close once everything is sent; a client that still sends is listened to for a while."""
        self._deaf = self._closing = True
        transport = self._transport
        if transport is None:
            return
        self.deadline = self._loop.time() + (self._bounds.write_s if self._full else LINGER_S)
        if self._refusal is not None and transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def cut(self) -> None:
        """Close after what has been sent; the answer has no end, and the client can tell."""
        self._answering = self._source = None
        self._refusal = None
        self.close()

    def stop(self) -> None:
        """Close now if nothing is being answered, else after this answer."""
        self.stopping = True
        if self._answering is None and self._reading is None and not self._in_head:
            self.close()

    def abandon(self) -> None:
        """Wait no longer for the answer: whoever works on it is cancelled, and may say so."""
        if self._answering is not None and self._answering.task is not None:
            self._answering.task.cancel()
        else:
            self.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        transport = self._transport
        assert transport is not None  # noqa: S101 - it has a deadline since it was connected
        if self._full:
            unsent = transport.get_write_buffer_size()
            if unsent < self._unsent:  # it takes something, if slowly
                self._unsent = unsent
                self.deadline = now + self._bounds.write_s
            else:
                transport.abort()
        elif self._closing:
            transport.abort()
        elif self._in_head or self._reading is not None:
            self._refuse(TooSlow("The request did not arrive in time."))
        else:
            self.close()  # idle

    @property
    def busy(self) -> bool:
        """A request is being read or answered."""
        return bool(self._answering or self._reading or self._in_head)
