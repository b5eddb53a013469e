"""The sessions that are open: id → worker, with an end. Pure: time is an argument, in seconds.

Every session ends: its expiry is strict (the first use after it is refused; AWS's container
library lets one pass), and where there are too many, the one unused for longest goes. Looking for
what has expired costs what has expired, not what is there: ends lie in a heap, and one that has
moved meanwhile is put back when its turn comes, only so many at once.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf, nextafter
from typing import NamedTuple

from msgspec import Struct

#: Ends that have moved and are put back in one sweep: a few milliseconds. What they hide for the
#: next ones is refused all the same when it is used.
MOVED = 1000


class Lease(NamedTuple):
    """How long sessions last, and how many there may be."""

    ttl: float = 1200.0
    """Seconds from creation, or, if sliding, from the last use."""
    sliding: bool = False
    longest: float = inf
    """Seconds from creation, however often it is used."""
    most: int = 100_000
    """The one unused for longest makes room."""

    def end(self, created: float, now: float) -> float:
        """When a session ends that is used now."""
        begin = now if self.sliding else created
        return min(begin + self.ttl, created + self.longest)

    def begun(self, to: "Binding", now: float) -> "Session":
        """Return the session that begins now; an end of its own is no later than any other's."""
        end = self.end(now, now) if to.expires is None else min(to.expires, now + self.longest)
        return Session(to.worker, now, end, now, to.own, to.call, to.fixed)


#: When a session was created that nobody has noted.
UNNOTED = -inf


class Session(Struct, gc=False):
    """One session. Times are the caller's clock, in seconds."""

    worker: str
    """Name of the worker it is bound to."""
    created: float
    expires: float
    used: float
    own: str = ""
    call: str = ""
    fixed: bool = False
    """As in its binding."""

    @property
    def noted(self) -> bool:
        """A store knows of it."""
        return self.created != UNNOTED


class Binding(NamedTuple):
    """Where a session is to be bound, and what is noted with that."""

    worker: str
    """Name of the worker."""
    own: str = ""
    """The id that the worker itself gave it, if it keeps sessions and chose another one."""
    expires: float | None = None
    """Its end, where that is known already."""
    call: str = ""
    """The client's call that begins it: sent again, it is no other one."""
    fixed: bool = False
    """Its worker has said when it ends: no use puts that off."""
    used: float | None = None
    """Only if it was used then, and not since."""

    @classmethod
    def of(cls, session: Session) -> "Binding":
        """As it is."""
        return cls(session.worker, session.own, session.expires, session.call, fixed=session.fixed)


class Bound(NamedTuple):
    """What came of binding a session."""

    session: Session | None
    """As it is then; None: it is not there."""
    done: bool = False
    """By this and no other."""


class Table:
    """Open sessions by id, the one used last at the end."""

    def __init__(self, lease: Lease | None = None) -> None:
        self.lease = lease or Lease()
        self.expired = self.evicted = 0
        """Sessions that have ended by themselves, and for want of room."""
        # A plain dictionary would look at every hole that its first entries have left.
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: str, now: float) -> Session | None:
        """Return an open session without using it."""
        session = self._sessions.get(key)
        if session is not None and now >= session.expires:
            del self._sessions[key]
            self.expired += 1
            return None
        return session

    def use(self, key: str, now: float) -> Session | None:
        """Return an open session and count this as a use of it."""
        session = self.find(key, now)
        if session is not None:
            self._touch(key, session, now)
            if self.lease.sliding and not session.fixed:
                session.expires = max(session.expires, self.lease.end(session.created, now))
                self.sweep(now, moved=2)  # one has moved: so their number does not grow
        return session

    def _touch(self, key: str, session: Session, now: float) -> None:
        session.used = max(now, nextafter(session.created, inf))  # later, whatever the clock says
        self._sessions.move_to_end(key)

    def bind(self, key: str, to: Binding, expected: str | None, now: float) -> Bound:
        """Bind a session if it is bound to `expected` now; None: if it is not there."""
        session = self.find(key, now)
        if (session.worker if session else None) != expected:
            if session is not None:
                self._touch(key, session, now)  # whoever is told of it goes there
            return Bound(session)
        if session is not None and to.used is not None and session.used != to.used:
            return Bound(session)
        if session is None:
            self._make_room(now)
            session = self.lease.begun(to, now)
            self._sessions[key] = session
            self._note_end(session.expires, key)
        else:
            session.worker, session.own = to.worker, to.own
        return Bound(session, done=True)

    def close(self, key: str, now: float, *, begun: float | None = None) -> Session | None:
        """End a session, or only the one `begun` then and used by nobody since; return it if it has
        ended so."""
        session = self.find(key, now)
        if session is None or (begun is not None and not session.created == begun == session.used):
            return None
        return self._sessions.pop(key)

    def sweep(self, now: float, moved: int = MOVED) -> int:
        """Drop what has expired, until so many were found that have `moved`; return how many."""
        dropped = 0
        ends, sessions = self._ends, self._sessions
        while moved and ends and ends[0][0] <= now:
            _, key = heappop(ends)
            session = sessions.get(key)
            if session is None:
                continue
            if session.expires > now:  # it was used, or made anew
                heappush(ends, (session.expires, key))
                moved -= 1
            else:
                del sessions[key]
                dropped += 1
        self.expired += dropped
        return dropped

    def items(self, most: int, now: float) -> Iterator[tuple[str, Session]]:
        """Return open sessions, those unused for longest first."""
        return islice(
            ((key, one) for key, one in self._sessions.items() if one.expires > now), most
        )

    def _note_end(self, expires: float, key: str) -> None:
        heappush(self._ends, (expires, key))
        if len(self._ends) > 2 * len(self._sessions) + 64:  # most are of sessions long closed
            self._ends = [(one.expires, key) for key, one in self._sessions.items()]
            heapify(self._ends)

    def _make_room(self, now: float) -> None:
        self.sweep(now)
        while len(self._sessions) >= self.lease.most:
            _, session = self._sessions.popitem(last=False)
            if session.expires > now:
                self.evicted += 1
            else:
                self.expired += 1
