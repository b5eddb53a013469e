"""The sessions of one pool: rules, store, counts, and what is done while the store is down."""

import logging
from collections import Counter
from time import time
from typing import TYPE_CHECKING

from router.errors import BadRequest, Headers
from router.sessions import ids
from router.sessions.store import Clock, Kept, MemoryStore, Store, StoreDown
from router.sessions.table import Lease, Session
from router.sessions.visit import Visit, Wanted
from strategies.rendezvous import owner

if TYPE_CHECKING:
    from router.fleet import Pool
    from router.settings_session import RedisSettings, SessionSettings

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
        self._down_until = self._doubt_until = 0.0
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
        self._field = settings.field
        self.header = settings.header.encode()
        self._names = tuple(dict.fromkeys((ids.AWS_HEADER, self.header)))
        self._store.lease = settings.lease

    def keep_in(self, store: Store) -> None:
        """Keep them there from now on."""
        store.lease = self._store.lease
        self._store = store

    # Who belongs to which session.

    def asked(self, headers: Headers, body: bytes) -> Visit | None:
        """Read which session an OpenAI request belongs to; None: to none. Raises BadRequest."""
        for name in self._names:
            found = ids.in_headers(headers, (name,))
            if found is None:
                continue
            aws = name == ids.AWS_HEADER
            if aws and found == ids.NEW_SESSION:
                return Visit(self, ids.new_id(), Wanted.NEW)
            return self._visit(ids.check(found, aws=aws))
        if self._field is not None:
            named = ids.in_body(body, self._field)
            if named is not None:
                return self._visit(ids.check(named, aws=False))
        return None

    def _visit(self, key: str) -> Visit:
        return Visit(self, key, Wanted.EITHER if self._creates else Wanted.OPEN)

    def opening(self, key: str | None) -> Visit:
        """Begin a session, with an id of the client's own or one of ours. Raises BadRequest."""
        if key is not None and len(key) > ids.LONGEST_NEW:
            raise BadRequest(f"A new session's id has at most {ids.LONGEST_NEW} characters.")
        return Visit(self, key or ids.new_id(), Wanted.NEW)

    def within(self, key: str) -> Visit:
        """Go on with a session that must be open."""
        return Visit(self, key, Wanted.OPEN)

    # What a visit asks for.

    async def use(self, key: str, pool: "Pool", *, known: bool) -> Session | None:
        """Find a session. While the store is down it is where its hash says, if it is `known`."""
        if self._reachable():
            try:
                session = await self._store.use(key)
            except StoreDown as down:
                self._lost(down)
            else:
                self._found()
                if session is None and known and self.clock() < self._doubt_until:
                    return self._hashed(key, pool)  # it may have begun while nobody could note it
                return session
        self.counts["hashed"] += 1
        return self._hashed(key, pool)

    async def bind(self, key: str, worker: str, expected: str | None) -> Session | None:
        """Bind a session; return it as it is then."""
        if self._reachable():
            try:
                return await self._store.bind(key, worker, expected)
            except StoreDown as down:
                self._lost(down)
        now = self.clock()
        return Session(worker, now, self._store.lease.end(now, now), now)

    async def adopt(
        self,
        key: str,
        worker: str,
        own: str,
        expires: float | None,
    ) -> Session | None:
        """Note a session that a worker has opened itself; None: that id is open already."""
        try:
            session = await self._store.bind(key, worker, None, own=own, expires=expires)
        except StoreDown as down:
            self._lost(down)
            now = self.clock()
            return Session(worker, now, expires or self._store.lease.end(now, now), now, own)
        if session is not None and (session.worker, session.own) != (worker, own):
            return None
        self.count("new")
        return session

    async def close(self, key: str) -> bool:
        """End a session; tell whether it was open."""
        if self._reachable():
            try:
                session = await self._store.close(key)
            except StoreDown as down:
                self._lost(down)
            else:
                self._found()
                if session is not None:
                    self.counts["closed"] += 1
                return session is not None or self.clock() < self._doubt_until
        return True  # it ends by itself

    async def lose(self, key: str) -> None:
        """End a session whose worker is gone."""
        self.counts["lost"] += 1
        try:
            await self._store.close(key)
        except StoreDown as down:
            self._lost(down)

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
        except StoreDown as down:
            self._lost(down)
        else:
            self._found()

    async def stop(self) -> None:
        """Let go of the store."""
        await self._store.stop()

    # The store comes and goes.

    def _reachable(self) -> bool:
        return not self.down or self.clock() >= self._down_until

    def _lost(self, why: StoreDown) -> None:
        now = self.clock()
        if not self.down:
            log.error("the session store is down, sessions go by their hash: %s", why)
        self.down = True
        self._down_until = now + RETRY_S
        self._doubt_until = now + RETRY_S + self._store.lease.ttl

    def _found(self) -> None:
        if self.down:
            log.warning("the session store is back")
            self.down = False
            self._doubt_until = self.clock() + self._store.lease.ttl

    def _hashed(self, key: str, pool: "Pool") -> Session | None:
        names = [worker.name for worker in pool.taking if worker.ready]
        if not names:
            return None
        # Created at 0: nobody has noted it.
        return Session(owner(key, names), 0.0, self.clock() + self._store.lease.ttl, 0.0)


#: Seconds between two tries to reach a store that is down.
RETRY_S = 1.0
