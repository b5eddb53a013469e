"""Where sessions are kept: the seam, and the store in this process's memory."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from router.sessions.table import UNNOTED, Binding, Bound, Lease, Session, Table

#: Tells the time in seconds since 1970, UTC: expiries are told to clients.
Clock = Callable[[], float]


class StoreDown(Exception):
    """The store cannot be reached; says why."""


#: What a store says of an id that it does not know, where sessions may be open that it knows
#: nothing of: others have begun them while they could not note it, or it has lost its memory.
PERHAPS = Session("", UNNOTED, 0.0, 0.0)


class Kept(NamedTuple):
    """What a store can tell of itself, for metrics."""

    open: int
    """Sessions, as far as it is known without looking at all of them."""
    expired: int
    evicted: int


class Store(Protocol):
    """Keeps sessions. All methods raise StoreDown."""

    lease: Lease
    """For sessions to come."""

    async def use(self, key: str) -> Session | None:
        """Return an open session, and count this as a use of it; or PERHAPS."""

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind a session if it is bound to `expected`; None: if it is not there.

        Of several who try at once one wins; all are told the session as it is then.
        """

    async def close(self, key: str, *, begun: float | None = None) -> Session | None:
        """End a session, or only the one `begun` then and used by nobody since; return it if it has
        ended so; or PERHAPS."""

    async def doubt(self, seconds: float) -> None:
        """For so long, others may have begun sessions that it has not heard of yet."""

    async def listed(self, most: int) -> list[tuple[str, Session]]:
        """Return up to `most` open sessions."""

    async def look(self) -> Kept:
        """Tell how many there are."""

    async def stop(self) -> None:
        """Let go of whatever it holds."""


class MemoryStore:
    """In this process, and gone with it."""

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._table = Table(lease)
        self._clock = clock

    @property
    def lease(self) -> Lease:
        """For sessions to come."""
        return self._table.lease

    @lease.setter
    def lease(self, lease: Lease) -> None:
        self._table.lease = lease

    async def use(self, key: str) -> Session | None:
        """As the seam has it."""
        return self._table.use(key, self._clock())

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """As the seam has it."""
        return self._table.bind(key, to, expected, self._clock())

    async def close(self, key: str, *, begun: float | None = None) -> Session | None:
        """As the seam has it."""
        return self._table.close(key, self._clock(), begun=begun)

    async def doubt(self, seconds: float) -> None:
        """Nobody else begins any."""

    async def listed(self, most: int) -> list[tuple[str, Session]]:
        """As the seam has it."""
        return list(self._table.items(most, self._clock()))

    async def look(self) -> Kept:
        """As the seam has it."""
        return self.kept()

    def kept(self) -> Kept:
        """The same, at once."""
        self._table.sweep(self._clock())
        return Kept(len(self._table), self._table.expired, self._table.evicted)

    async def stop(self) -> None:
        """There is nothing to let go of."""
