"""Listening sockets, the deadlines of client connections, and orderly shutdown.

When told to stop, the server says so on `/health/ready` and in every answer (`connection: close`).
It keeps accepting for a while, so that a load balancer in front of it can notice, and then closes
its sockets. It lets every answer finish, and cuts off those that take too long with an error in
their endpoint's format. Told again, it stops at once.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress

from router.http.connection import ConnectionOwner, HttpConnection, Service
from router.settings.server import ShutdownSettings
from router.settings.types import Address, format_duration

log = logging.getLogger("warmroute.server")

#: Most connections that wait to be accepted.
BACKLOG = 4096
#: Bytes of an answer that the kernel buffers before it can send them (TCP_NOTSENT_LOWAT).
NOTSENT_LOWAT_BYTES = 128 << 10
#: Seconds that asyncio's TLS gives a client to take its last bytes. So long that `clients.write`
#: always ends a client first that takes nothing.
TLS_SHUTDOWN_TIMEOUT_S = 24 * 3600.0
#: Seconds between two checks of deadlines.
TICK_S = 0.1
#: Seconds for the errors of cut-off answers to reach their clients.
FINAL_ERRORS_S = 1.0


class PortTaken(Exception):
    """The address to listen on is not available."""


def bind(address: Address, *, shared: bool = False, listen: bool = True) -> socket.socket:
    """Open the listening socket. Raises PortTaken with a sentence for the operator.

    With `shared`, several processes may listen there, and the kernel spreads connections. Without
    `listen`, the port is only reserved for them.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # inherited by every connection
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)
    try:
        listener.bind((address.host, address.port))
        if listen:
            listener.listen(BACKLOG)  # here already, so that a second server fails at once
    except OSError as error:
        listener.close()
        reason = f"cannot listen on {address}: {error.strerror or error}."
        if error.errno == errno.EADDRINUSE:
            reason += " Is another server running there?"
        raise PortTaken(f"{reason} Choose another address with --listen.") from None
    return listener


class Server:
    """Serves a `Service` on listening sockets, once."""

    def __init__(
        self,
        door: Service,
        ending: ShutdownSettings | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._door = door
        self.ending = ending or ShutdownSettings()
        """Read only when shutdown begins, so a reload may replace it."""
        self._tls = tls
        self._told = asyncio.Event()
        self._now = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that it serves in, once it does."""
        self.started = asyncio.Event()
        """Set once it accepts connections."""

    def stop(self, *, now: bool = False) -> None:
        """Begin orderly shutdown; called again, or with `now`, end at once. From any thread."""
        if self.loop is None:
            self._tell(now)
        else:
            with suppress(RuntimeError):  # the loop is closed: it has ended by itself
                self.loop.call_soon_threadsafe(self._tell, now)

    def _tell(self, now: bool) -> None:
        if now or self._told.is_set():
            self._now.set()
        self._told.set()

    @property
    def told(self) -> bool:
        """Whether it was told to stop."""
        return self._told.is_set()

    async def serve(
        self, listeners: Sequence[socket.socket], admin: Sequence[socket.socket] = ()
    ) -> None:
        """Serve until told to stop, then shut down; `admin` are listeners for operators."""
        loop = self.loop = asyncio.get_running_loop()
        ticking: asyncio.Task[None] | None = None
        servers: list[asyncio.Server] = []
        try:
            if not await self._begin():
                return
            ticking = asyncio.create_task(self._tick())
            owners: list[ConnectionOwner] = [self._door] * len(listeners)
            owners += [self._door.admin_listener] * len(admin)
            for owner, listener in zip(owners, (*listeners, *admin), strict=True):
                servers.append(await self._listen(loop, owner, listener))
            self.started.set()
            await self._told.wait()
            await self._end(servers)
        finally:
            for server in servers:
                server.close()
            for listener in (*listeners, *admin):
                listener.close()
            if ticking is not None:
                ticking.cancel()
            await self._door.stop()

    async def _begin(self) -> bool:
        """Start the door; False if told to stop before it is ready."""
        starting = asyncio.ensure_future(self._door.start())
        stopping = asyncio.ensure_future(self._told.wait())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            return not self._told.is_set()
        finally:
            for task in (starting, stopping):
                task.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, owner: ConnectionOwner, listener: socket.socket
    ) -> asyncio.Server:
        return await loop.create_server(
            lambda: HttpConnection(owner, loop),
            sock=listener,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=owner.settings.clients.header if self._tls else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S if self._tls else None,
        )

    async def _tick(self) -> None:
        """Expire late connections. One pass over all is cheaper than a timer for each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            for client in [client for client in self._door.everyone if client.deadline < now]:
                client.expire(now)

    async def _end(self, servers: Sequence[asyncio.Server]) -> None:
        door, ending = self._door, self.ending
        door.stopping = True
        for client in door.everyone:
            client.stopping = True
        log.info(
            "stopping: /health/ready says 503; requests are accepted for another %s",
            format_duration(ending.delay),
        )
        await self._unless_now(ending.delay)
        for server in servers:
            server.close()
        for client in door.everyone:
            client.stop()
        if left := self._busy():
            log.info(
                "stopping: waiting for %d answers, %s at most", left, format_duration(ending.drain)
            )
        await self._until_empty(ending.drain)
        if left := self._busy():
            log.warning("stopping: %d answers are cut off", left)
        for client in door.everyone:
            client.abandon()
        self._now.clear()
        await self._until_empty(FINAL_ERRORS_S)
        for client in door.everyone:
            client.abort()
        await asyncio.sleep(0)

    def _busy(self) -> int:
        return sum(client.busy for client in self._door.everyone)

    async def _unless_now(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._now.wait()

    async def _until_empty(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._door.everyone and not self._now.is_set() and loop.time() < deadline:
            await self._unless_now(TICK_S / 2)
