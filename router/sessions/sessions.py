"""The sessions of one pool: rules, store, counts, and what happens while the store is down."""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import islice
from time import time
from typing import TYPE_CHECKING, TypeVar

from router.api.errors import BadRequest, Headers, NoWorker
from router.sessions import ids
from router.sessions.store import PERHAPS, Clock, Kept, MemoryStore, Store, StoreDown, steady
from router.sessions.table import UNNOTED, Binding, Bound, OpenSession, SessionLease
from router.sessions.use import Requirement, SessionUse
from strategies.policies.session import owner

if TYPE_CHECKING:
    from router.fleet.pool import Pool
    from router.fleet.worker import Worker
    from router.settings.sessions import RedisSettings, SessionSettings

log = logging.getLogger("warmroute.sessions")

T = TypeVar("T")

#: Reports sent to the store in parallel. One at a time could take minutes; many more would take
#: over half of the connections away from requests.
MAX_REPORTS = 16
#: Seconds after an outage during which an id unknown to the store is accepted as possibly open.
#: Other routers may need that long to notice that the store is back and to report what they
#: started.
DOUBT_S = 3.0

_STATES = ("new", "rebound", "spilled")


class Outage:
    """What this router did to sessions while the store was down, to be reported to it afterwards.

    Sessions started or closed during an outage, and some seen before it; `most` of each kind.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.begun: OrderedDict[str, OpenSession] = OrderedDict()
        """Sessions bound during the outage, the latest last."""
        self.seen: OrderedDict[str, OpenSession] = OrderedDict()
        """The last known binding of sessions that only their own worker can serve (stateful
        pools)."""
        self.closed: OrderedDict[str, None] = OrderedDict()
        """Ids of sessions that this router closed, during an outage or not."""
        self._unreported: OrderedDict[str, float | None] = OrderedDict()
        """The closed ids not yet reported to the store. The value is the creation time if only the
        session created then was closed."""

    def begin(self, key: str, session: OpenSession) -> None:
        """Record a session that was bound while the store could not be told."""
        self.closed.pop(key, None)
        self._unreported.pop(key, None)
        self._keep(self.begun, key, session)

    def see(self, key: str, session: OpenSession | None) -> None:
        """Record what the store said about a session; None: it is not open."""
        if session is None:
            self.seen.pop(key, None)
        else:
            self._keep(self.seen, key, session)

    def close(self, key: str, *, reported: bool = False, begun: float | None = None) -> bool:
        """Close a session; return whether it may have been open.

        With `begun`, close it only if it was created then. `reported`: the store knows already.
        """
        session = self.begun.get(key)
        if session is not None and begun is not None and session.created != begun:
            return False
        self.begun.pop(key, None)
        self.seen.pop(key, None)
        if key in self.closed:
            return False
        self._keep(self.closed, key, None)
        if not reported:
            self._keep(self._unreported, key, begun)
        return True

    def find(self, key: str) -> OpenSession | None:
        """Return a session that this router started or has seen."""
        return self.begun.get(key) or self.seen.get(key)

    async def tell_ends(self, store: Store) -> None:
        """Report closed sessions to the store.

        Raises StoreDown; what was not reported yet is kept.
        """
        while self._unreported:
            ends = list(islice(self._unreported.items(), MAX_REPORTS))
            await asyncio.gather(*(self._tell_end(store, key, begun) for key, begun in ends))

    async def _tell_end(self, store: Store, key: str, begun: float | None) -> None:
        await store.close(key, begun=begun)
        self._unreported.pop(key, None)

    async def tell_begun(self, store: Store) -> None:
        """Report the sessions started so far, and have other routers accept unknown ids meanwhile.

        Raises StoreDown; what was not reported yet is kept.
        """
        for _ in range(0, len(self.begun), MAX_REPORTS):
            sessions = list(islice(self.begun.items(), MAX_REPORTS))
            begun = (self._tell_begun(store, key, session) for key, session in sessions)
            await asyncio.gather(store.doubt(DOUBT_S), *begun)

    async def _tell_begun(self, store: Store, key: str, session: OpenSession) -> None:
        bound, done = await store.bind(key, Binding.of(session), None)
        if self.begun.get(key) is session:
            del self.begun[key]
        elif done and bound is not None and key in self.closed:  # closed meanwhile
            await store.close(key, begun=bound.created)

    def _keep(self, among: OrderedDict[str, T], key: str, value: T) -> None:
        among[key] = value
        among.move_to_end(key)
        if len(among) > self.most:
            among.popitem(last=False)


class Sessions:
    """All sessions of a pool."""

    def __init__(
        self,
        settings: "SessionSettings",
        *,
        stays: bool,
        clock: Clock = time,
        lasting: Clock = steady,
    ) -> None:
        self.clock = clock
        """The system's clock: clients are told when sessions end."""
        self.lasting = lasting
        """The clock by which sessions in memory end."""
        self.counts: Counter[str] = Counter(
            dict.fromkeys((*_STATES, "closed", "lost", "hashed"), 0)
        )
        """How often each thing happened to a session, by the word used in metrics."""
        self.down = False
        """The store cannot be reached; sessions are routed by the hash of their id."""
        self.away = Outage(0)
        # (Looked up at each call, as tests replace them.)
        self._store: Store = MemoryStore(
            SessionLease(),
            lambda: self.lasting(),  # noqa: PLW0108
            lambda: self.clock(),  # noqa: PLW0108
        )
        self._former: list[Store] = []
        self._kept = Kept(0, 0, 0)
        self.redis: RedisSettings | None = None
        """Settings of the remote store, if sessions are not in memory."""
        self.change(settings, stays=stays)

    def change(self, settings: "SessionSettings", *, stays: bool) -> None:
        """Change the rules for new sessions; open ones keep their end."""
        self.stays = stays
        """A session waits for its worker rather than move away from it."""
        self._lost_is_over = settings.on_worker_lost == "error"
        self._creates = settings.create
        self.names = ids.Names.of(settings)
        self.line = b"\n%b:" % self.names.header
        """How the header line that names a session begins."""
        self._store.lease = SessionLease.of(settings)
        self.away.most = self._store.lease.most

    def keep_in(self, store: Store) -> None:
        """Keep sessions in this store from now on; the next `look` closes the one before."""
        store.lease = self._store.lease
        self._former.append(self._store)
        self._store = store

    def shown(self, moment: float) -> float:
        """Return a time of a session by the clock that clients and operators go by."""
        return moment + self._store.ahead()

    # Which request belongs to which session.

    def asked(self, headers: Headers, body: bytes) -> SessionUse | None:
        """Return the session that an OpenAI request belongs to; None: none. Raises BadRequest."""
        named = ids.in_headers(headers, (ids.AWS_HEADER,))
        if named == ids.NEW_SESSION:
            return self.opening(None)
        if named is not None:
            return self.named(ids.check(named))
        session_id = self.names.find(headers, body)
        return None if session_id is None else self.named(session_id)

    def named(self, key: str) -> SessionUse:
        """Continue a session, or start it if it is not open and clients may do so."""
        return SessionUse(self, key, Requirement.EITHER if self._creates else Requirement.OPEN)

    def opening(self, key: str | None, call: str = "") -> SessionUse:
        """Start a session, with an id of the client's own or a new one. Raises BadRequest.

        `call` is the client's id of this call, which is the same when it retries the call.
        """
        if key is not None and len(key) > ids.MAX_NEW_ID_CHARS:
            raise BadRequest(f"A new session's id has at most {ids.MAX_NEW_ID_CHARS} characters.")
        return SessionUse(self, key or ids.new_id(), Requirement.NEW, call if key else "")

    def within(self, key: str) -> SessionUse:
        """Continue a session that must be open."""
        return SessionUse(self, key, Requirement.OPEN)

    # What a `SessionUse` calls.

    async def find(
        self, key: str, pool: "Pool", workers: "Iterable[Worker]", *, known: bool, uses: bool
    ) -> OpenSession | None:
        """Return a session, or None. Raises NoWorker.

        `known`: the client says that it is open. `uses`: this counts as a use of it. While the
        store is down, the hash of the id chooses among `workers`; in a stateful pool the session
        is where this router last saw it.
        """
        if not self.down:
            store = self._store
            try:
                session = await (store.use(key) if uses else store.find(key))
            except StoreDown as down:
                self._lost(down, store)
            else:
                if session is PERHAPS:
                    return await self._again(key, pool, workers, known=known, uses=uses)
                if self.redis is not None:
                    self._noted(key, session, pool)
                return session
        if key in self.away.closed:
            return None
        if pool.stateful:  # any other worker would refuse it
            session = self.away.find(key)
            if session is None and known:
                raise NoWorker("The session store is down; please try again.")
            return session
        return self._hashed(key, workers)

    def _noted(self, key: str, session: OpenSession | None, pool: "Pool") -> None:
        """Remember what the store said about a session."""
        if session is not None:
            self.away.closed.pop(key, None)
        if pool.stateful:
            self.away.see(key, session)

    async def _again(
        self, key: str, pool: "Pool", workers: "Iterable[Worker]", *, known: bool, uses: bool
    ) -> OpenSession | None:
        """Find a session that the store does not know but that may be open."""
        if key in self.away.closed:
            return None
        seen = self.away.find(key)
        if seen is not None and not uses:
            return seen
        if seen is not None:
            return (await self.bind(key, Binding.of(seen), None)).session
        return self._hashed(key, workers) if known and not pool.stateful else None

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind a session that is now bound to `expected`; None: one that is not open."""
        if not self.down:
            store = self._store
            try:
                bound = await store.bind(key, to, expected)
            except StoreDown as down:
                self._lost(down, store)
            else:
                if bound.session is not None:
                    self.away.closed.pop(key, None)
                return bound
        session = self._store.lease.begun(to, self.clock())
        self.away.begin(key, session)
        return Bound(session, done=True)

    async def surely(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind a session; if the request is cancelled before the result is known, undo that."""
        binding = asyncio.ensure_future(self.bind(key, to, expected))
        try:
            return await asyncio.shield(binding)
        except asyncio.CancelledError:
            # The command is already on its way to the store, and can only be undone once it is
            # done.
            session, done = await binding
            if done and session is not None and expected is None:
                await self.undo(key, session.created)
            elif done and session is not None:
                await self.back(key, to.worker, expected, session.used)
            raise

    async def close(self, key: str) -> bool:
        """Close a session; return whether it was open. If that cannot be known, assume it was."""
        if not self.down:
            store = self._store
            try:
                session = await store.close(key)
            except StoreDown as down:
                self._lost(down, store)
            else:
                # Remembered here too: at the next use the store may be down, or have lost what was
                # closed.
                news = self.redis is None or self.away.close(key, reported=True)
                was = session is not None and (news or session is not PERHAPS)
                self.counts["closed"] += was
                return was
        was = self.away.close(key)
        self.counts["closed"] += was
        return was

    async def undo(self, key: str, begun: float) -> bool:
        """Undo the start of a session created at `begun`; return whether that was done.

        It stays if others have used it, or if it was closed and another one started under its id.
        """
        if not self.down:
            store = self._store
            try:
                return await store.close(key, begun=begun) is not None
            except StoreDown as down:
                self._lost(down, store)
        return self.away.close(key, begun=begun)

    async def back(self, key: str, worker: str, home: str | None, used: float) -> bool:
        """Move a session from `worker` back to its home; return whether it is there now.

        It stays if it was used after `used`.
        """
        if self.down or home is None:
            return False
        return (await self.bind(key, Binding(home, used=used), worker)).done

    async def lose(self, key: str) -> None:
        """Close a session whose worker is gone."""
        if await self.close(key):
            self.counts["closed"] -= 1
            self.counts["lost"] += 1

    def ends_with_its_worker(self, pool: "Pool") -> bool:
        """Whether a session ends if its worker is gone, because of settings or its worker's
        state."""
        return self._lost_is_over or pool.stateful

    def count(self, state: str) -> None:
        """Count what happened to a session."""
        if state != "kept":
            self.counts[state] += 1

    # For operators.

    async def listed(self, most: int) -> list[tuple[str, OpenSession]]:
        """Return up to `most` open sessions. Raises StoreDown."""
        store = self._store
        try:
            return await store.listed(most)
        except StoreDown as down:
            self._lost(down, store)
            raise

    def kept(self) -> Kept:
        """Return the counts; for a remote store, those of the last `look`."""
        if isinstance(self._store, MemoryStore):
            return self._store.kept()
        return self._kept

    async def look(self) -> None:
        """Get the store's counts; called regularly, this also notices that the store is back."""
        await self._close_former()
        store = self._store
        try:
            self._kept = await store.look()
            await self.away.tell_ends(store)
            if self.down:
                await store.doubt(DOUBT_S)  # other routers may still have sessions to report
            # Mark it as back first: what starts from now on goes straight to the store. Otherwise a
            # busy router could add sessions to report faster than they are reported.
            self._found()
            await self.away.tell_begun(store)
        except StoreDown as down:
            self._lost(down, store)

    async def stop(self) -> None:
        """Close the store."""
        await self._close_former()
        await self._store.stop()

    async def _close_former(self) -> None:
        while self._former:
            await self._former.pop().stop()

    # Outages of the store.

    def _lost(self, why: StoreDown, store: Store) -> None:
        """Note that a store is down, unless another one has been set since it was asked."""
        if store is not self._store:
            return
        if not self.down:
            log.error(
                "the session store is down; sessions are routed by the hash of their id: %s", why
            )
        self.down = True

    def _found(self) -> None:
        if self.down:
            log.warning("the session store is back")
            self.down = False

    def _hashed(self, key: str, workers: "Iterable[Worker]") -> OpenSession | None:
        names = [worker.name for worker in workers if worker.ready]
        if not names:
            return None
        return OpenSession(owner(key, names), UNNOTED, self.clock() + self._store.lease.ttl, 0.0)
