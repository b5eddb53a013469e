"""One HTTP/1.1 connection to a worker, one request at a time.

Streaming, back pressure and cancellation are our own code, because they are what a reverse proxy
is for; `response.py` parses the bytes. An answer is taken in pieces with `chunk`, or it flows
into a sink as it arrives: then one read from the worker is one write to the client, and no task
wakes up for it. Nothing is read from the worker faster than the client takes it.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Self, cast

from router.http.parser import Recall
from router.http.sockets import enable_keepalive, send_queue_bytes
from router.http.sse import only_comments
from router.http.tls import turned_away
from router.settings.server import TimeoutSettings
from router.upstream.errors import ConnectionLost, Refused, ResponseTimeout, Stale, WorkerError
from router.upstream.faults import begins
from router.upstream.response import ResponseHead, ResponseParser

NEVER: Final = inf
HIGH_WATER: Final = 256 * 1024
MAX_COPIED_BODY_BYTES: Final = 32 * 1024
#: If a kept connection ends within so many calls of `check` after a request was sent, the worker
#: was closing it as idle and the two crossed on the way. Later, it may have started the request.
#: Not in seconds, because a process that got no CPU meanwhile would see an early close late.
STALE_CHECKS: Final = 3
#: Calls of `check` without a byte after which a stream that has had its last event is over, though
#: its worker does not say so.
ENDING_CHECKS: Final = 3

#: Called with a piece of an answer, and whether it is the last one.
Sink = Callable[[bytes, bool], None]


class UpstreamConnection(asyncio.Protocol):
    """One connection. Call `ask`, then `flow`, or `chunk` until it returns nothing."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeouts: TimeoutSettings,
        recall: Recall[ResponseHead] | None = None,
    ) -> None:
        """`recall` remembers the worker's last answer head, on any of its connections."""
        self._loop = loop
        self._timeouts = timeouts
        self._answer = ResponseParser()
        self._recall: Recall[ResponseHead] = recall or Recall()
        self._transport: asyncio.Transport | None = None
        self._error: WorkerError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.address = ""
        """The IP address it is connected to."""
        self._closed = False
        self._reused = False
        self._secure = self._got_eof = False
        """Whether TLS is used; whether the worker has signalled the end of what it sends."""
        self._descriptor = -1
        self._certificate_rejected: str | None = None
        """How the worker said that it rejects the client certificate; None if it did not."""
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        """Forget the last exchange."""
        self._answer.reset()
        self._sink: Sink | None = None
        self.paused = False
        self._got_any = False
        self._over: Callable[[], bool] | None = None
        self._asked = self._large = False
        self._quiet_checks = 0
        self._deadline = NEVER
        self._latest = NEVER

    # Called by the proxy.

    async def ask(self, head: bytes, body: bytes) -> Self:
        """Send a request; wait for the head of the answer and the first byte of its body.

        Raises WorkerError. On any exception, cancellation included, the connection is closed.
        """
        if self._closed and not self._reused:
            raise Refused(self._certificate_rejected or "closed the connection before it was asked")
        self.expect()
        try:
            if self._transport is not None and not self._closed:
                if len(body) < MAX_COPIED_BODY_BYTES:  # one copy is cheaper than a second buffer
                    self._transport.write(head + body)
                else:
                    self._large = True
                    self._transport.writelines((head, body))
            while not self._begun():
                await self._progress()
        except BaseException:
            self.close()
            raise
        return self

    def expect(self) -> None:
        """Reset the state and start the deadlines of a new request."""
        self._reset()
        self._asked = True
        now = self._loop.time()
        self._latest = now + (self._timeouts.total or NEVER)
        self._deadline = min(now + self._timeouts.first_byte, self._latest)

    @property
    def head(self) -> ResponseHead:
        """Status and headers of the answer, once `ask` has returned."""
        head = self._answer.head
        assert head is not None  # noqa: S101 - `ask` waits for more than this
        return head

    @property
    def commented(self) -> bool:
        """Whether the part of the body that has arrived, not taken yet, is SSE comments only."""
        chunks = self._answer.chunks
        if not chunks or chunks[0][:1] != b":":
            return False
        return self.head.stream and only_comments(b"".join(chunks))

    @property
    def errs(self) -> bool:
        """Whether the body, of which nothing was taken yet, begins with an error event."""
        chunks = self._answer.chunks
        return self.head.stream and bool(chunks) and begins(chunks[0])

    def first(self) -> bytes:
        """Return the part of the body that has arrived when `ask` returns; empty if it has none."""
        data = self._answer.take()
        if self.paused:  # too much had arrived before anything was taken
            self.resume()
        return data

    async def chunk(self) -> bytes:
        """Wait for more of the body and return it; empty at its end. Raises WorkerError."""
        answer = self._answer
        while not answer.chunks:
            if answer.complete:
                return b""
            await self._progress()
        data = answer.take()
        if self.paused:
            self.resume()
        return data

    async def flow(self, sink: Sink, over: Callable[[], bool] | None = None) -> None:
        """Pass the answer to `sink` as it arrives, until its end. Raises WorkerError.

        The sink is never called again after `flow` has ended. The receiver of the bytes is to
        pause and resume the connection. When nothing arrives for a moment, `over` is asked whether
        anything should: if not, the worker is waited for no longer.
        """
        self._sink, self._over = sink, over
        try:
            self._flush()
            while not self._answer.complete:
                await self._progress()
        finally:
            self._sink = self._over = None

    def pause(self) -> None:
        """Stop reading from the worker; a slow client does not count as idle time of the worker."""
        reading = not (self.paused or self._closed or self._answer.complete)
        if reading and self._transport is not None:
            self.paused = True
            self._deadline = self._latest
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if self.paused:
            self.paused = False
            self._quiet_checks = 0  # meanwhile nothing could arrive
            self._deadline = min(self._loop.time() + self._timeouts.idle, self._latest)
            if self._transport is not None and not self._closed:
                self._transport.resume_reading()

    @property
    def finished(self) -> bool:
        """Whether the whole answer has arrived and was taken."""
        return self._answer.complete and not self._answer.chunks

    @property
    def begins(self) -> bytes:
        """The part of the body that has arrived and was not taken yet."""
        return b"".join(self._answer.chunks)

    def release(self) -> bool:
        """Make ready for another request; if that is impossible, close and return False."""
        whole = self.finished and not (self._answer.spoilt or self._error)
        if whole and not self._closed and not self._unsent():
            self._reused = True
            self.idle_since = self._loop.time()
            self._asked = False
            return True
        self.close()
        return False

    def _unsent(self) -> bool:
        """Whether the worker may have answered before it took the whole request.

        The next one would wait behind the rest (RFC 9112 section 9.5). What has left our buffer may
        still be in the system's, and with TLS in that of a transport below (`sockets.py`). An
        answer acknowledges what arrived before it, so after one to a whole request nothing is left.
        413 says that a part was not read (RFC 9110 section 15.5.14), wherever that is by now.
        """
        transport = self._transport
        if transport is None:
            return False
        if transport.get_write_buffer_size() > 0 or self.head.status == 413:
            return True
        if not (self._secure or self._large):
            return False
        return send_queue_bytes(self._descriptor) > 0

    def close(self) -> None:
        """Drop the connection at once; the worker sees that and stops computing."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        """Whether it is still open, as far as is known."""
        return not self._closed

    def heard_at(self, now: float) -> float:
        """Return when more of the answer came last, as far as its deadline tells; by the loop's
        clock, as `now`."""
        if self._answer.head is None or self.paused or self._deadline >= self._latest:
            return -inf
        return min(now, self._deadline - self._timeouts.idle)

    def fresh(self) -> bool:
        """Whether it is still open, as far as is known, and not idle for too long."""
        idle = self._loop.time() - self.idle_since
        return not self._closed and idle < self._timeouts.keepalive

    def check(self, now: float) -> None:
        """Fail if a deadline has passed. Called ten times a second while an answer is awaited."""
        self._quiet_checks += 1
        if self._answer.complete:
            return
        quiet = self._quiet_checks == ENDING_CHECKS and not self.paused
        if quiet and self._over is not None and self._over():
            self._fail(ResponseTimeout("did not end its answer"))
        elif now >= self._deadline:
            late = now >= self._latest
            self._fail(
                ResponseTimeout("took too long in all" if late else "sent nothing for too long")
            )

    # Waiting.

    def _progress(self) -> asyncio.Future[None]:
        """Return a future that is done when more of the answer, or its end, has arrived.

        Raises WorkerError if nothing more will come.
        """
        if self._error is not None:  # a new instance: a kept traceback would hold this object
            raise type(self._error)(*self._error.args)
        if self._closed:
            raise self._loss()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _ready(self) -> bool:
        """Whether there is a reason to wake the waiting task."""
        return self._error is not None or self._begun()

    def _begun(self) -> bool:
        """Whether there is something to relay; for 503, a full worker, the head is enough."""
        answer = self._answer
        if answer.complete or answer.chunks:
            return True
        return answer.head is not None and answer.head.status == 503

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _flush(self) -> None:
        answer = self._answer
        if self._sink is not None and (answer.chunks or answer.complete):
            self._sink(answer.take(), answer.complete)

    def _fail(self, error: WorkerError) -> None:
        if self._error is None and not self._answer.complete:
            self._error = error
        self.close()
        self._wake()

    def _loss(self) -> WorkerError:
        if self._certificate_rejected is not None and not self._reused:
            return Refused(self._certificate_rejected)
        crossed = self._quiet_checks < STALE_CHECKS
        if self._reused and crossed and not self._got_any:
            return Stale("closed a kept connection")
        if self._answer.head is None:
            return ConnectionLost("closed the connection before it answered")
        return ConnectionLost("closed the connection before its answer ended")

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the established transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._secure = transport.get_extra_info("ssl_object") is not None
        connection = transport.get_extra_info("socket")
        self._descriptor = connection.fileno() if connection is not None else -1
        enable_keepalive(connection)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer."""
        answer = self._answer
        if not self._asked or answer.complete:
            self.close()  # unsolicited bytes: the connection cannot be trusted any more
            return
        if self._got_any:
            self._read(data)
        else:
            self._got_any = True
            known = self._recall.find(data)
            if known is not None and not known[2]:
                answer.again(known[0], known[1])
                self._wake()
                return
            self._read(data)
            if answer.plain and not self._error:
                self._recall.keep(data, self.head)
        if self._sink is not None:
            self._flush()
        elif answer.unread > HIGH_WATER:
            self.pause()
        if self._ready():
            self._wake()

    def _read(self, data: bytes) -> None:
        answer = self._answer
        self._quiet_checks = 0
        unread = answer.unread
        wrong = answer.feed(data)
        if answer.unread > unread and not self.paused:
            self._deadline = min(self._loop.time() + self._timeouts.idle, self._latest)
        if wrong is not None:
            self._fail(wrong)
        elif answer.last and answer.complete:
            self._closed = True
            if self._transport is not None:
                self._transport.close()

    def eof_received(self) -> bool:
        """Note that the worker sends no more, and close our side too."""
        self._got_eof = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the close by either side; it ends an answer whose framing marks no other end."""
        self._closed = True
        self._certificate_rejected = turned_away(exc)
        cut = exc is not None or (self._secure and not self._got_eof)  # RFC 9112 section 9.8
        if not cut and self._error is None and self._answer.end():
            self._flush()
        if self._asked and not self._answer.complete:
            self._fail(self._loss())
        self._wake()
        self._answer.drop()
        self._transport = None
