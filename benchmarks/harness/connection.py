"""A client's connection in the soak, which may read slowly or disconnect."""

import asyncio
import socket
from time import monotonic
from typing import cast

import httptools

#: Receive buffer of a slow reader in bytes: small, so that the router sees the back pressure.
_SMALL_BUFFER_BYTES = 64 << 10


class Reply:
    """An answer, as far as it was received."""

    __slots__ = ("began", "body", "complete", "ended", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        """HTTP status; 0 if there was no answer."""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False
        self.began = self.ended = 0.0


class BenchConnection(asyncio.Protocol):
    """One connection, for one request at a time or several pipelined ones."""

    _transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._reply = Reply()
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self._pause_s = 0.0
        self._pauses_once = False
        self.closed = loop.create_future()
        """Done once the connection is closed."""
        self.continued = asyncio.Event()
        """Set on 100 Continue, or when the connection is closed."""
        self.used_at = 0.0
        self.pieces = 0
        """Number of body pieces received."""
        self.news = asyncio.Event()
        """Set at every piece, and when the connection is closed."""

    @classmethod
    async def open(cls, port: int, *, slow: float = 0.0, once: bool = False) -> "BenchConnection":
        """Connect; pause reading for `slow` seconds after every read, or after one if `once`."""
        loop = asyncio.get_running_loop()
        raw = socket.socket()
        try:
            raw.setblocking(False)
            if slow:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
            await loop.sock_connect(raw, ("127.0.0.1", port))
            _, connection = await loop.create_connection(lambda: cls(loop), sock=raw)
        except BaseException:
            raw.close()
            raise
        connection._pause_s, connection._pauses_once = slow, once  # noqa: SLF001 - our own
        return connection

    def send(self, *pieces: bytes) -> None:
        """Send bytes."""
        self._transport.writelines(pieces)

    async def reply(self) -> Reply:
        """Wait for the next answer; incomplete if the connection was closed."""
        return await self._replies.get()

    def abort(self) -> None:
        """Close at once, dropping unsent data."""
        self._transport.abort()

    def half_close(self) -> None:
        """Close the sending side."""
        self._transport.write_eof()

    @property
    def is_open(self) -> bool:
        """Return true if the connection can be used again."""
        return not self.closed.done() and not self._transport.is_closing()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of an answer, and pause reading if this client is slow."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
        if self._pause_s:
            self._transport.pause_reading()
            self._loop.call_later(self._pause_s, self._go_on)
            if self._pauses_once:
                self._pause_s = 0.0

    def _go_on(self) -> None:
        if self.is_open:
            self._transport.resume_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Deliver what was received, and wake everyone who waits."""
        self._deliver()
        if not self.closed.done():
            self.closed.set_result(None)
        self.continued.set()
        self.news.set()

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header field."""
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Keep the status and the time."""
        self._reply.status = self._parser.get_status_code()
        self._reply.began = monotonic()

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._pieces.append(data)
        self.pieces += 1
        self.news.set()

    def on_message_complete(self) -> None:
        """Deliver a complete answer."""
        if self._reply.status < 200:  # 100 Continue: the server waits for the body
            self.continued.set()
            self._reply = Reply()
            return
        self._reply.complete = True
        self._deliver()

    def _deliver(self) -> None:
        reply, self._reply = self._reply, Reply()
        reply.body = b"".join(self._pieces)
        self._pieces = []
        reply.ended = monotonic()
        self._replies.put_nowait(reply)
