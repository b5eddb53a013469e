"""httpx's plain HTTP/1.1 with little work an event, so that the generator leaves the CPU to others.

httpx's own transport takes about 100 us for every event of a stream; an answer has hundreds of
them, and the fleet under test often shares the machine. This one parses with llhttp and hands over
what one read brought as one chunk. Connections are kept for the next request, the newest first.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from time import perf_counter

import httptools
import httpx

_MUCH = 1024 * 1024  # bytes read ahead of who reads them, before the socket has to wait


class LeanTransport(httpx.AsyncBaseTransport):
    """Sends requests over HTTP/1.1 without TLS; as many connections as there are requests."""

    def __init__(self, *, connect_s: float, keepalive_s: float) -> None:
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._idle: defaultdict[tuple[str, int], deque[_Connection]] = defaultdict(deque)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer once the headers are there."""
        origin = (request.url.host, request.url.port or 80)
        body = await request.aread()
        connection = self._kept(origin) or await self._connected(origin, request)
        try:
            connection.send(_head(request) + body)
            await connection.headers_read()
        except BaseException:
            connection.close()
            raise
        stream = _Body(connection, self._idle[origin])
        return httpx.Response(connection.status, headers=connection.headers, stream=stream)

    async def aclose(self) -> None:
        """Close the connections that nobody uses."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def _kept(self, origin: tuple[str, int]) -> "_Connection | None":
        idle = self._idle[origin]
        oldest = perf_counter() - self._keepalive_s
        while idle and idle[0].idle_since < oldest:
            idle.popleft().close()
        while idle:
            if (connection := idle.pop()).is_reusable():
                return connection
        return None

    async def _connected(self, origin: tuple[str, int], request: httpx.Request) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(_Connection, *origin)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time", request=request) from error
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        return connection


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: "_Connection", idle: "deque[_Connection]") -> None:
        self._connection = connection
        self._idle = idle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._connection.read():
            yield chunk

    async def aclose(self) -> None:
        if self._connection.is_reusable():
            self._connection.idle_since = perf_counter()
            self._idle.append(self._connection)
        else:
            self._connection.close()


class _Connection(asyncio.Protocol):
    """A connection with at most one request on it; also what llhttp calls back."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._ahead = 0
        self._complete = False
        self._reusable = False
        self._error: httpx.TransportError | None = None

    def send(self, request: bytes) -> None:
        """Write a whole request."""
        self._begin()
        if self._transport is None or self._transport.is_closing():
            raise httpx.WriteError("the connection is closed")
        self._transport.write(request)

    async def headers_read(self) -> None:
        """Wait for status and headers."""
        while not self.status:
            await self._something()

    async def read(self) -> bytes:
        """Return all bytes of the body that are there, or none at its end."""
        while not self._parts:
            if self._complete:
                return b""
            await self._something()
        chunk = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._ahead >= _MUCH and self._transport:
            self._transport.resume_reading()
        self._ahead = 0
        return chunk

    def is_reusable(self) -> bool:
        """Whether the answer is read to its end and the connection may carry another."""
        closing = self._transport is None or self._transport.is_closing()
        return self._complete and self._reusable and not self._parts and not closing

    def close(self) -> None:
        """Give the connection up, whatever is still on it."""
        if self._transport:
            self._transport.abort()

    async def _something(self) -> None:
        if self._error:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's, by create_connection

    def data_received(self, data: bytes) -> None:
        if self._complete:  # nothing was asked: what follows could only be taken for an answer
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = httpx.RemoteProtocolError(f"not HTTP: {error}")
            self.close()
        if self._ahead >= _MUCH and self._transport and not self._transport.is_closing():
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.status and not self._complete and not self._is_framed():
            self._complete = True  # RFC 9112, 6.3: such a body ends with the connection
        elif not self._complete and not self._error:
            what = "the answer ended" if self.status else "an answer"
            self._error = httpx.RemoteProtocolError(
                f"the server closed the connection before {what}" + (f": {exc}" if exc else "")
            )
        self._wake()

    def _is_framed(self) -> bool:
        framing = (b"content-length", b"transfer-encoding")
        return any(name.lower() in framing for name, _ in self.headers)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._reusable = self._parser.should_keep_alive()
        if status >= 200:
            self.status = status
        else:
            self.headers = []  # 1xx: the answer is still to come

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._ahead += len(body)

    def on_message_complete(self) -> None:
        self._complete = self.status > 0


def _head(request: httpx.Request) -> bytes:
    line = b"%s %s HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
    return line + b"".join(b"%s: %s\r\n" % pair for pair in request.headers.raw) + b"\r\n"
