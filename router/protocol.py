"""One connection of a client: requests in, answers out, and every way it can go wrong.

Here are the deadlines, the order of answers, back pressure, and what a client that leaves means:
the exchange it left is cancelled at once, wherever it is.

A request is given to the door only when all of it is there, so a slow or broken one costs no
task. After anything that is not HTTP the connection is closed: nobody can say where the next
request would begin. As in nginx, a client that closes its sending side has left.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol, cast

from router.errors import BadRequest, DoorError, NoWorker, TooSlow, parted
from router.exchange import Exchange, Source
from router.lifeline import has_ended, reset
from router.reading import Bounds, Reader
from router.sagemaker.paths import PING
from router.untaken import untaken

NEVER: Final = float("inf")
#: Seconds a client may go on sending after a refusal: closing at once would destroy our answer
#: (RFC 9112 section 9.6).
LINGER_S = 2.0
#: Bytes for a slow client that are kept here; its worker waits while there are more.
WRITE_HIGH, WRITE_LOW = 64 * 1024, 16 * 1024
#: Connections beyond `clients.connections` whose heads are read: a full house is not a dead one,
#: and whoever probes must not take it for one.
RESERVE = 64
PROBES = frozenset(("/health", "/health/live", "/health/ready", PING))
CROWDED = "This server has as many connections as it allows."
#: Requests sent before the first one was answered, and bytes of their bodies that are read ahead.
PIPELINED, AHEAD = 256, 1 << 20
#: Requests of a client that are refused before others have their turn: nobody works on these, so
#: nothing else would end them.
AT_ONCE: Final = 16
#: Chunks of a body in one read, beyond which others have their turn before the next: each takes
#: longer to read than its bytes.
CHUNKS_AT_ONCE: Final = 4096


class House(Protocol):
    """What is behind the connections."""

    clients: "set[Client]"

    @property
    def bounds(self) -> Bounds:
        """What one client may take."""

    @property
    def stopping(self) -> bool:
        """Every connection is closed after its answer."""

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
        self._reader = Reader(self, house.bounds)
        self._transport: asyncio.Transport | None = None
        self.stopping = house.stopping
        """Answers say that the connection will be closed."""
        self._ending = False
        """It is, after the answer that is being given."""
        self.deadline = NEVER
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._refusal: DoorError | None = None
        self._deaf = False
        """What else the client sends means nothing."""
        self._closing = False
        self._crowded = False
        """One of those beyond the bound: only probes are answered."""
        self._source: Source | None = None
        self._refused = 0
        """So many in this turn of the loop."""
        self._full = False
        """The client does not take what is sent."""
        self._unsent = 0
        """Bytes that it had not taken when it last took some."""
        self._late = NEVER
        """When a client that takes nothing of what is there for it has left."""

    def follow(self, bounds: Bounds) -> None:
        """Other bounds from now on; a deadline that is set stays."""
        self._bounds = bounds
        self._reader.follow(bounds)

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; it is expected to say something soon."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self.deadline = self._loop.time() + self._bounds.header_s
        self._house.clients.add(self)
        over = len(self._house.clients) - self._bounds.connections
        if over > RESERVE:
            self._refuse(NoWorker(CROWDED))
        self._crowded = over > 0

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._deaf:
            return
        reader = self._reader
        before = reader.progress
        try:
            reader.feed(data)
        except DoorError as error:
            self._refuse(error)
            return
        if reader.pieces > CHUNKS_AT_ONCE:
            self._rest()
        if reader.last:
            self._deaf = True
        if self._answering or self._waiting or self._closing:
            return
        if reader.progress != before:
            self._continue()
            self.deadline = self._loop.time() + self._patience()

    def _rest(self) -> None:
        """Read on in the next turn of the loop."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._far_ahead():
            transport.resume_reading()

    def eof_received(self) -> bool:
        """A client that will say no more has left, whether it takes what was sent or not."""
        if self._answering is not None or self._waiting:
            self.abort()  # to close, the transport would wait until all of that is taken
        elif not self._closing:
            self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """It is gone: whatever is being done for it ends now."""
        self.deadline = NEVER
        self._house.clients.discard(self)
        self._deaf = self._closing = True
        if self._reader.current is not None:
            self._house.unserved(self._reader.current, 499, "the client left")
        for exchange in (self._answering, *self._waiting):
            if exchange is not None and not exchange.ended:
                exchange.leave()
                if not exchange.served:
                    self._house.unserved(exchange, 499, "the client left")
                if exchange.task is not None:
                    exchange.task.cancel()
        self._waiting.clear()
        self._refusal = None
        self._reader.close()

    def pause_writing(self) -> None:
        """The client is slower than the worker."""
        self._full = True
        self._unsent = self._transport.get_write_buffer_size() if self._transport else 0
        now = self._loop.time()
        self._late = now + self._bounds.write_s
        self.deadline = min(now + LINGER_S, self._late)
        if self._source is not None:
            self._source.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._full = False
        idle = self._answering is None
        if not self._closing:
            self.deadline = self._loop.time() + self._patience() if idle else NEVER
        if self._source is not None:
            self._source.resume()
        elif idle and not self._closing:
            self._next()

    # What the reader calls.

    def admit(self, exchange: Exchange) -> int:
        """A head is complete: return the longest body it may have. Raises DoorError."""
        if self._crowded:
            exchange.keep = False
            if exchange.path not in PROBES:
                raise NoWorker(CROWDED)
        return self._house.admit(exchange)

    def received(self, exchange: Exchange) -> None:
        """A request is complete: serve it, after those before it. Raises DoorError."""
        if self._answering is None and not self._full and self._refused < AT_ONCE:
            if self._begin(exchange):
                self._next()
        elif len(self._waiting) < PIPELINED:
            self._waiting.append(exchange)
            if self._transport is not None and self._far_ahead():
                self._transport.pause_reading()
        else:
            raise BadRequest("Too many requests were sent before the first was answered.")

    def _far_ahead(self) -> bool:
        """Enough waits. Not the first one: only who reads notices that a client leaves."""
        bodies = sum(len(exchange.body) for exchange in self._waiting)
        return len(self._waiting) > PIPELINED // 2 or (len(self._waiting) > 1 and bodies > AHEAD)

    # Answering, in order.

    def _begin(self, exchange: Exchange) -> bool:
        """Answer it, now or later; True if it is the next one's turn already."""
        self._answering = exchange
        self.deadline = NEVER
        if exchange.refusal is None:
            exchange.task = self._loop.create_task(self._house.serve(exchange))
            return False
        if not self._refused:
            self._loop.call_soon(self._others_had_their_turn)
        self._refused += 1
        self._house.unserved(exchange, exchange.refusal.status, exchange.refusal.message)
        exchange.refuse(exchange.refusal)
        return not (self._closing or self._full)

    def _others_had_their_turn(self) -> None:
        """Go on with what waits for that alone."""
        self._refused = 0
        if self._answering is None and self._waiting and not self._full:
            self._next()

    def _continue(self) -> None:
        """Tell a client that waits for it to send the body (RFC 9110 section 10.1.1)."""
        if self._reader.expects:
            self._reader.expects = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the client takes them."""
        if self._transport is not None and not self._closing:
            self._transport.write(data)

    def finished(self, exchange: Exchange) -> None:
        """An answer is complete; what waited is next.

        After a refusal, it is for whoever began with it: to go on here would go ever deeper.
        """
        self._answering = self._source = None
        if self._closing:
            return
        if self._ending or not exchange.keep:
            self.close(answered=True)
        elif not self._full and exchange.refusal is None:
            self._next()

    def _next(self) -> None:
        """Begin with what waited, once the client takes what it was answered before."""
        while self._waiting and self._refused < AT_ONCE:
            answered = self._begin(self._waiting.popleft())
            if not self._waiting and self._transport is not None:
                self._transport.resume_reading()
            if not answered:
                return
        if self._waiting:
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self._continue()
            self.deadline = self._loop.time() + self._patience()

    def _patience(self) -> float:
        """Seconds that the client may take for what it does now."""
        if self._reader.in_head:
            return self._bounds.header_s
        reading = self._reader.current is not None
        return self._bounds.body_s if reading else self._bounds.keepalive_s

    def feed_from(self, source: Source | None) -> None:
        """Let `source` be paused while the client is slow."""
        self._source = source
        if source is not None and self._full:
            source.pause()

    def _refuse(self, error: DoorError) -> None:
        """Answer what was not understood, after the answers that are owed; then close."""
        self._deaf = True
        self._refusal = parted(error)
        if self._answering is not None or self._waiting or self._closing:
            return
        exchange = self._reader.current or Exchange(self, self._reader.unread(), keep=False)
        self._reader.current = None
        exchange.keep = False
        exchange.refuse(error)
        self._house.unserved(exchange, error.status, error.message)

    # Closing.

    def close(self, *, answered: bool = False) -> None:
        """Close once everything is sent.

        Where it was `answered` just now, or refused, a client that still sends is listened to for a
        while: with something unread, our answer might be lost (RFC 9112 section 9.6).
        """
        self._deaf = self._closing = True
        self._waiting.clear()  # they were never begun, and the client can tell
        transport = self._transport
        if transport is None:
            return
        now = self._loop.time()
        self._late, self.deadline = now + self._bounds.write_s, now + LINGER_S
        if transport.is_closing():
            return
        self._unsent = untaken(transport)
        if (answered or self._refusal is not None) and transport.can_write_eof():
            transport.write_eof()
        else:  # TLS passes over what the client still sends, until it closes
            transport.close()

    def cut(self, *, framed: bool) -> None:
        """Close after what has been sent; the answer has no end, and the client can tell.

        Where nothing but the end of the connection tells the end, it is reset instead.
        """
        self._answering = self._source = None
        self._refusal = None
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
        """Wait no longer for the answer: whoever works on it is cancelled, and may say so."""
        if self._answering is not None and self._answering.task is not None:
            self._answering.task.cancel()
        elif self.busy and not self._closing:
            self._refuse(NoWorker("This server is being stopped."))
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
        if self._closing:
            self._part(transport, now)
        elif self._full:
            unsent = transport.get_write_buffer_size()
            if unsent < self._unsent:  # it takes something, if slowly
                self._unsent, self._late = unsent, now + self._bounds.write_s
            # (Of an end without a farewell TLS tells nobody, and waits until all is taken.)
            if now >= self._late or has_ended(transport.get_extra_info("socket")):
                transport.abort()
            else:
                self.deadline = min(now + LINGER_S, self._late)
        elif self._reader.in_head or self._reader.current is not None:
            self._refuse(TooSlow("The request did not arrive in time."))
        else:
            self.close()  # idle

    def _part(self, transport: asyncio.Transport, now: float) -> None:
        """Everything is said: close when the client has taken it, and when it takes no more."""
        before, self._unsent = self._unsent, untaken(transport)
        if self._unsent < before:
            self._late = now + self._bounds.write_s
        if before == 0 or now >= self._late:  # a farewell may be left, which nobody has to take
            transport.abort()
        else:
            self.deadline = min(now + LINGER_S, self._late)

    @property
    def busy(self) -> bool:
        """A request is being read or answered."""
        reader = self._reader
        return self._answering is not None or reader.current is not None or reader.in_head
