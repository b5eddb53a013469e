"""One HTTP/1.1 connection to a worker, one request at a time.

httptools (llhttp) parses; streaming, back pressure and cancellation are ours, because they are
what a reverse proxy is for. An answer is taken in pieces with `chunk`, or flows into a sink as it
arrives: then one read from the worker is one write to the client, and no task wakes up for it.
Nothing is read from the worker faster than the client takes it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

import httptools

from router.answer_head import Head
from router.errors import Garbled, Gone, Headers, Refused, Silent, Stale, WorkerError
from router.recall import Recall

HIGH_WATER = 256 * 1024
SMALL = 32 * 1024
#: What a worker may send until its headers are complete; one read brings up to 256 KiB.
HEAD_LIMIT = 512 * 1024
#: A kept connection that ends within so many looks (`check`) after a request was sent was being
#: closed as idle: the two crossed on the way. Later, the worker may have begun. Not in seconds,
#: because what ended while this process was not listening, for want of a core, ended back then.
CROSSING_LOOKS = 3
NEVER = float("inf")

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


#: Takes the place of a parser that is not needed any more.
_DEAF = httptools.HttpResponseParser(object())


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
        self._parser = httptools.HttpResponseParser(self)
        self._recall: Recall[Head] = recall or Recall()
        self._transport: asyncio.Transport | None = None
        self._error: WorkerError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._reused = False
        self._spoilt = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        """Forget the last exchange."""
        self._headers: Headers = []
        self._head_size = 0
        self._framed = False
        self._length: int | None = None
        self._interim = False
        self._head: Head | None = None
        self._chunks: list[bytes] = []
        self._unread = 0
        self._sink: Sink | None = None
        self._paused = False
        self._got_any = False
        self._complete = False
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
            raise Refused("closed the connection before it was asked")
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
        assert self._head is not None  # noqa: S101 - `ask` waits for more than this
        return self._head

    def first(self) -> bytes:
        """Return what of the body there is once `ask` has returned; empty if it has none."""
        data = self._take() if self._chunks else b""
        if self._paused:  # nobody had taken anything yet
            self.resume()
        return data

    async def chunk(self) -> bytes:
        """Wait for more of the body and return all there is; empty at its end. Or raise."""
        while not self._chunks:
            if self._complete:
                return b""
            await self._news()
        data = self._take()
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
            while not self._complete:
                await self._news()
        finally:
            self._sink = None

    def pause(self) -> None:
        """Read no more from the worker: it is the client who is slow."""
        if not (self._paused or self._closed or self._complete) and self._transport is not None:
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
        return self._complete and not self._chunks

    def release(self) -> bool:
        """Make ready for another request; False (and closed) if that cannot be."""
        whole = self._complete and not (self._chunks or self._spoilt or self._error)
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
        if now < self._deadline or self._complete:
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
        if self._complete or self._chunks:
            return True
        return self._head is not None and self._head.status == 503

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _take(self) -> bytes:
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread = 0
        return data

    def _pour(self) -> None:
        if self._sink is not None and (self._chunks or self._complete):
            self._sink(self._take(), self._complete)

    def _fail(self, error: WorkerError) -> None:
        if self._error is None and not self._complete:
            self._error = error
        self.close()
        self._wake()

    def _loss(self) -> WorkerError:
        crossed = self._looks < CROSSING_LOOKS
        if self._reused and crossed and not self._got_any:
            return Stale("closed a kept connection")
        if self._head is None:
            return Gone("closed the connection before it answered")
        return Gone("closed the connection before its answer ended")

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        if not self._asked or self._complete:
            self.close()  # nobody asked: this connection cannot be trusted any more
            return
        if self._got_any:
            self._parse(data)
        else:
            self._got_any = True
            known = self._recall.find(data)
            if known is not None and not known[2]:
                self._again(known[0], known[1])
                return
            self._parse(data)
            if self._is_plain():
                self._recall.keep(data, self.head)
        if self._sink is not None:
            self._pour()
        elif self._unread > HIGH_WATER:
            self.pause()
        if self._ready():
            self._wake()

    def _parse(self, data: bytes) -> None:
        if self._head is None:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT:
                self._fail(Garbled("sent headers without end"))
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Garbled("wants to switch protocols"))
        except (httptools.HttpParserError, httptools.HttpParserCallbackError) as error:
            self._fail(Garbled(f"sent something that is not HTTP ({error})"))

    def _again(self, head: Head, body: bytes) -> None:
        """A whole answer whose head was parsed before."""
        self._head = head
        self._complete = True
        if body:
            self._chunks.append(body)
        self._wake()

    def _is_plain(self) -> bool:
        """A whole answer of which nothing but the length may differ next time."""
        if not self._complete or self._closed or self._spoilt or self._error:
            return False
        if self._interim or self._length is None:
            return False
        return self.head.status not in {204, 304}

    def eof_received(self) -> bool:
        """The worker has sent all it will; close our side too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by either side. An answer without framing ends here (RFC 9112 section 6.3)."""
        self._closed = True
        if self._head is not None and not self._framed and exc is None and self._error is None:
            self._complete = True
            self._pour()
        if self._asked and not self._complete:
            self._fail(self._loss())
        self._wake()
        self._parser, self._transport = _DEAF, None  # they hold us, and nothing more will come

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A message begins; one that nobody asked for spoils the connection, not the answer."""
        if self._complete:
            self._spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field."""
        if self._head is not None:
            return  # a trailer, or of a message that nobody asked for
        name = name.lower()
        if name == b"content-length":
            self._framed = True
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """All header fields are there. Interim answers (1xx) are dropped."""
        if self._complete:
            return
        status = self._parser.get_status_code()
        if not 100 <= status < 600:  # RFC 9110 section 15
            raise ValueError(f"status {status}")
        if status >= 200:
            self._head = Head(status, self._headers, self._length)
        else:  # what it tells of itself is not told of the answer
            self._framed, self._length, self._interim = False, None, True
        self._headers = []

    def on_body(self, data: bytes) -> None:
        """A piece of the body, its framing taken off."""
        if self._complete:
            return
        self._chunks.append(data)
        self._unread += len(data)
        if not self._paused:
            self._deadline = min(self._loop.time() + self._patience.idle, self._latest)

    def on_message_complete(self) -> None:
        """The answer's last byte."""
        if self._head is None or self._complete:
            return
        self._complete = True
        if not self._parser.should_keep_alive():
            self._closed = True
            if self._transport is not None:
                self._transport.close()
