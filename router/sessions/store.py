"""The interface of session stores, and the store in this process's memory.

The clock of sessions that only this process knows: no change of the system's clock moves it.
"""

import asyncio
from collections.abc import Callable
from time import monotonic, time
from typing import NamedTuple, Protocol

from router.sessions.table import UNNOTED, Binding, Bound, OpenSession, SessionLease, Table

#: Returns seconds since 1970, UTC.
Clock = Callable[[], float]


class StoreDown(Exception):
    """The store cannot be reached; the message says why."""


#: Returned for an unknown id while sessions may be open that the store does not know: another
#: router started one when it could not record it, or the store has lost its data.
PERHAPS = OpenSession("", UNNOTED, 0.0, 0.0)


class Kept(NamedTuple):
    """Counts of a store, for metrics."""

    open: int
    """Open sessions, as far as known without looking at each one."""
    expired: int
    evicted: int


class Store(Protocol):
    """A store of sessions. All methods raise StoreDown."""

    lease: SessionLease
    """The rules for new sessions."""

    def ahead(self) -> float:
        """Return by how many seconds the clock that clients go by is ahead of the store's."""

    async def use(self, key: str) -> OpenSession | None:
        """Return an open session, or PERHAPS, and count this as a use of it."""

    async def find(self, key: str) -> OpenSession | None:
        """Return an open session, or PERHAPS, without using it."""

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind a session to a worker if it is now bound to `expected`; None: if it is not open.

        If several callers try at once, one succeeds; all are given the session as it then is.
        """

    async def close(self, key: str, *, begun: float | None = None) -> OpenSession | None:
        """Close a session and return it if that closed it, or PERHAPS.

        With `begun`, close it only if it was created at that time and nobody has used it since.
        """

    async def doubt(self, seconds: float) -> None:
        """For so many seconds, answer PERHAPS for unknown ids: other routers may have started
        some."""

    async def listed(self, most: int) -> list[tuple[str, OpenSession]]:
        """Return up to `most` open sessions."""

    async def look(self) -> Kept:
        """Return how many sessions there are."""

    async def stop(self) -> None:
        """Release connections and other resources."""


class MemoryStore:
    """Sessions in this process's memory, lost when it ends."""

    def __init__(self, lease: SessionLease, clock: Clock, wall: Clock | None = None) -> None:
        """Sessions live by `clock`; clients are told their ends by `wall`, the system's."""
        self._table = Table(lease)
        self._clock = clock
        self._wall = wall or clock

    @property
    def lease(self) -> SessionLease:
        """The rules for new sessions."""
        return self._table.lease

    @lease.setter
    def lease(self, lease: SessionLease) -> None:
        self._table.lease = lease

    def ahead(self) -> float:
        """See `Store`. In tenths: two clocks are never read at the same moment, and what clients
        are told is to change only if one of them was set."""
        return round(self._wall() - self._clock(), 1)

    async def use(self, key: str) -> OpenSession | None:
        """See `Store`."""
        return self._table.use(key, self._clock())

    async def find(self, key: str) -> OpenSession | None:
        """See `Store`."""
        return self._table.find(key, self._clock())

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """See `Store`."""
        if to.expires is not None:
            to = to._replace(expires=to.expires - self.ahead())
        return self._table.bind(key, to, expected, self._clock())

    async def close(self, key: str, *, begun: float | None = None) -> OpenSession | None:
        """See `Store`."""
        return self._table.close(key, self._clock(), begun=begun)

    async def doubt(self, seconds: float) -> None:
        """Do nothing: no other process starts sessions here."""

    async def listed(self, most: int) -> list[tuple[str, OpenSession]]:
        """See `Store`."""
        return list(self._table.items(most, self._clock()))

    async def look(self) -> Kept:
        """See `Store`. What has expired is dropped bit by bit: other work goes on in between."""
        kept = self.kept()
        while self._table.due(self._clock()):
            await asyncio.sleep(0)
            kept = self.kept()
        return kept

    def kept(self) -> Kept:
        """Return the counts without awaiting; of very many that just expired, some still count."""
        self._table.sweep(self._clock())
        return Kept(len(self._table), self._table.expired, self._table.evicted)

    async def stop(self) -> None:
        """Do nothing: there is nothing to release."""


_START = time() - monotonic()


def steady() -> float:
    """Return seconds since 1970 as the system's clock would show if nobody had set it.

    The time that the machine was suspended does not count on Linux and macOS.
    """
    return _START + monotonic()
