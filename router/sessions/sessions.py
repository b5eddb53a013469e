"""The sessions of one pool: rules, store, counts, and what is done while the store is down."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from time import time
from typing import TYPE_CHECKING

from router.errors import BadRequest, Headers, NoWorker
from router.sessions import ids
from router.sessions.away import DOUBT_S, Away
from router.sessions.store import PERHAPS, Clock, Kept, MemoryStore, Store, StoreDown
from router.sessions.table import UNNOTED, Binding, Bound, Lease, Session
from router.sessions.visit import Visit, Wanted
from strategies.rendezvous import owner

if TYPE_CHECKING:
    from router.pool import Pool
    from router.settings_session import RedisSettings, SessionSettings
    from router.worker import Worker

log = logging.getLogger("warmroute.sessions")

_STATES = ("new", "rebound", "spilled")


class Sessions:
    """All sessions of a pool."""

    def __init__(self, settings: "SessionSettings", *, stays: bool, clock: Clock = time) -> None:
        self.clock = clock
        self.counts: Counter[str] = Counter(
            dict.fromkeys((*_STATES, "closed", "lost", "hashed"), 0)
        )
        """What became of sessions, by word."""
        self.down = False
        """The store cannot be reached: sessions are where their ids' hash says."""
        self.away = Away(0)
        self._store: Store = MemoryStore(Lease(), lambda: self.clock())  # noqa: PLW0108 - tests change it
        self._kept = Kept(0, 0, 0)
        self.redis: RedisSettings | None = None
        """Where the store is, if it is not in memory."""
        self.change(settings, stays=stays)

    def change(self, settings: "SessionSettings", *, stays: bool) -> None:
        """Other rules, for sessions to come; those there are keep their end."""
        self.stays = stays
        """A bound session waits for its worker."""
        self._lost_is_over = settings.on_worker_lost == "error"
        self._creates = settings.create
        self.names = settings.names
        self.line = b"\n%b:" % self.names.header
        """How the line of a header begins that names a session."""
        self._store.lease = settings.lease
        self.away.most = settings.lease.most

    def keep_in(self, store: Store) -> None:
        """Keep them there from now on."""
        store.lease = self._store.lease
        self._store = store

    # Who belongs to which session.

    def asked(self, headers: Headers, body: bytes) -> Visit | None:
        """Read which session an OpenAI request belongs to; None: to none. Raises BadRequest."""
        named = ids.in_headers(headers, (ids.AWS_HEADER,))
        if named == ids.NEW_SESSION:
            return self.opening(None)
        if named is not None:
            return self.named(ids.check(named, aws=True))
        found = self.names.find(headers, body)
        return None if found is None else self.named(found)

    def named(self, key: str) -> Visit:
        """Go on with a session, or begin it if it is not open and clients may do so."""
        return Visit(self, key, Wanted.EITHER if self._creates else Wanted.OPEN)

    def opening(self, key: str | None, call: str = "") -> Visit:
        """Begin a session, with an id of the client's own or one of ours. Raises BadRequest.

        `call` is the client's name for this call, and the same where it sends it once more.
        """
        if key is not None and len(key) > ids.LONGEST_NEW:
            raise BadRequest(f"A new session's id has at most {ids.LONGEST_NEW} characters.")
        return Visit(self, key or ids.new_id(), Wanted.NEW, call if key else "")

    def within(self, key: str) -> Visit:
        """Go on with a session that must be open."""
        return Visit(self, key, Wanted.OPEN)

    # What a visit asks for.

    async def use(
        self, key: str, pool: "Pool", workers: "Iterable[Worker]", *, known: bool
    ) -> Session | None:
        """Find a session; `known`: the client says that it is open.

        While the store is away it is where its id's hash says, among these workers; if they keep
        sessions themselves, where this router has seen it. Raises NoWorker.
        """
        if not self.down:
            try:
                session = await self._store.use(key)
            except StoreDown as down:
                self._lost(down)
            else:
                if session is PERHAPS:
                    return await self._again(key, pool, workers, known=known)
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

    def _noted(self, key: str, session: Session | None, pool: "Pool") -> None:
        """The store has said so."""
        if session is not None:
            self.away.closed.pop(key, None)
        if pool.stateful:
            self.away.see(key, session)

    async def _again(
        self, key: str, pool: "Pool", workers: "Iterable[Worker]", *, known: bool
    ) -> Session | None:
        """Find a session that the store knows nothing of, and may be open."""
        if key in self.away.closed:
            return None
        seen = self.away.find(key)
        if seen is not None:
            return (await self.bind(key, Binding.of(seen), None)).session
        return self._hashed(key, workers) if known and not pool.stateful else None

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind a session that is bound to `expected`; None: that is not there."""
        if not self.down:
            try:
                bound = await self._store.bind(key, to, expected)
            except StoreDown as down:
                self._lost(down)
            else:
                if bound.session is not None:
                    self.away.closed.pop(key, None)
                return bound
        session = self._store.lease.begun(to, self.clock())
        self.away.begin(key, session)
        return Bound(session, done=True)

    async def surely(self, key: str, to: Binding, expected: str | None) -> Bound:
        """Bind it; if its client leaves before that is known, it is as it was."""
        binding = asyncio.ensure_future(self.bind(key, to, expected))
        try:
            return await asyncio.shield(binding)
        except asyncio.CancelledError:
            # It is on its way to the store, and cannot be undone before it has come there.
            session, done = await binding
            if done and session is not None and expected is None:
                await self.undo(key, session.created)
            elif done and session is not None:
                await self.back(key, to.worker, expected, session.used)
            raise

    async def close(self, key: str) -> bool:
        """End a session; tell whether it was open. What cannot be known is believed."""
        if not self.down:
            try:
                session = await self._store.close(key)
            except StoreDown as down:
                self._lost(down)
            else:
                # It may be away when the next use comes, or have forgotten what was closed.
                news = self.redis is None or self.away.close(key, told=True)
                was = session is not None and (news or session is not PERHAPS)
                self.counts["closed"] += was
                return was
        was = self.away.close(key)
        self.counts["closed"] += was
        return was

    async def undo(self, key: str, begun: float) -> bool:
        """What has `begun` then has not, unless others use it already, or have closed it and begun
        another one; tell whether it is so now."""
        if not self.down:
            try:
                return await self._store.close(key, begun=begun) is not None
            except StoreDown as down:
                self._lost(down)
        return self.away.close(key, begun=begun)

    async def back(self, key: str, worker: str, home: str | None, used: float) -> bool:
        """Bind a session that was moved to `worker` to its home again, unless it was used since;
        tell whether it is there now."""
        if self.down or home is None:
            return False
        return (await self.bind(key, Binding(home, used=used), worker)).done

    async def lose(self, key: str) -> None:
        """End a session whose worker is gone."""
        if await self.close(key):
            self.counts["closed"] -= 1
            self.counts["lost"] += 1

    def ends_with_its_worker(self, pool: "Pool") -> bool:
        """Whether a session is over when its worker is gone: nobody else has its state."""
        return self._lost_is_over or pool.stateful

    def count(self, state: str) -> None:
        """Something became of a session."""
        if state != "kept":
            self.counts[state] += 1

    # For operators.

    async def listed(self, most: int) -> list[tuple[str, Session]]:
        """Return up to `most` open sessions; none while the store is down."""
        try:
            return await self._store.listed(most)
        except StoreDown as down:
            self._lost(down)
            return []

    def kept(self) -> Kept:
        """How many there are; as last known, where that has to be asked for."""
        if isinstance(self._store, MemoryStore):
            return self._store.kept()
        return self._kept

    async def look(self) -> None:
        """Ask the store how many there are. Told so often, it also finds out that it is back."""
        try:
            self._kept = await self._store.look()
            await self.away.tell_ends(self._store)
            if self.down:
                await self._store.doubt(DOUBT_S)  # others may have something to tell yet
            # First, for what is begun from now on need not be told: all of it might never be told,
            # were the router busy enough.
            self._found()
            await self.away.tell_begun(self._store)
        except StoreDown as down:
            self._lost(down)

    async def stop(self) -> None:
        """Let go of the store."""
        await self._store.stop()

    # The store comes and goes.

    def _lost(self, why: StoreDown) -> None:
        if not self.down:
            log.error(
                "the session store is down; sessions are routed by the hash of their id: %s", why
            )
        self.down = True

    def _found(self) -> None:
        if self.down:
            log.warning("the session store is back")
            self.down = False

    def _hashed(self, key: str, workers: "Iterable[Worker]") -> Session | None:
        names = [worker.name for worker in workers if worker.ready]
        if not names:
            return None
        return Session(owner(key, names), UNNOTED, self.clock() + self._store.lease.ttl, 0.0)
