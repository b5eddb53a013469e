"""The connections to one worker: those in use, and idle ones kept for the next request."""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENOMEM
from math import inf
from operator import attrgetter
from threading import Thread

from router.http.parser import Recall
from router.http.tls import explain
from router.settings.server import TimeoutSettings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Refused, Stale
from router.upstream.response import ResponseHead
from strategies.api import nothing

#: Seconds for which an answer, or a failure, counts as fresh and is not looked up again.
FRESH_S = 1.0
#: Seconds between lookups while no connection is made: kept connections live longer than that.
REFRESH_INTERVAL_S = 10.0
#: Seconds to wait for a new answer if an earlier one is known.
REFRESH_TIMEOUT_S = 0.25

#: Errors that say that there is no such name (getaddrinfo(3)); all others may be temporary.
_GONE = frozenset((socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)))

#: Returns the addresses of a name, the preferred one first. Raises OSError; may block.
LookUp = Callable[[str], tuple[str, ...]]


def look_up(host: str) -> tuple[str, ...]:
    """Ask the system's resolver; the addresses are in the order of RFC 6724."""
    results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in results))


class Addresses:
    """The IP addresses of one host name; an IP address is its own."""

    def __init__(
        self,
        host: str,
        look_up: LookUp = look_up,
        *,
        fresh_s: float = FRESH_S,
        refresh_interval_s: float = REFRESH_INTERVAL_S,
    ) -> None:
        self._host = host
        self._look_up = look_up
        self._fresh_s, self._refresh_interval_s = fresh_s, refresh_interval_s
        self._is_address = _is_address(host)
        self._known: tuple[str, ...] = (host,) if self._is_address else ()
        self._failure: OSError | None = None
        self._pending: asyncio.Future[None] | None = None
        self._began = -inf

    async def current(self) -> tuple[str, ...]:
        """Return the newest addresses that are known soon; at least one. Raises OSError."""
        if self._is_address:
            return self._known
        self._refresh(self._fresh_s)
        if self._pending is not None:
            left = max(0.0, self._began + REFRESH_TIMEOUT_S - asyncio.get_running_loop().time())
            # Without an earlier answer, wait without a limit: the caller has a deadline.
            await asyncio.wait((self._pending,), timeout=left if self._known else None)
        if not self._known:
            failure = self._failure or OSError("has no address")
            raise type(failure)(*failure.args)  # a new instance, without the kept one's traceback
        return self._known

    def leads_to(self, address: str) -> bool:
        """Whether the address is one of the name's, as far as is known."""
        return address in self._known or not self._known

    def look(self) -> None:
        """Look the name up again if the last time is long ago; to be called now and then."""
        if not self._is_address:
            self._refresh(self._refresh_interval_s)

    def _refresh(self, age: float) -> None:
        loop = asyncio.get_running_loop()
        if self._pending is not None or loop.time() - self._began < age:
            return
        self._began, self._pending = loop.time(), loop.create_future()
        try:  # a daemon thread, so that it does not delay the process's exit
            Thread(target=self._ask, args=(loop,), name="look-up", daemon=True).start()
        except RuntimeError:
            self._take((), OSError(ENOMEM, "no thread can be started"))

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        addresses: tuple[str, ...] = ()
        failure: OSError | None = None
        try:
            addresses = self._look_up(self._host)
        except OSError as error:
            failure = error
        except UnicodeError:  # a label that is empty or too long
            failure = socket.gaierror(socket.EAI_NONAME, "this cannot be a name")
        with suppress(RuntimeError):  # the loop is closed: the result is not needed any more
            loop.call_soon_threadsafe(self._take, addresses, failure)

    def _take(self, addresses: tuple[str, ...], failure: OSError | None) -> None:
        pending, self._pending = self._pending, None
        self._failure = failure
        if failure is None or failure.errno in _GONE:
            self._known = addresses
        if pending is not None and not pending.done():
            pending.set_result(None)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


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
