"""One client connection: requests in, answers out, and every way this can go wrong.

This module handles deadlines, the order of answers, back pressure and disconnects: when a client
disconnects, its exchange is cancelled at once, at whatever step it is.

A request is handed on only when all of it has arrived, so a slow or broken one costs no task.
After anything that is not valid HTTP the connection is closed, because the start of the next
request cannot be found. As in nginx, a client that closes its sending side counts as gone.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, cast

from router.api.endpoints import PROBES
from router.api.errors import APIError, BadRequest, NoWorker, Stopping, TooSlow, parted
from router.http.exchange import AnswerSource, Exchange
from router.http.parser import RequestParser
from router.http.sockets import reset, unacked_bytes
from router.settings.model import Settings

NEVER: Final = float("inf")
#: Seconds for which we go on reading from a client after a refusal or the last answer: closing at
#: once could destroy what we sent (RFC 9112 section 9.6).
LINGER_S = 2.0
#: Bytes of a body that a client sends in a second, at the least, once the time for its first ones
#: is over. Apache allows as few (`RequestReadTimeout`, `MinRate`).
MIN_BODY_BYTES_PER_S: Final = 500
#: Bytes buffered for a slow client: above WRITE_HIGH its worker waits, until WRITE_LOW is reached.
WRITE_HIGH_WATER, WRITE_LOW_WATER = 64 * 1024, 16 * 1024
#: Connections beyond `clients.connections` that are still read, so that health probes get an
#: answer: a full server must not look like a dead one.
PROBE_CONNECTIONS = 64
TOO_MANY_CONNECTIONS = "This server has as many connections as it allows."
#: Most pipelined requests, and bytes of their bodies that are read ahead.
MAX_PIPELINED, MAX_READ_AHEAD_BYTES = 256, 1 << 20
#: Refusals in a row on one connection before the event loop gets to run. A refusal runs no task,
#: so nothing else would interrupt a long series of them.
MAX_CONSECUTIVE_REFUSALS: Final = 16
#: Body chunks in one read above which the event loop gets to run before the next read: parsing a
#: small chunk costs more than its bytes would.
MAX_CHUNKS_PER_READ: Final = 4096


class ConnectionOwner(Protocol):
    """The server that owns the connections."""

    clients: "set[HttpConnection]"

    @property
    def settings(self) -> Settings:
        """The current ones: of them `clients` and `limits` hold for connections."""

    @property
    def stopping(self) -> bool:
        """Whether every connection is to be closed after its answer."""

    def admit(self, exchange: Exchange) -> int:
        """Check a request's head; return the longest body it may have. Raises APIError."""

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer a request that has arrived completely."""

    def unserved(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """Record a request that was refused, or whose client left, before it was served."""


class Service(ConnectionOwner, Protocol):
    """What the server serves, to clients and to operators."""

    stopping: bool
    """Every connection is to be closed after its answer."""

    @property
    def admin_listener(self) -> ConnectionOwner:
        """The owner of connections to `admin.listen`."""

    @property
    def everyone(self) -> "Sequence[HttpConnection]":
        """All connections, including those to `admin.listen`."""

    async def start(self) -> None:
        """Begin all background work."""

    async def stop(self) -> None:
        """Stop all background work."""


class HttpConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._settings = owner.settings.clients
        self._reader = RequestParser(self, owner.settings.limits)
        self._transport: asyncio.Transport | None = None
        self.stopping = owner.stopping
        """Answers announce that the connection will be closed."""
        self._ending = False
        """Close after the current answer."""
        self.deadline = NEVER
        self._timed: Exchange | None = None
        """The request whose body is being timed, and since when."""
        self._since = 0.0
        self.answering: Exchange | None = None
        """The request that is being answered."""
        self.waiting: deque[Exchange] = deque()
        """Pipelined requests, to be answered after it."""
        self.refusal: APIError | None = None
        """The answer to what follows these, after which the connection is closed."""
        self._input_closed = False
        """Ignore whatever else the client sends."""
        self._closing = False
        self._over_limit = False
        """Over the connection limit: only health probes are answered."""
        self._source: AnswerSource | None = None
        self._refused = 0
        """Refusals in this iteration of the event loop."""
        self.write_paused = False
        """The write buffer is full: the client reads too slowly."""
        self._unsent = 0
        """Bytes not yet taken by the client when it last made progress."""
        self._write_deadline = NEVER
        """When a client that takes none of the bytes waiting for it counts as gone."""

    def follow(self, settings: Settings) -> None:
        """Use other settings from now on; a deadline that is already set stays."""
        self._settings = settings.clients
        self._reader.follow(settings.limits)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline for the first head of a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER, WRITE_LOW_WATER)
        self.deadline = self._loop.time() + self._settings.header
        self._owner.clients.add(self)
        over = len(self._owner.clients) - self._settings.connections
        if over > PROBE_CONNECTIONS:
            self._refuse(NoWorker(TOO_MANY_CONNECTIONS))
        self._over_limit = over > 0

    def data_received(self, data: bytes) -> None:
        """Read bytes of one or more requests."""
        if self._input_closed:
            return
        reader = self._reader
        before = reader.progress
        try:
            reader.feed(data)
        except APIError as error:
            self._refuse(error)
            return
        if reader.pieces > MAX_CHUNKS_PER_READ:
            self._pause_reading()
        if reader.last:
            self._input_closed = True
        if self.answering or self.waiting or self._closing:
            return
        if reader.progress != before:
            self._continue()
            self._wait()

    def _pause_reading(self) -> None:
        """Pause reading until the next iteration of the event loop."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._far_ahead():
            transport.resume_reading()

    def eof_received(self) -> bool:
        """Treat a client that closed its sending side as gone, even if it still reads."""
        if self.answering is not None or self.waiting:
            self.abort()  # close() would first wait until the client has taken every byte
        elif not self._closing:
            self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """End everything that is being done for this client."""
        self.deadline = NEVER
        self._owner.clients.discard(self)
        self._input_closed = self._closing = True
        if self._reader.current is not None:
            self._owner.unserved(self._reader.current, 499, "the client left")
        for exchange in (self.answering, *self.waiting):
            if exchange is not None and not exchange.ended:
                exchange.leave()
                if not exchange.served:
                    self._owner.unserved(exchange, 499, "the client left")
                if exchange.task is not None:
                    exchange.task.cancel()
        self.waiting.clear()
        self.refusal = self._timed = None
        self._reader.close()

    def pause_writing(self) -> None:
        """Stop reading from the worker: the client is slower."""
        self.write_paused = True
        self._unsent = self._transport.get_write_buffer_size() if self._transport else 0
        now = self._loop.time()
        self._write_deadline = now + self._settings.write
        self.deadline = min(now + LINGER_S, self._write_deadline)
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        """Go on: the client has caught up."""
        self.write_paused = False
        idle = self.answering is None
        if not self._closing:
            if idle:
                self._wait()
            else:
                self.deadline = NEVER
        if self._source is not None:
            self._source.resume()
        elif idle and not self._closing:
            self._next()

    # Called by the reader.

    def admit(self, exchange: Exchange) -> int:
        """Check a complete head; return the longest body it may have. Raises APIError."""
        if self._over_limit:
            exchange.keep = False
            if exchange.path not in PROBES:
                raise NoWorker(TOO_MANY_CONNECTIONS)
        return self._owner.admit(exchange)

    def received(self, exchange: Exchange) -> None:
        """Serve a complete request, after those before it. Raises APIError."""
        self._timed = None
        if (
            self.answering is None
            and not self.write_paused
            and self._refused < MAX_CONSECUTIVE_REFUSALS
        ):
            if self._begin(exchange):
                self._next()
        elif len(self.waiting) < MAX_PIPELINED:
            self.waiting.append(exchange)
            if self._transport is not None and self._far_ahead():
                self._transport.pause_reading()
        else:
            raise BadRequest("Too many requests were sent before the first was answered.")

    def _far_ahead(self) -> bool:
        """Whether to pause reading; never for one waiting request: only reads see disconnects."""
        bodies = sum(len(exchange.body) for exchange in self.waiting)
        return len(self.waiting) > MAX_PIPELINED // 2 or (
            len(self.waiting) > 1 and bodies > MAX_READ_AHEAD_BYTES
        )

    # Answering, in order.

    def _begin(self, exchange: Exchange) -> bool:
        """Start to answer a request; True if that is done already and the next can begin."""
        self.answering = exchange
        self.deadline = NEVER
        if exchange.refusal is None:
            exchange.task = self._loop.create_task(self._owner.serve(exchange))
            return False
        if not self._refused:
            self._loop.call_soon(self._reset_refusals)
        self._refused += 1
        self._owner.unserved(exchange, exchange.refusal.status, exchange.refusal.message)
        exchange.refuse(exchange.refusal)
        return not (self._closing or self.write_paused)

    def _reset_refusals(self) -> None:
        """Go on with requests that waited only because of MAX_CONSECUTIVE_REFUSALS."""
        self._refused = 0
        if self.answering is None and self.waiting and not self.write_paused:
            self._next()

    def _continue(self) -> None:
        """Send 100 Continue if the client expects it (RFC 9110 section 10.1.1)."""
        if self._reader.expects:
            self._reader.expects = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them until the client takes them."""
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def finished(self, exchange: Exchange) -> None:
        """Start the next waiting request after a complete answer.

        After a refusal the caller of `_begin` does that: here it would recurse.
        """
        self.answering = self._source = None
        if self._closing:
            return
        if self._ending or not exchange.keep:
            self.close(answered=True)
        elif not self.write_paused and exchange.refusal is None:
            self._next()

    def _next(self) -> None:
        """Begin with the waiting requests; without any, wait for more or refuse and close."""
        while self.waiting and self._refused < MAX_CONSECUTIVE_REFUSALS:
            answered = self._begin(self.waiting.popleft())
            if not self.waiting and self._transport is not None:
                self._transport.resume_reading()
            if not answered:
                return
        if self.waiting:
            return
        if self.refusal is not None:
            self._refuse(self.refusal)
        else:
            self._continue()
            self._wait()

    def _wait(self) -> None:
        """Start the deadline for the client's current step: head, body or idling.

        A body has one between two pieces, and one in all that grows with what has arrived.
        """
        now, reader, settings = self._loop.time(), self._reader, self._settings
        if reader.in_head:
            self.deadline = now + settings.header
        elif reader.current is None:
            self.deadline = now + settings.keepalive
        else:
            if reader.current is not self._timed:
                self._timed, self._since = reader.current, now
            latest = self._since + settings.body + reader.taken / MIN_BODY_BYTES_PER_S
            self.deadline = min(now, latest) + settings.body

    def feed_from(self, source: AnswerSource | None) -> None:
        """Set the source that is paused while the client is slow."""
        self._source = source
        if source is not None and self.write_paused:
            source.pause()

    def _refuse(self, error: APIError) -> None:
        """Answer with an error once all earlier requests are answered; then close."""
        self._input_closed = True
        self.refusal = parted(error)
        if self.answering is not None or self.waiting or self._closing:
            return
        exchange = self._reader.current or Exchange(self, self._reader.unread(), keep=False)
        self._reader.current = None
        exchange.keep = False
        exchange.refuse(error)
        self._owner.unserved(exchange, error.status, error.message)

    # Closing.

    def close(self, *, answered: bool = False) -> None:
        """Close once everything is sent.

        If an answer (`answered`) or a refusal was just sent, first read on for a while: closing
        with unread data could destroy that answer (RFC 9112 section 9.6).
        """
        self._input_closed = self._closing = True
        self.waiting.clear()  # they were never begun, and the client can tell
        transport = self._transport
        if transport is None:
            return
        now = self._loop.time()
        self._write_deadline, self.deadline = now + self._settings.write, now + LINGER_S
        if transport.is_closing():
            return
        self._unsent = unacked_bytes(transport)
        if (answered or self.refusal is not None) and transport.can_write_eof():
            transport.write_eof()
        else:  # asyncio's TLS discards what the client still sends, until it closes
            transport.close()

    def cut(self, *, framed: bool) -> None:
        """Close without completing the answer, such that the client can tell.

        If not `framed`, only the connection's end marks the end of the answer: reset it instead.
        """
        self.answering = self._source = None
        self.refusal = None
        if framed:
            self.close()
        elif self._transport is not None:
            reset(self._transport.get_extra_info("socket"))
            self.abort()

    def stop(self) -> None:
        """Close now if nothing is being answered, else after this answer."""
        self.stopping = self._ending = True
        if not self.busy:
            self.close()

    def abandon(self) -> None:
        """Stop waiting for the answer: cancel its task, which may still tell the client so."""
        if self.answering is not None and self.answering.task is not None:
            self.answering.task.cancel()
        elif self.busy and not self._closing:
            self._refuse(Stopping())
        else:
            self.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def expire(self, now: float) -> None:
        """Act on a deadline that has passed."""
        transport = self._transport
        assert transport is not None  # noqa: S101 - it has a deadline since it was connected
        if self._closing or self.write_paused:
            self._check_progress(transport, now)
        elif self._reader.in_head or self._reader.current is not None:
            self._refuse(TooSlow("The request did not arrive in time."))
        else:
            self.close()  # idle

    def _check_progress(self, transport: asyncio.Transport, now: float) -> None:
        """Abort if the client has stopped taking bytes, or has taken the last ones.

        After the last ones a TLS close_notify may remain unread; that is fine.
        """
        before = self._unsent
        self._unsent = (
            unacked_bytes(transport) if self._closing else transport.get_write_buffer_size()
        )
        if self._unsent < before:  # slow, but it makes progress
            self._write_deadline = now + self._settings.write
        if now >= self._write_deadline or (self._closing and before == 0):
            transport.abort()
        else:
            self.deadline = min(now + LINGER_S, self._write_deadline)

    @property
    def busy(self) -> bool:
        """Whether a request is being read or answered."""
        reader = self._reader
        return self.answering is not None or reader.current is not None or reader.in_head
