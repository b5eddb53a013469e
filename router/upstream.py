"""The connections to one worker: those in use, and those kept for the next request."""

import asyncio
import errno
import ssl

from router.connection import Connection, Patience
from router.errors import Gone, Refused, Stale

#: Out of descriptors, memory or local ports.
_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL))
#: Seconds between two looks at who is late. One timer a worker is cheaper than one a request.
TICK_S = 0.1


class Upstream:
    """The connections to one worker."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, patience: Patience
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._patience = patience
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, head: bytes, body: bytes) -> Connection:
        """Send a request; return the connection once the first byte of the answer is there.

        A kept connection that the worker was just closing as idle is replaced, once: if it does
        not listen any more it was dying instead, and may have begun. Raises WorkerError.
        """
        connection = self._kept() or await self._dial()
        self._engage(connection)
        try:
            return await connection.ask(head, body)
        except Stale as stale:
            self._busy.discard(connection)
            try:
                connection = await self._dial()
            except Refused:
                raise Gone(str(stale)) from None
        except BaseException:
            self._busy.discard(connection)
            raise
        self._engage(connection)
        try:
            return await connection.ask(head, body)
        except BaseException:
            self._busy.discard(connection)
            raise

    def _engage(self, connection: Connection) -> None:
        self._busy.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in self._busy:
            connection.check(now)
        self._timer = loop.call_later(TICK_S, self._tick) if self._busy else None

    def _kept(self) -> Connection | None:
        """Return the idle connection that was used last, if there is one."""
        idle = self._idle
        if not idle:
            return None
        freshest = asyncio.get_running_loop().time() - self._patience.keepalive
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since > freshest:
                return connection
            connection.close()
        return None

    async def _dial(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience.connect):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._patience),
                    self._host,
                    self._port,
                    ssl=self._tls,
                )
        except TimeoutError:
            raise Refused("could not be reached in time") from None
        except OSError as error:  # refused, no route, unknown host, bad certificate
            raise Refused(f"could not be reached: {error}", ours=error.errno in _OURS) from error
        return connection

    def release(self, connection: Connection) -> None:
        """Keep `connection` for the next request if its answer is complete, else close it."""
        self._busy.discard(connection)
        if connection.release(asyncio.get_running_loop().time()):
            self._idle.append(connection)

    def expire(self, now: float) -> None:
        """Close what has been idle for too long. `now` is the loop's time."""
        oldest = now - self._patience.keepalive
        kept = []
        for connection in self._idle:
            if connection.usable and connection.idle_since > oldest:
                kept.append(connection)
            else:
                connection.close()
        self._idle = kept

    def close(self) -> None:
        """Close every idle connection."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """Connections ready for use."""
        return len(self._idle)
