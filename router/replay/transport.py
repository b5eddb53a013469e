"""The router's own connections to workers, as a transport for httpx.

httpx's own transport takes about 100 µs for every event of a stream. An answer has hundreds of
them, and the fleet under test often shares the machine. This one returns all bytes of one read as
one chunk, and so leaves more CPU to the fleet.
"""

import ssl
from collections.abc import AsyncIterator

import httpx

from router.upstream.connection import Connection
from router.upstream.errors import Refused, Silent, WorkerError
from router.upstream.pool import Upstream
from router.upstream.timeouts import Patience


class LeanTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 with as many connections as there are concurrent requests."""

    def __init__(self, patience: Patience, trust: ssl.SSLContext | None = None) -> None:
        """`trust` is the context for https, by default one that trusts the system's roots."""
        self._patience = patience
        self._trust = trust
        self._upstreams: dict[tuple[str, str, int | None], Upstream] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer once the body begins."""
        body = await request.aread()
        upstream = self._upstream(request.url)
        try:
            connection = await upstream.ask(_head(request), body)
            head = connection.head
        except WorkerError as error:
            raise _translated(error, request) from error
        stream = _Body(connection, upstream, request)
        return httpx.Response(head.status, headers=head.headers, stream=stream)

    async def aclose(self) -> None:
        """Close all idle connections."""
        for upstream in self._upstreams.values():
            upstream.close()

    def _upstream(self, url: httpx.URL) -> Upstream:
        origin = (url.scheme, url.host, url.port)
        if origin not in self._upstreams:
            tls = None
            if url.scheme == "https":
                tls = self._trust or ssl.create_default_context()
            port = url.port or (443 if tls else 80)
            self._upstreams[origin] = Upstream(url.host, port, tls=tls, patience=self._patience)
        return self._upstreams[origin]


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: Connection, upstream: Upstream, request: httpx.Request) -> None:
        self._connection = connection
        self._upstream = upstream
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._connection.chunk():
                yield chunk
        except WorkerError as error:
            raise _translated(error, self._request) from error

    async def aclose(self) -> None:
        self._upstream.release(self._connection)


def _translated(error: WorkerError, request: httpx.Request) -> httpx.TransportError:
    if isinstance(error, Refused):
        return httpx.ConnectError(str(error), request=request)
    if isinstance(error, Silent):
        return httpx.ReadTimeout(str(error), request=request)
    return httpx.RemoteProtocolError(f"the server {error}", request=request)


def _head(request: httpx.Request) -> bytes:
    line = b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
    return line + b"".join(b"%b: %b\r\n" % pair for pair in request.headers.raw) + b"\r\n"
