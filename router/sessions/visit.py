"""One request's part in a session: where the session is, and whether this request moves it.

    look → (wait for room, decide, book) → settle → ask the worker

`settle` is asked before every attempt, once that is booked: what is decided meanwhile must see it.
A session is bound before a byte is sent, by comparing and setting, so that of several requests, in
several routers, one decides and the others follow it. If no worker takes the request on, the
session is where it was.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from router.errors import NoWorker, SessionExists, SessionLost, UnknownSession
from router.headers import Incoming
from router.sessions.expiry import announced, written
from router.sessions.table import Binding, Session
from router.stripped import Stripped
from strategies.base import FREE, Candidate

if TYPE_CHECKING:
    from router.pool import Pool
    from router.sessions.sessions import Sessions
    from router.worker import Worker
    from strategies.base import Decision


#: How often a request starts anew because others bind its session too.
TRIES = 8


_MOVES = frozenset(("rebound", "spilled"))
#: What a decision is called that came to this.
_REASONS = {"kept": "session", "rebound": "rebind", "spilled": "spill"}
_DECIDED = frozenset(("bind", *_REASONS.values()))


class Wanted(Enum):
    """What must be true of the session."""

    OPEN = "open"
    """It is open."""
    NEW = "new"
    """It is not."""
    EITHER = "either"


class Visit:
    """A request that belongs to a session."""

    __slots__ = (
        "_before",
        "_begun",
        "_expected",
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
        "state",
        "told",
        "undone",
    )

    def __init__(self, sessions: "Sessions", key: str, wanted: Wanted, call: str = "") -> None:
        self._sessions = sessions
        self._wanted = wanted
        self._expected: str | None = None
        """The worker as the store has it; None while the session is not there."""
        self._before: str | None = None
        """The worker from which this request has moved it."""
        self._begun = self._used = 0.0
        """When it was created, and used last, as the store has it."""
        self._tries = 0
        self.id = key
        self.call = call
        """The client's name for the call that begins it."""
        self.bound = ""
        """Name of its worker; empty while it has none."""
        self.own = ""
        """The id by which its worker knows it, if that is another one."""
        self.expires = 0.0
        self.state = "kept"
        """`new`, `kept`, `rebound` (its worker was lost), `spilled` (moved for its load), or
        `hashed` (the store is down)."""
        self.counted = False
        """What became of it is in the metrics."""
        self.told = False
        """The client has been told of it."""
        self.undone: Callable[[], Awaitable[object]] | None = None
        """What else is to be done if it turns out that it has not begun."""

    @property
    def begins(self) -> bool:
        """The session begins with it, and the client is to be told its id."""
        return self._wanted is Wanted.NEW

    async def look(self, pool: "Pool", workers: "Sequence[Worker]") -> None:
        """Find out where the session is; `workers` could answer. Raises UnknownSession,
        SessionExists, NoWorker."""
        if self._wanted is Wanted.NEW and self.bound:
            return  # this request has begun it
        known = self._wanted is Wanted.OPEN
        session = await self._sessions.use(self.id, pool, workers, known=known)
        if session is None and known:
            raise UnknownSession
        if session is not None and self._wanted is Wanted.NEW:
            there = session if session.noted else self._sessions.away.find(self.id)
            if there is not None and not self.has_begun(there):
                raise SessionExists
        if self._wanted is Wanted.NEW:  # the store was asked twice, and had done it the first time
            self.state = "new"
        self.take(session)

    def take(self, session: Session | None) -> None:
        """It is bound so."""
        if session is None:
            self._expected, self.bound, self.own = None, "", ""
            return
        self._expected = session.worker if session.noted else None
        self._begun, self._used = session.created, session.used
        self.bound, self.own, self.expires = session.worker, session.own, session.expires

    def has_begun(self, session: Session) -> bool:
        """Whether it is this request that began it, or another attempt at the same call."""
        ours = self._expected is not None and session.created == self._begun
        return ours or bool(self.call and session.call == self.call)

    def home(self, pool: "Pool", model: str, workers: "Sequence[Worker]") -> "Worker | None":
        """Return the session's worker, if it can still be asked.

        One that is being drained keeps its sessions, unless they may move and can. One that is left
        out for its failures is asked all the same by those that cannot: nobody else could answer.
        """
        if not self.bound:
            return None
        for worker in workers:
            if worker.name == self.bound:
                return worker
        found = pool.named.get(self.bound)
        if found is None or not pool.serves(found, model):
            return None
        if self._sessions.ends_with_its_worker(pool):
            return found
        if not (found.draining and (self._sessions.stays or not workers)):
            return None
        return found if pool.breakers.admits(monotonic(), found) else None

    def named(self, decision: "Decision", workers: "Sequence[Worker]") -> "Decision":
        """Return the decision under its right name: a worker without room is there all the same."""
        if decision.reason == "rebind" and any(one.name == self.bound for one in workers):
            return replace(decision, reason="spill")
        return decision

    def reason(self, decided: str) -> str:
        """Return why it is where it is: its worker may have refused it since that was decided."""
        return _REASONS.get(self.state, decided) if decided in _DECIDED else decided

    async def settle(
        self, choice: Candidate, candidates: Sequence[Candidate], pool: "Pool", model: str
    ) -> Candidate:
        """Bind the session to the chosen worker; return the choice that holds.

        That is another one where others were first; nobody has looked for room there. Raises
        SessionLost or NoWorker where it must not move, UnknownSession if it was closed meanwhile.
        """
        theirs = False
        while (name := choice.worker.name) != self._expected:
            state = self._state_after(name, pool, model)
            if state in _MOVES and self._sessions.ends_with_its_worker(pool):
                await self._refuse_to_move(state)
            # Others may have followed it to a worker that has refused us: then it is theirs too.
            again = self._expected is not None and state == "new" and not theirs
            to = Binding(name, call=self.call, used=self._begun if again else None)
            surely = self.begins or state in _MOVES
            bind = self._sessions.surely if surely else self._sessions.bind
            session, done = await bind(self.id, to, self._expected)
            if session is None:  # closed or expired since we looked
                if self._wanted is Wanted.OPEN:
                    raise UnknownSession
                self.take(None)
            elif done:
                self._moved(state, name)
                self.take(session)
                return choice
            elif state == "new" and session.worker == self._expected:
                # (Who was told that it exists has used it too: it begins with this request still.)
                theirs, self.state = True, "new" if self.begins else "kept"
            else:
                choice = self._follow(session, choice, candidates, pool, model)
            self._tries += 1
            if self._tries == TRIES:
                raise NoWorker("Another request is moving this session; please try again.")
        return choice

    def _state_after(self, name: str, pool: "Pool", model: str) -> str:
        # Whoever refuses its first request never had it, unless it keeps sessions itself.
        if not self.bound or (self.state == "new" and not pool.stateful):
            return "new"
        if name == self.bound:
            return "kept"
        worker = pool.named.get(self.bound)
        there = worker is not None and not worker.draining and pool.serves(worker, model)
        if there and worker is not None and pool.breakers.admits(monotonic(), worker):
            return "spilled"
        return "rebound"

    async def _refuse_to_move(self, state: str) -> None:
        if state == "spilled":
            raise NoWorker("The session's worker could not take it; please try again.")
        await self._sessions.lose(self.id)
        raise SessionLost

    def _moved(self, state: str, name: str) -> None:
        if self._sessions.down:
            state = "hashed"
        elif state in _MOVES:
            self._before = self._before or self._expected
            if name == self._before:
                state = "kept"
        self.state = state

    def _follow(
        self,
        session: Session,
        choice: Candidate,
        candidates: Sequence[Candidate],
        pool: "Pool",
        model: str,
    ) -> Candidate:
        """Somebody was first: go where the session is now, if one can."""
        if self._wanted is Wanted.NEW and not self.has_begun(session):
            self.take(None)  # it is somebody else's
            raise SessionExists
        if self._wanted is Wanted.NEW:  # the store was asked twice, and had done it the first time
            self.state = "new"
        self.take(session)
        for one in candidates:
            if one.worker.name == session.worker and getattr(one.worker, "ready", True):
                return one
        home = self.home(pool, model, [w for w in pool.taking if pool.serves(w, model)])
        return Candidate(home, FREE) if home is not None and self._sessions.stays else choice

    def accepted(self, status: int) -> None:
        """A worker has taken the request on: what has become of the session is certain, unless it
        was to begin with an answer that has failed."""
        if not self.counted and not (self.begins and status >= 400):
            self.counted = True
            self._sessions.count(self.state)

    async def undo(self) -> None:
        """A request that was to begin the session was not answered: it has not begun. Nor has one
        moved it that nobody has taken on."""
        if self._wanted is Wanted.NEW and self.bound:
            self.take(None)  # once: whatever becomes of this
            if await self._sessions.undo(self.id, self._begun) and self.undone is not None:
                await self.undone()
        elif not self.counted and self.bound:
            before, self._before = self._before, None
            moved = before is not None and self.bound != before
            if moved and await self._sessions.back(self.id, self.bound, before, self._used):
                self.state, self.bound = "kept", before or ""
            self.accepted(0)

    def stripped(self, request: Incoming) -> Stripped:
        """Return the request without the header field that names its session: that is the router's
        own affair, and the worker keeps none."""
        return Stripped(request, self._sessions.line)

    def fields(self, status: int) -> bytes:
        """Return the header line that tells the client what became of its session.

        One that has begun is announced, unless the answer is an error.
        """
        self.told = True
        if not self.bound:
            return b""
        ends = written(self.expires).encode()
        line = b"x-warmroute-session: %b; expires=%b\r\n" % (self.state.encode(), ends)
        if self._wanted is not Wanted.NEW or status >= 400:
            return line
        told = announced(self.id, self.expires).encode()
        return line + b"x-amzn-sagemaker-new-session-id: %b\r\n" % told
