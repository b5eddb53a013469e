"""One HTTP/1.1 connection to a worker, one request at a time.

Streaming, back pressure and cancellation are ours, because they are what a reverse proxy is for;
`answer_reader.py` says what the bytes mean. An answer is taken in pieces with `chunk`, or flows
into a sink as it arrives: then one read from the worker is one write to the client, and no task
wakes up for it. Nothing is read from the worker faster than the client takes it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, cast

from router.answer_head import Head
from router.answer_reader import AnswerReader
from router.errors import Gone, Refused, Silent, Stale, WorkerError
from router.lifeline import watch
from router.recall import Recall
from router.tls import turned_away

HIGH_WATER: Final = 256 * 1024
SMALL: Final = 32 * 1024
#: A kept connection that ends within so many looks (`check`) after a request was sent was being
#: closed as idle: the two crossed on the way. Later, the worker may have begun. Not in seconds,
#: because what ended while this process was not listening, for want of a core, ended back then.
CROSSING_LOOKS: Final = 3
NEVER: Final = float("inf")

#: Takes a piece of an answer, and whether it is the last one.
Sink = Callable[[bytes, bool], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a worker, in seconds."""

    connect: float
    first_byte: float
    """Until the first byte of the body."""
    idle: float
    """Between two reads after it."""
    keepalive: float
    """How long an unused connection is kept; below the worker's own limit, or the two race."""
    total: float = NEVER
    """For the whole answer."""


class Connection(asyncio.Protocol):
    """One connection. `ask`, then `flow`, or `chunk` until it is empty."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        patience: Patience,
        recall: Recall[Head] | None = None,
    ) -> None:
        """`recall` is what its worker said last, on whichever connection."""
        self._loop = loop
        self._patience = patience
        self._answer = AnswerReader()
        self._recall: Recall[Head] = recall or Recall()
        self._transport: asyncio.Transport | None = None
        self._error: WorkerError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.address = ""
        """Where it leads."""
        self._closed = False
        self._reused = False
        self._secure = self._said_so = False
        """It is encrypted, and the worker has told the end of what it sends."""
        self._turned_away: str | None = None
        """It did not accept what it was shown, and how it said so."""
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        """Forget the last exchange."""
        self._answer.reset()
        self._sink: Sink | None = None
        self._paused = False
        self._got_any = False
        self._asked = False
        self._looks = 0
        self._deadline = NEVER
        self._latest = NEVER

    # What the proxy calls.

    async def ask(self, head: bytes, body: bytes) -> Self:
        """Send a request; wait for the head of the answer and the first byte of its body.

        When anything is raised, a WorkerError or a cancellation, the connection is closed.
        """
        if self._closed and not self._reused:
            raise Refused(self._turned_away or "closed the connection before it was asked")
        self.expect()
        try:
            if self._transport is not None and not self._closed:
                if len(body) < SMALL:  # copying is cheaper than a second buffer
                    self._transport.write(head + body)
                else:
                    self._transport.writelines((head, body))
            while not self._begun():
                await self._news()
        except BaseException:
            self.close()
            raise
        return self

    def expect(self) -> None:
        """From now on the worker is to answer."""
        self._reset()
        self._asked = True
        now = self._loop.time()
        self._latest = now + self._patience.total
        self._deadline = min(now + self._patience.first_byte, self._latest)

    @property
    def head(self) -> Head:
        """Status and headers of the answer, once `ask` has returned."""
        head = self._answer.head
        assert head is not None  # noqa: S101 - `ask` waits for more than this
        return head

    def first(self) -> bytes:
        """Return what of the body there is once `ask` has returned; empty if it has none."""
        data = self._answer.take()
        if self._paused:  # nobody had taken anything yet
            self.resume()
        return data

    async def chunk(self) -> bytes:
        """Wait for more of the body and return all there is; empty at its end. Or raise."""
        answer = self._answer
        while not answer.chunks:
            if answer.complete:
                return b""
            await self._news()
        data = answer.take()
        if self._paused:
            self.resume()
        return data

    async def flow(self, sink: Sink) -> None:
        """Pour the answer into `sink` as it arrives, until its end. Raises a WorkerError.

        The sink is never called again after `flow` has ended. Whoever takes the bytes pauses
        and resumes the connection.
        """
        self._sink = sink
        try:
            self._pour()
            while not self._answer.complete:
                await self._news()
        finally:
            self._sink = None

    def pause(self) -> None:
        """Read no more from the worker: it is the client who is slow."""
        reading = not (self._paused or self._closed or self._answer.complete)
        if reading and self._transport is not None:
            self._paused = True
            self._deadline = self._latest
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            self._deadline = min(self._loop.time() + self._patience.idle, self._latest)
            if self._transport is not None and not self._closed:
                self._transport.resume_reading()

    @property
    def finished(self) -> bool:
        """The whole answer has arrived and been taken."""
        return self._answer.complete and not self._answer.chunks

    def release(self) -> bool:
        """Make ready for another request; False (and closed) if that cannot be."""
        whole = self.finished and not (self._answer.spoilt or self._error)
        if whole and not self._closed and not self._unsent():
            self._reused = True
            self.idle_since = self._loop.time()
            self._asked = False
            return True
        self.close()
        return False

    def _unsent(self) -> bool:
        """The worker answered before it took the whole request: the rest is still to come."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def close(self) -> None:
        """Drop the connection at once: the worker sees it and stops."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        """Still open, as far as we have been told."""
        return not self._closed

    def fresh(self) -> bool:
        """Still open, as far as we have been told, and not idle for too long."""
        idle = self._loop.time() - self.idle_since
        return not self._closed and idle < self._patience.keepalive

    def check(self, now: float) -> None:
        """Fail if the worker is late. Called ten times a second while it is asked."""
        self._looks += 1
        if now < self._deadline or self._answer.complete:
            return
        late = now >= self._latest
        self._fail(Silent("took too long in all" if late else "sent nothing for too long"))

    # Waiting.

    def _news(self) -> asyncio.Future[None]:
        """Something to wait for: more of the answer, or its end. Raises when there is none."""
        if self._error is not None:  # a new one: its traceback leads to us
            raise type(self._error)(*self._error.args)
        if self._closed:
            raise self._loss()
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _ready(self) -> bool:
        """Whoever waits has something to wake up for."""
        return self._error is not None or self._begun()

    def _begun(self) -> bool:
        """There is something to relay; of a worker that is full, the status says enough."""
        answer = self._answer
        if answer.complete or answer.chunks:
            return True
        return answer.head is not None and answer.head.status == 503

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _pour(self) -> None:
        answer = self._answer
        if self._sink is not None and (answer.chunks or answer.complete):
            self._sink(answer.take(), answer.complete)

    def _fail(self, error: WorkerError) -> None:
        if self._error is None and not self._answer.complete:
            self._error = error
        self.close()
        self._wake()

    def _loss(self) -> WorkerError:
        if self._turned_away is not None and not self._reused:
            return Refused(self._turned_away)
        crossed = self._looks < CROSSING_LOOKS
        if self._reused and crossed and not self._got_any:
            return Stale("closed a kept connection")
        if self._answer.head is None:
            return Gone("closed the connection before it answered")
        return Gone("closed the connection before its answer ended")

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)
        self._secure = transport.get_extra_info("ssl_object") is not None
        watch(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        answer = self._answer
        if not self._asked or answer.complete:
            self.close()  # nobody asked: this connection cannot be trusted any more
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
            self._pour()
        elif answer.unread > HIGH_WATER:
            self.pause()
        if self._ready():
            self._wake()

    def _read(self, data: bytes) -> None:
        answer = self._answer
        unread = answer.unread
        wrong = answer.feed(data)
        if answer.unread > unread and not self._paused:
            self._deadline = min(self._loop.time() + self._patience.idle, self._latest)
        if wrong is not None:
            self._fail(wrong)
        elif answer.last and answer.complete:
            self._closed = True
            if self._transport is not None:
                self._transport.close()

    def eof_received(self) -> bool:
        """The worker has sent all it will; close our side too."""
        self._said_so = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by either side, which ends an answer that nothing else ends."""
        self._closed = True
        self._turned_away = turned_away(exc)
        cut = exc is not None or (self._secure and not self._said_so)  # RFC 9112 section 9.8
        if not cut and self._error is None and self._answer.end():
            self._pour()
        if self._asked and not self._answer.complete:
            self._fail(self._loss())
        self._wake()
        self._answer.drop()
        self._transport = None
