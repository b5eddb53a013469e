"""One connection of a soak's client, which may read slowly, or leave."""

import asyncio
import socket
from time import monotonic
from typing import cast

import httptools

#: Room in the kernel for a client that reads slowly: the router is to feel it.
_SMALL_ROOM = 64 << 10


class Reply:
    """An answer, as far as it came."""

    __slots__ = ("began", "body", "complete", "ended", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        """0: there was none."""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False
        self.began = self.ended = 0.0


class Line(asyncio.Protocol):
    """One connection; asks one thing at a time, or several at once."""

    _transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._reply = Reply()
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self._pause = 0.0
        self._once = False
        self.closed = loop.create_future()
        """Done once it is."""
        self.told_to_go_on = asyncio.Event()
        """The server waits for the body."""
        self.used_at = 0.0
        self.pieces = 0
        """Pieces of a body that came."""
        self.news = asyncio.Event()
        """Set at every piece."""

    @classmethod
    async def open(cls, port: int, *, slow: float = 0.0, once: bool = False) -> "Line":
        """Connect; one that is `slow` rests so many seconds after every read, or after one."""
        loop = asyncio.get_running_loop()
        raw = socket.socket()
        try:
            raw.setblocking(False)
            if slow:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_ROOM)
            await loop.sock_connect(raw, ("127.0.0.1", port))
            _, line = await loop.create_connection(lambda: cls(loop), sock=raw)
        except BaseException:
            raw.close()
            raise
        line._pause, line._once = slow, once  # noqa: SLF001 - our own
        return line

    def send(self, *pieces: bytes) -> None:
        """Send bytes."""
        self._transport.writelines(pieces)

    async def reply(self) -> Reply:
        """Wait for the next answer, or for what there was of it when the connection ended."""
        return await self._replies.get()

    def leave(self) -> None:
        """Go, whatever is on its way."""
        self._transport.abort()

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        self._transport.write_eof()

    @property
    def open_still(self) -> bool:
        """It can be used again."""
        return not self.closed.done() and not self._transport.is_closing()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.leave()
        if self._pause:
            self._transport.pause_reading()
            self._loop.call_later(self._pause, self._go_on)
            if self._once:
                self._pause = 0.0

    def _go_on(self) -> None:
        if self.open_still:
            self._transport.resume_reading()

    def connection_lost(self, _exc: Exception | None) -> None:
        """What is there is all there will be."""
        self._deliver()
        if not self.closed.done():
            self.closed.set_result(None)
        self.told_to_go_on.set()
        self.news.set()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field."""
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """A head is there."""
        self._reply.status = self._parser.get_status_code()
        self._reply.began = monotonic()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(data)
        self.pieces += 1
        self.news.set()

    def on_message_complete(self) -> None:
        """An answer is complete."""
        if self._reply.status < 200:  # 100: the body is awaited
            self.told_to_go_on.set()
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
