"""A worker's HTTP server: uvicorn's protocol on a socket that can be closed and reopened.

`uvicorn.Server` runs once and takes over signals, but a simulated worker goes down and comes back,
and shares its process with others. So the protocol is served directly, as `uvicorn.Server` does.
"""

import asyncio
import socket
import struct
from collections.abc import Callable

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

#: vLLM's `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`, in seconds.
KEEP_ALIVE_S = 5

_LINGER_ZERO = struct.pack("ii", 1, 0)


class UvicornConnection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, which also reports when the connection is lost.

    A request handler finds it in the ASGI scope as `scope["state"]["connection"]`.
    """

    #: Called when the client disconnects; set by the request in progress.
    on_lost: Callable[[], None] | None = None
    #: Done once the connection is lost.
    gone: asyncio.Future[None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Prepare the `gone` future for a new connection."""
        self.gone = self.loop.create_future()
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        """Put the connection into the scope of a request that begins."""
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop at once what runs for the client, which is gone."""
        super().connection_lost(exc)
        self.gone.set_result(None)
        if self.on_lost is not None:
            self.on_lost()

    def write(self, data: bytes) -> None:
        """Write past ASGI; no effect once the connection is being closed."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def reset(self) -> None:
        """Close with a TCP reset, dropping unsent data."""
        raw: socket.socket | None = self.transport.get_extra_info("socket")
        if raw is not None and not self.transport.is_closing():
            with socket.fromfd(raw.fileno(), raw.family, raw.type) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self.transport.abort()


class UvicornListener:
    """Serves an ASGI application at one address; can be closed and opened repeatedly."""

    def __init__(self, app: ASGI3Application, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._config = Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = [(b"server", b"uvicorn")]
        self._server: asyncio.AbstractServer | None = None

    @property
    def connections(self) -> set[UvicornConnection]:
        """Return the open client connections."""
        return {each for each in self._state.connections if isinstance(each, UvicornConnection)}

    async def open(self) -> None:
        """Accept connections; OSError if the port is taken. Later calls use the same port."""
        sock = self._bind()
        self.port = sock.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: UvicornConnection(self._config, self._state, {}), sock=sock, backlog=2048
        )

    def close(self) -> None:
        """Refuse new connections; open ones stay open."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def drop_idle(self) -> None:
        """Close idle connections; busy ones close after their current request."""
        for connection in self.connections:
            connection.shutdown()

    def drop_all(self, spare: UvicornConnection | None = None) -> None:
        """Reset every connection but `spare`, which closes once it is idle."""
        for connection in self.connections:
            if connection is spare:
                connection.shutdown()
            else:
                connection.reset()

    async def finish(self) -> None:
        """Wait until all connections are gone and all request tasks have ended."""
        if self.connections:
            await asyncio.wait([connection.gone for connection in self.connections])
        if self._state.tasks:
            await asyncio.wait(self._state.tasks)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            message = f"cannot listen on {self.host}:{self.port}: {error.strerror}"
            raise OSError(error.errno, message) from error
        return sock
