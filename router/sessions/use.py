"""One request's part in a session: where the session is, and whether this request moves it.

    look → (wait for room, decide, book) → settle → ask the worker

`settle` is called before every attempt, after its booking, so that decisions made meanwhile count
it. A session is bound by compare-and-set before a byte is sent: of several requests, in several
routers, one decides and the others follow it. If no worker accepts the request, the session stays
where it was.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from router.api.errors import NoWorker, SessionExists, SessionLost, UnknownSession
from router.http.headers import Incoming, Stripped
from router.sessions.ids import announced, written
from router.sessions.table import Binding, OpenSession
from strategies.api import FREE, Candidate

if TYPE_CHECKING:
    from router.fleet.pool import Pool
    from router.fleet.worker import Worker
    from router.sessions.sessions import Sessions
    from strategies.api import Decision


#: How often a request tries again because others bind its session at the same time.
MAX_BIND_TRIES = 8


_MOVES = frozenset(("rebound", "spilled"))
#: The reason given for a decision, by the session's state afterwards.
_REASONS = {"kept": "session", "rebound": "rebind", "spilled": "spill"}
_DECIDED = frozenset(("bind", *_REASONS.values()))


class Requirement(Enum):
    """What the request requires of the session."""

    OPEN = "open"
    """It must be open."""
    NEW = "new"
    """It must not be open."""
    EITHER = "either"


class SessionUse:
    """A request that belongs to a session."""

    __slots__ = (
        "_before",
        "_begun",
        "_expected",
        "_first",
        "_sessions",
        "_tries",
        "_used",
        "_wanted",
        "bound",
        "call",
        "counted",
        "expires",
        "id",
        "own",
        "owner",
        "state",
        "told",
        "undone",
    )

    def __init__(self, sessions: "Sessions", key: str, wanted: Requirement, call: str = "") -> None:
        self._sessions = sessions
        self._wanted = wanted
        self._expected: str | None = None
        """The worker recorded in the store; None if the session is not there."""
        self._before: str | None = None
        """The worker that this request has moved the session away from."""
        self._first: str | None = None
        """The worker that this request has started the session on."""
        self._begun = self._used = 0.0
        """Times of creation and last use, as recorded in the store."""
        self._tries = 0
        self.id = key
        self.call = call
        """The client's id of the call that starts the session."""
        self.owner = ""
        """Name of the client key that the request came with."""
        self.bound = ""
        """Name of the session's worker; empty while it has none."""
        self.own = ""
        """The worker's own id for the session, if it differs."""
        self.expires = 0.0
        """When the session ends, as clients are told."""
        self.state = "kept"
        """`new`, `kept`, `rebound` (its worker was lost), `spilled` (moved for its load), or
        `hashed` (the store is down)."""
        self.counted = False
        """Whether the outcome is in the metrics."""
        self.told = False
        """Whether the client has been told of the session."""
        self.undone: Callable[[], Awaitable[object]] | None = None
        """What else to undo if the session turns out not to have started."""

    @property
    def begins(self) -> bool:
        """Whether this request starts the session, so that the client must be told its id."""
        return self._wanted is Requirement.NEW

    def belongs_to(self, sessions: "Sessions") -> bool:
        """Whether these are the sessions that it is part of."""
        return self._sessions is sessions

    def among(self, sessions: "Sessions") -> "SessionUse":
        """Return this request's part in a session of the same id among these."""
        if self.belongs_to(sessions):
            return self
        visit = SessionUse(sessions, self.id, self._wanted, self.call)
        visit.owner = self.owner
        return visit

    async def look(self, pool: "Pool", workers: "Sequence[Worker]", *, uses: bool = True) -> None:
        """Look up the session; `workers` are those that could answer.

        That `uses` the session, unless it is only to be known where a request would go. Raises
        UnknownSession, SessionExists, NoWorker.
        """
        if self.bound and (self._wanted is Requirement.NEW or self.bound == self._first):
            return  # this request has already started it
        known = self._wanted is Requirement.OPEN
        session = await self._sessions.find(self.id, pool, workers, known=known, uses=uses)
        if session is None and known:
            raise UnknownSession
        if session is not None and self._wanted is Requirement.NEW:
            there = session if session.noted else self._sessions.away.find(self.id)
            if there is not None and not self.has_begun(there):
                raise SessionExists
        if self._wanted is Requirement.NEW:
            self.state = "new"
        self.take(session)

    def take(self, session: OpenSession | None) -> None:
        """Take over the session's binding; None: it has none."""
        if session is None:
            self._expected, self.bound, self.own = None, "", ""
            return
        self._expected = session.worker if session.noted else None
        self._begun, self._used = session.created, session.used
        self.bound, self.own = session.worker, session.own
        self.expires = self._sessions.shown(session.expires)

    def has_begun(self, session: OpenSession) -> bool:
        """Whether this request started the session, or another attempt at the same call did."""
        ours = self._expected is not None and session.created == self._begun
        return ours or bool(self.call and session.call == self.call)

    def may_be_at(self, name: str) -> bool:
        """Whether the session is at that worker or at none yet; so it is if no worker is named."""
        return not name or self.bound in {"", name}

    def home(self, pool: "Pool", model: str, workers: "Sequence[Worker]") -> "Worker | None":
        """Return the session's worker, if it can still be asked.

        A draining worker keeps its sessions, unless they may move and another worker is there. An
        ejected worker is asked all the same if its sessions end with it: no other worker could
        answer.
        """
        if not self.bound:
            return None
        for worker in workers:
            if worker.name == self.bound:
                return worker
        there = pool.named.get(self.bound)
        if there is None or not pool.serves(there, model):
            return None
        if self._sessions.ends_with_its_worker(pool):
            return there
        if not (there.draining and (self._sessions.stays or not workers)):
            return None
        return there if pool.breakers.admits(monotonic(), there) else None

    def options(
        self, pool: "Pool", model: str, workers: "Sequence[Worker]"
    ) -> "tuple[Worker | None, str, Sequence[Worker]]":
        """Return the session's worker as `home`, its name if only it will do, and all that will.

        Raises NoWorker.
        """
        home = self.home(pool, model, workers)
        if home is not None and (self._sessions.stays or not workers):
            return home, home.name, [home]
        if not workers:
            raise NoWorker(f"No worker that serves {model!r} is ready; please try again.")
        return home, "", workers

    def named(self, decision: "Decision", workers: "Sequence[Worker]") -> "Decision":
        """Return the decision with its reason corrected: if the worker is there but full, it is a
        spill."""
        if decision.reason == "rebind" and any(worker.name == self.bound for worker in workers):
            return replace(decision, reason="spill")
        return decision

    def reason(self, decided: str) -> str:
        """Return the reason that finally holds: the worker may have refused after the decision."""
        return _REASONS.get(self.state, decided) if decided in _DECIDED else decided

    async def settle(
        self, choice: Candidate, candidates: Sequence[Candidate], pool: "Pool", model: str
    ) -> Candidate:
        """Bind the session to the chosen worker; return the choice that holds.

        If another request bound it first, that is another worker, not checked for room. Raises
        SessionLost or NoWorker if the session must not move, UnknownSession if it was closed
        meanwhile.
        """
        theirs = False
        # Also where it has started: others may have moved it since, while this request waited.
        while (name := choice.worker.name) != self._expected or name == self._first:
            try:
                state = self.going(name, pool, model)
            except SessionLost:
                await self._sessions.lose(self.id)
                raise
            # If its first worker refused, other requests may have followed the session there
            # meanwhile; then it is theirs too, and is moved like any other.
            again = self._expected is not None and state == "new" and not theirs
            used = self._begun if again else None
            to = Binding(name, call=self.call, used=used, owner=self.owner)
            surely = self.begins or state in _MOVES
            bind = self._sessions.surely if surely else self._sessions.bind
            session, done = await bind(self.id, to, self._expected)
            if session is None:  # closed or expired meanwhile
                if self._wanted is Requirement.OPEN:
                    raise UnknownSession
                self.take(None)
            elif done:
                self._moved(state, name)
                self.take(session)
                return choice
            elif state == "new" and session.worker == self._expected:
                # Another request used it meanwhile. It still starts with this request: a call
                # refused because the session exists counts as a use too.
                theirs, self.state = True, "new" if self.begins else "kept"
            else:
                choice = self._follow(session, choice, candidates, pool, model)
            self._tries += 1
            if self._tries == MAX_BIND_TRIES:
                raise NoWorker("Another request is moving this session; please try again.")
        return choice

    def place(self, pool: "Pool") -> str:
        """Return the name of the worker that has the session; empty if none has it yet.

        A worker that refused the first request never had it, unless it is stateful.
        """
        return "" if self.bound == self._first and not pool.stateful else self.bound

    def going(self, name: str, pool: "Pool", model: str) -> str:
        """Return the session's state if this request goes to that worker.

        Raises SessionLost or NoWorker if the session must not move there.
        """
        state = self._state_after(name, pool, model)
        if state in _MOVES and self._sessions.ends_with_its_worker(pool):
            if state == "spilled":
                raise NoWorker("The session's worker could not take it; please try again.")
            raise SessionLost
        return state

    def _state_after(self, name: str, pool: "Pool", model: str) -> str:
        if not self.bound or (self.state == "new" and not pool.stateful):
            return "new"
        if name == self.bound:
            return "kept"
        home = pool.named.get(self.bound)
        if home is None or home.draining or not pool.serves(home, model):
            return "rebound"
        return "spilled" if pool.breakers.admits(monotonic(), home) else "rebound"

    def _moved(self, state: str, name: str) -> None:
        if self._sessions.down:
            state = "hashed"
        elif state in _MOVES:
            self._before = self._before or self._expected
            if name == self._before:
                state = "kept"
        self.state, self._first = state, name if state == "new" else None

    def _follow(
        self,
        session: OpenSession,
        choice: Candidate,
        candidates: Sequence[Candidate],
        pool: "Pool",
        model: str,
    ) -> Candidate:
        """Another request bound it first: go to its worker, if possible."""
        if self._wanted is Requirement.NEW:
            if not self.has_begun(session):
                self.take(None)  # another client started it
                raise SessionExists
            self.state = "new"  # a repeated store command that had succeeded the first time
        self.take(session)
        there = pool.named.get(session.worker)
        if there is not None and there.ready:
            for candidate in candidates:
                if candidate.worker is there:
                    return candidate
        home = self.home(pool, model, [w for w in pool.taking if pool.serves(w, model)])
        return Candidate(home, FREE) if home is not None and self._sessions.stays else choice

    def accepted(self, status: int) -> None:
        """Count the outcome, now that a worker has accepted the request.

        An error in answer to a request that was to start the session is not counted.
        """
        if not self.counted and not (self.begins and status >= 400):
            self.counted = True
            self._sessions.count(self.state)

    async def undo(self) -> None:
        """Undo what this request did to its session, because it failed.

        A session that it was to start is closed; one that it moved goes back if no worker accepted
        it. If its client leaves meanwhile, that is done all the same.
        """
        if not self.bound:
            return
        undoing = asyncio.ensure_future(self._undo())
        try:
            await asyncio.shield(undoing)
        except asyncio.CancelledError:
            await undoing
            raise

    async def _undo(self) -> None:
        if self._wanted is Requirement.NEW:
            self.take(None)  # so that this runs only once
            if await self._sessions.undo(self.id, self._begun) and self.undone is not None:
                await self.undone()
        elif not self.counted:
            before, self._before = self._before, None
            moved = before is not None and self.bound != before
            if moved and await self._sessions.back(self.id, self.bound, before, self._used):
                self.state, self.bound = "kept", before or ""
            self.accepted(0)

    def stripped(self, request: Incoming) -> Stripped:
        """Return the request without the header line that names its session, which is not for
        workers."""
        return Stripped(request, self._sessions.line)

    def fields(self, status: int) -> bytes:
        """Return the header lines that tell the client what happened to its session.

        A new session is announced unless the answer is an error.
        """
        self.told = True
        if not self.bound:
            return b""
        ends = written(self.expires).encode()
        line = b"x-warmroute-session: %b; expires=%b\r\n" % (self.state.encode(), ends)
        if self._wanted is not Requirement.NEW or status >= 400:
            return line
        announcement = announced(self.id, self.expires).encode()
        return line + b"x-amzn-sagemaker-new-session-id: %b\r\n" % announcement
