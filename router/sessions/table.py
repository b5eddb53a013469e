"""The table of open sessions: id to worker, with an expiry. Pure: time is an argument, in seconds.

Every session ends. Expiry is strict: the first use after it is refused (AWS's container library
lets one pass). If there are too many sessions, the least recently used one of the key that has most
goes, so no key can push out the sessions of others that have fewer.

The cost of expiry depends on how many have expired, not on how many are open: ends lie in a heap,
and an end that has moved meanwhile is put back when its turn comes. Each sweep looks at a limited
number, because thousands may expire at once and a sweep is part of a request.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from math import inf, nextafter
from typing import NamedTuple

from msgspec import Struct

from router.settings.sessions import SessionSettings

#: Most moved ends that one sweep puts back, and most others that it drops: a few milliseconds each.
#: Expired sessions behind them stay in the table until a later sweep, but are refused if used.
MAX_MOVED = 1000
MAX_DROPPED = 1000


class SessionLease(NamedTuple):
    """How long sessions last, and how many there may be."""

    ttl: float = 1200.0
    """Seconds from creation or, if sliding, from the last use."""
    sliding: bool = False
    longest: float = inf
    """Seconds from creation, however often the session is used."""
    most: int = 100_000
    """Most open sessions; beyond it one of the owner that has most is evicted."""

    @classmethod
    def of(cls, settings: SessionSettings) -> "SessionLease":
        """Return what the settings say."""
        longest = inf if settings.longest is None else settings.longest
        return cls(settings.lifetime, settings.sliding, longest, settings.most)

    def end(self, created: float, now: float) -> float:
        """Return when a session ends if it is used now."""
        begin = now if self.sliding else created
        return min(begin + self.ttl, created + self.longest)

    def begun(self, to: "Binding", now: float) -> "OpenSession":
        """Return a new session that starts now.

        If the binding gives an end, that is used, but no later than `longest` allows.
        """
        end = self.end(now, now) if to.expires is None else min(to.expires, now + self.longest)
        return OpenSession(to.worker, now, end, now, to.own, to.call, to.fixed, to.owner)


#: The creation time of a session that no store has recorded.
UNNOTED = -inf


class OpenSession(Struct, gc=False):
    """One session. Times are those of the caller's clock, in seconds."""

    worker: str
    """Name of the worker it is bound to."""
    created: float
    expires: float
    used: float
    own: str = ""
    call: str = ""
    fixed: bool = False
    """See `Binding`."""
    owner: str = ""
    """See `Binding`."""

    @property
    def noted(self) -> bool:
        """Whether a store has recorded it."""
        return self.created != UNNOTED


class Binding(NamedTuple):
    """Where to bind a session, and what is recorded with it."""

    worker: str
    """Name of the worker."""
    own: str = ""
    """The worker's own id for it, if the worker keeps sessions and chose another one."""
    expires: float | None = None
    """When the session ends, if known already."""
    call: str = ""
    """The client's id of the call that starts it: a retry of that call is not a second start."""
    fixed: bool = False
    """The worker has set the end: using the session does not extend it."""
    used: float | None = None
    """Bind only if the session's last use was at this time."""
    owner: str = ""
    """Name of the client key that starts it."""

    @classmethod
    def of(cls, session: OpenSession) -> "Binding":
        """Return the binding of an existing session."""
        noted = session.own, session.expires, session.call
        return cls(session.worker, *noted, fixed=session.fixed, owner=session.owner)


class Bound(NamedTuple):
    """The result of binding a session."""

    session: OpenSession | None
    """The session as it is afterwards; None: it is not open."""
    done: bool = False
    """Whether this call bound it."""


class Table:
    """Open sessions by id, and the ids of each owner, the most recently used last."""

    def __init__(self, lease: SessionLease | None = None) -> None:
        self.lease = lease or SessionLease()
        self.expired = self.evicted = 0
        """Sessions that have expired, and those evicted for lack of room."""
        self._sessions: dict[str, OpenSession] = {}
        # Not plain dicts: finding the first entry means skipping every hole that removed ones left.
        self._lines: dict[str, OrderedDict[str, None]] = {}
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: str, now: float) -> OpenSession | None:
        """Return an open session without using it."""
        session = self._sessions.get(key)
        if session is not None and now >= session.expires:
            self._remove(key)
            self.expired += 1
            return None
        return session

    def use(self, key: str, now: float) -> OpenSession | None:
        """Return an open session and count this as a use of it."""
        session = self.find(key, now)
        if session is not None:
            self._touch(key, session, now)
            if self.lease.sliding and not session.fixed:
                session.expires = max(session.expires, self.lease.end(session.created, now))
                self.sweep(now, moved=2)  # at most one end moved, so putting back two keeps up
        return session

    def _touch(self, key: str, session: OpenSession, now: float) -> None:
        session.used = max(now, nextafter(session.created, inf))  # later, whatever the clock says
        self._lines[session.owner].move_to_end(key)

    def bind(self, key: str, to: Binding, expected: str | None, now: float) -> Bound:
        """Bind a session to a worker if it is now bound to `expected`; None: if it is not open."""
        session = self.find(key, now)
        if (session.worker if session else None) != expected:
            if session is not None:
                self._touch(key, session, now)  # the caller goes to that worker: a use
            return Bound(session)
        if session is not None and to.used is not None and session.used != to.used:
            return Bound(session)
        if session is None:
            self._make_room(to.owner, now)
            session = self.lease.begun(to, now)
            self._sessions[key] = session
            self._lines.setdefault(to.owner, OrderedDict())[key] = None
            self._note_end(session.expires, key)
        else:
            session.worker, session.own = to.worker, to.own
        return Bound(session, done=True)

    def close(self, key: str, now: float, *, begun: float | None = None) -> OpenSession | None:
        """Close a session and return it if that closed it.

        With `begun`, close it only if it was created at that time and nobody has used it since.
        """
        session = self.find(key, now)
        if session is None or (begun is not None and not session.created == begun == session.used):
            return None
        return self._remove(key)

    def sweep(self, now: float, moved: int = MAX_MOVED) -> int:
        """Drop expired sessions and return how many.

        Stops after `moved` entries whose end has moved, or `MAX_DROPPED` others.
        """
        dropped, left = 0, MAX_DROPPED
        ends, sessions = self._ends, self._sessions
        while moved and left and self.due(now):
            _, key = heappop(ends)
            session = sessions.get(key)
            if session is not None and session.expires > now:  # it moved, or was opened again
                heappush(ends, (session.expires, key))
                moved -= 1
                continue
            left -= 1
            if session is not None:
                self._remove(key)
                dropped += 1
        self.expired += dropped
        return dropped

    def due(self, now: float) -> bool:
        """Whether a sweep has something to look at."""
        return bool(self._ends) and self._ends[0][0] <= now

    def items(self, most: int, now: float) -> Iterator[tuple[str, OpenSession]]:
        """Return up to `most` open sessions, the least recently used first."""
        sessions = self._sessions
        lines = (((sessions[key].used, key) for key in line) for line in self._lines.values())
        every = ((key, sessions[key]) for _, key in merge(*lines))
        return islice(((key, session) for key, session in every if session.expires > now), most)

    def _note_end(self, expires: float, key: str) -> None:
        heappush(self._ends, (expires, key))
        if len(self._ends) > 2 * len(self._sessions) + 64:  # most are of sessions closed since
            self._ends = [(session.expires, key) for key, session in self._sessions.items()]
            heapify(self._ends)

    def _remove(self, key: str) -> OpenSession:
        session = self._sessions.pop(key)
        line = self._lines[session.owner]
        del line[key]
        if not line:
            del self._lines[session.owner]
        return session

    def _held(self, owner: str, newcomer: str) -> tuple[int, bool]:
        """Return how many sessions an owner has, with the new one; of equals the newcomer goes."""
        is_new = owner == newcomer
        return len(self._lines[owner]) + is_new, is_new

    def _make_room(self, owner: str, now: float) -> None:
        """Make room for another session of that owner."""
        self.sweep(now)
        while len(self._sessions) >= self.lease.most:
            longest = max(self._lines, key=lambda holder: self._held(holder, owner))
            if self._remove(next(iter(self._lines[longest]))).expires > now:
                self.evicted += 1
            else:
                self.expired += 1
