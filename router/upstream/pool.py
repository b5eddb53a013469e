"""The connections to one worker: those in use, and idle ones kept for the next request."""

import asyncio
import errno
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from operator import attrgetter

from router.http.parser import Recall
from router.http.tls import explain
from router.settings.server import TimeoutSettings
from router.upstream.connection import UpstreamConnection
from router.upstream.dns import Addresses
from router.upstream.errors import Refused, Stale
from router.upstream.response import ResponseHead
from strategies.api import nothing

#: Errors of the router itself: out of file descriptors, memory or local ports.
_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL))
#: Noted on a cancellation that came before there was a connection: nothing was sent.
NOT_SENT = "nothing was sent"
#: The timeouts that concern connections; the others concern requests that wait.
_connection_timeouts = attrgetter("connect", "first_byte", "idle", "total", "keepalive")
#: Seconds between checks for late answers. One timer per worker is cheaper than one per request.
TICK_S = 0.1


class Upstream:
    """The connections to one worker."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        timeouts: TimeoutSettings,
        addresses: Addresses | None = None,
    ) -> None:
        """`addresses` are those of `host`, if they are shared with another Upstream."""
        self._host = host
        self._port = port
        self._addresses = addresses or Addresses(host)
        self.tls = tls
        """The TLS context; None without TLS."""
        self._timeouts = timeouts
        self._recall: Recall[ResponseHead] = Recall()
        self.kept: list[UpstreamConnection] = []
        """Idle connections, the most recently used last."""
        self.in_use: set[UpstreamConnection] = set()
        """Those that a request is sent over."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._control: Upstream | None = None

    def control_connections(self) -> "Upstream":
        """Return separate connections to the same worker, for probes and other small questions.

        This way the idle connections here come from requests only, and are as old as those. The
        separate ones are closed together with these.
        """
        if self._control is None:
            self._control = Upstream(
                *(self._host, self._port),
                tls=self.tls,
                timeouts=self._timeouts,
                addresses=self._addresses,
            )
            if self._closed:
                self._control.close()
        return self._control

    def serves(self, tls: ssl.SSLContext | None, timeouts: TimeoutSettings) -> bool:
        """Whether this Upstream was made with these settings; if not, it must be replaced."""
        return self.tls is tls and _connection_timeouts(self._timeouts) == _connection_timeouts(
            timeouts
        )

    async def ask(
        self, head: bytes, body: bytes, sends: Callable[[], object] = nothing
    ) -> UpstreamConnection:
        """Send a request; return the connection once the answer's head and first byte are there.

        `sends` is called in the moment before its first byte is sent. It must not raise.

        A kept connection that the worker was just closing as idle is replaced, once. Raises Stale
        if the worker then refuses a new connection (it is shutting down), else WorkerError. A
        cancellation has the note NOT_SENT if it came before anything was sent.
        """
        connection = self._kept() or await self._dial()
        self._engage(connection)
        sends()
        try:
            return await connection.ask(head, body)
        except Stale as error:
            self.in_use.discard(connection)
            stale = str(error)
        except BaseException:
            self.in_use.discard(connection)
            raise
        try:
            connection = await self._dial()
        except Refused:
            raise Stale(stale) from None
        self._engage(connection)
        try:
            return await connection.ask(head, body)
        except BaseException:
            self.in_use.discard(connection)
            raise

    def _engage(self, connection: UpstreamConnection) -> None:
        self.in_use.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in self.in_use:
            connection.check(now)
        self._timer = loop.call_later(TICK_S, self._tick) if self.in_use else None

    def _kept(self) -> UpstreamConnection | None:
        """Return the most recently used idle connection, if there is one."""
        idle = self.kept
        while idle:
            connection = idle.pop()
            if self._good(connection):
                return connection
            connection.close()
        return None

    def _good(self, connection: UpstreamConnection) -> bool:
        """Whether another request may be sent over this connection."""
        return connection.fresh() and self._addresses.leads_to(connection.address)

    async def _dial(self) -> UpstreamConnection:
        try:
            async with asyncio.timeout(self._timeouts.connect):
                return await self._connect(await self._addresses.current())
        except TimeoutError:
            raise Refused("could not be reached in time") from None
        except asyncio.CancelledError as cancelled:
            cancelled.add_note(NOT_SENT)
            raise
        except OSError as error:  # refused, no route, unknown host, bad certificate
            reason = explain(error) or str(error) or "it closed the connection"
            raise Refused(f"could not be reached: {reason}", ours=error.errno in _OURS) from error

    async def _connect(self, addresses: Sequence[str]) -> UpstreamConnection:
        """Try the addresses in order, each for its share of the time. Raises OSError."""
        *others, last = addresses
        for address in others:
            with suppress(OSError):
                async with asyncio.timeout(self._timeouts.connect / len(addresses)):
                    return await self._connect_to(address)
        return await self._connect_to(last)

    async def _connect_to(self, address: str) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: UpstreamConnection(loop, self._timeouts, self._recall),
            address,
            self._port,
            ssl=self.tls,
            # Strip the dot of an absolute name: certificates never have it (RFC 6066 section 3).
            server_hostname=self._host.removesuffix(".") if self.tls is not None else None,
        )
        connection.address = address
        return connection

    def release(self, connection: UpstreamConnection) -> None:
        """Keep `connection` for the next request if its answer is complete, else close it."""
        self.in_use.discard(connection)
        if connection.release():
            self.kept.append(connection)
            if self._closed:
                self.close()

    def expire(self) -> None:
        """Close connections that were idle too long or whose address the name no longer has."""
        self._addresses.look()
        kept = []
        for connection in self.kept:
            if self._good(connection):
                kept.append(connection)
            else:
                connection.close()
        self.kept = kept
        if self._control is not None:
            self._control.expire()

    def close(self) -> None:
        """Close every idle connection, and those in use when they are released."""
        self._closed = True
        self.part()
        if self._control is not None:
            self._control.close()

    def doubt(self) -> None:
        """Make the next probe use a new connection, because a new one was refused.

        A kept connection may still answer although the worker no longer listens, or now has a
        certificate that is not trusted.
        """
        if self._control is not None:
            self._control.part()

    def part(self) -> None:
        """Close every idle connection."""
        for connection in self.kept:
            connection.close()
        self.kept.clear()

    def heard_at(self, now: float) -> float:
        """Return when more of an answer under way came last; by the loop's clock, as `now`."""
        return max((connection.heard_at(now) for connection in self.in_use), default=-inf)

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return len(self.kept)
