"""One request's part in a session: where the session is, and whether this request moves it.

    look → (wait for room, decide) → settle → ask the worker

`settle` is asked before every attempt. A session is bound before a byte is sent, by comparing and
setting, so that of several requests, in several routers, one decides and the others follow it.
"""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from router.errors import SessionExists, SessionLost, UnknownSession
from router.headers import Incoming
from router.sessions.expiry import announced, written
from router.sessions.table import Session

if TYPE_CHECKING:
    from router.fleet import Pool, Worker
    from router.sessions.sessions import Sessions
    from strategies.base import Candidate, Decision


class Stripped:
    """A request as a worker may see it: its session is the router's own affair."""

    def __init__(self, request: Incoming, field: bytes) -> None:
        self.query, self.identity = request.query, request.identity
        self._request = request
        self._field = field

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines that pass on to a worker."""
        lines = self._request.passing(keyed=keyed).splitlines(keepends=True)
        return b"".join([line for line in lines if not line.startswith(self._field)])


#: Attempts at binding a session that others bind too, before it is taken as it is.
TRIES = 8


class Wanted(Enum):
    """What must be true of the session."""

    OPEN = "open"
    """It is open."""
    NEW = "new"
    """It is not."""
    EITHER = "either"


class Visit:
    """A request that belongs to a session."""

    __slots__ = ("_expected", "_sessions", "_wanted", "bound", "expires", "id", "own", "state")

    def __init__(self, sessions: "Sessions", key: str, wanted: Wanted) -> None:
        self._sessions = sessions
        self._wanted = wanted
        self._expected: str | None = None
        """The worker as the store has it; None while the session is not there."""
        self.id = key
        self.bound = ""
        """Name of its worker; empty while it has none."""
        self.own = ""
        """The id by which its worker knows it, if that is another one."""
        self.expires = 0.0
        self.state = "kept"
        """`new`, `kept`, `rebound` (its worker was lost), `spilled` (moved for its load), or
        `hashed` (the store is down)."""

    async def look(self, pool: "Pool") -> None:
        """Find out where the session is. Raises UnknownSession, SessionExists."""
        session = await self._sessions.use(self.id, pool, known=self._wanted is Wanted.OPEN)
        if session is None and self._wanted is Wanted.OPEN:
            raise UnknownSession
        if session is not None and self._wanted is Wanted.NEW and not self._sessions.down:
            raise SessionExists
        self._take(session)

    def _take(self, session: Session | None) -> None:
        if session is None:
            self._expected, self.bound, self.own = None, "", ""
            return
        self._expected = None if session.created == 0.0 else session.worker
        self.bound, self.own, self.expires = session.worker, session.own, session.expires

    def home(self, pool: "Pool", model: str, workers: "Sequence[Worker]") -> "Worker | None":
        """Return the session's worker, if it can still be asked.

        One that is being drained keeps its sessions, unless they may move anyway.
        """
        if not self.bound:
            return None
        for worker in workers:
            if worker.name == self.bound:
                return worker
        if not self._sessions.stays:
            return None
        draining = pool.draining.get(self.bound)
        return draining if draining and draining.ready and model in draining.models else None

    def told(self, decision: "Decision", workers: "Sequence[Worker]") -> "Decision":
        """Return the decision under its right name: a worker without room is there all the same."""
        if decision.reason == "rebind" and any(one.name == self.bound for one in workers):
            return replace(decision, reason="spill")
        return decision

    async def settle(
        self, choice: "Candidate", candidates: "Sequence[Candidate]", pool: "Pool"
    ) -> "Candidate":
        """Bind the session to the chosen worker; return the choice that holds.

        Raises SessionLost where it must not move, UnknownSession if it was closed meanwhile.
        """
        for _ in range(TRIES):
            name = choice.worker.name
            if name == self._expected:
                return choice
            state = self._state_after(name, pool)
            if state == "rebound" and self._sessions.ends_with_its_worker(pool):
                await self._sessions.lose(self.id)
                raise SessionLost
            session = await self._sessions.bind(self.id, name, self._expected)
            if session is None:  # closed or expired since we looked
                if self._wanted is Wanted.OPEN:
                    raise UnknownSession
                self._take(None)
            elif session.worker == name:
                self._moved(state)
                self._take(session)
                return choice
            else:
                choice = self._follow(session, choice, candidates)
        return choice

    def _state_after(self, name: str, pool: "Pool") -> str:
        if not self.bound or self.state == "new":  # whoever refuses its first request never had it
            return "new"
        if name == self.bound:
            return "kept"
        there = any(w.name == self.bound and w.ready for w in pool.taking)
        return "spilled" if there else "rebound"

    def _moved(self, state: str) -> None:
        if self.state != "new":
            self._sessions.count(state)
        self.state = "hashed" if self._sessions.down else state

    def _follow(
        self, session: Session, choice: "Candidate", candidates: "Sequence[Candidate]"
    ) -> "Candidate":
        """Somebody was first: go where the session is now, if one can."""
        if self._wanted is Wanted.NEW:
            raise SessionExists
        self._take(session)
        for one in candidates:
            if one.worker.name == session.worker and getattr(one.worker, "ready", True):
                return one
        return choice

    def stripped(self, request: Incoming) -> "Stripped":
        """Return the request without the header field that names its session."""
        return Stripped(request, self._sessions.header + b":")

    def fields(self) -> bytes:
        """Return the header line that tells the client what became of its session."""
        ends = written(self.expires).encode()
        line = b"x-warmroute-session: %b; expires=%b\r\n" % (self.state.encode(), ends)
        if self._wanted is not Wanted.NEW:
            return line
        told = announced(self.id, self.expires).encode()
        return line + b"x-amzn-sagemaker-new-session-id: %b\r\n" % told
