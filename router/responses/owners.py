"""Which worker has which response of `/v1/responses`, as the workers' answers have told.

vLLM and SGLang keep responses in the memory of the process that made them, so only that worker can
go on from one, show it or cancel it. What is kept here is bounded in number, and forgotten a day
after its last use. The router's other processes are told of each (`replicas/`), and other routers
through Redis, if the settings have one for sessions.
"""

import asyncio
import logging
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from router.api.errors import LostPrevious, LostResponse, NoWorker
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import ProbeState, Worker
from router.responses.ids import MAX_BEGINNING_BYTES, id_in
from router.responses.messages import OwnerQuery, ResponseOwner
from router.sessions.redis import RedisStore
from router.sessions.store import StoreDown
from router.sessions.table import Binding, OpenSession, SessionLease, Table
from router.settings.model import Settings

if TYPE_CHECKING:
    from router.settings.sessions import RedisSettings

log = logging.getLogger("warmroute.sessions")

#: How many responses are remembered, some 420 bytes each, and for how long after their last use.
LEASE: Final = SessionLease(ttl=86_400.0, sliding=True, most=100_000)
#: Seconds until a store that is down is asked again.
RETRY_INTERVAL_S = 1.0
#: Seconds in which another process may say what it knows, and how often is looked whether one has.
QUERY_TIMEOUT_S, QUERY_CHECKS = 0.1, 10
#: Where they are in Redis: no pool can have that name.
_PLACE: Final = "/v1/responses"


class ResponsePeers(Protocol):
    """The router's other processes."""

    def at_once(self, news: ResponseOwner | OwnerQuery) -> None:
        """Tell them, or ask them, now."""

    def catch_up(self) -> None:
        """Take in everything that they have told."""


class Responses:
    """The responses that workers have. One instance for the whole router."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._table = Table(LEASE)
        self._separate = False
        """Clients have several keys: what is not known to be one's own is not there."""
        self._store: RedisStore | None = None
        self._redis: RedisSettings | None = None
        self._former: list[RedisStore] = []
        self._down_until = 0.0
        self._down = False
        self.others: ResponsePeers | None = None
        """The router's other processes, if there are any."""

    def change(self, settings: Settings) -> None:
        """Apply other settings to requests from now on; `tidy` is to be called afterwards."""
        names = {key.name for key in settings.client_keys}
        names |= {key.access_key for key in settings.sagemaker.sigv4}
        self._separate = len(names) > 1
        redis = settings.session.redis
        if redis == self._redis:
            return
        if self._store is not None:
            self._former.append(self._store)
        self._redis, self._down_until = redis, 0.0
        self._store = None if redis is None else RedisStore(redis, _PLACE, LEASE)

    async def tidy(self) -> None:
        """Close the connections to stores that are not used any more."""
        while self._former:
            await self._former.pop().stop()

    async def stop(self) -> None:
        """Close all connections to stores."""
        await self.tidy()
        if self._store is not None:
            await self._store.stop()

    # What answers tell.

    def naming(self, worker: Worker, tenant: str) -> "IdReader":
        """Return what finds the id in an answer of that worker to the key named `tenant`."""
        return IdReader(self, worker, tenant)

    def learn(self, response: str, worker: Worker, tenant: str) -> ResponseOwner:
        """Remember that a worker has a response, and tell the other processes."""
        process = "" if worker.started is None else repr(worker.started)
        news = ResponseOwner(_key(response), worker.name, tenant, process)
        self.hear(news)
        if self.others is not None:
            self.others.at_once(news)
        return news

    def hear(self, news: ResponseOwner) -> None:
        """Remember what this or another process has learned.

        What another key has already under that id stays: clients of vLLM may choose the id.
        """
        now = monotonic()
        owner = self._table.find(news.key, now)
        if owner is not None:
            if owner.own != news.tenant:
                return
            self._table.close(news.key, now)
        self._table.bind(news.key, _binding(news), None, now)

    def known(self, key: str) -> ResponseOwner | None:
        """Return what is known here of a response."""
        owner = self._table.find(key, monotonic())
        return None if owner is None else ResponseOwner(key, owner.worker, owner.own, owner.call)

    async def share(self, news: ResponseOwner) -> None:
        """Tell the other routers, if there is a store that can be reached."""
        store = self._reachable()
        if store is None:
            return
        try:
            owner, done = await store.bind(news.key, _binding(news), None)
            self._down = False
            if done or owner is None or owner.own != news.tenant:
                return
            if (owner.worker, owner.call) != (news.worker, news.process):
                await store.close(news.key)
                await store.bind(news.key, _binding(news), None)
        except StoreDown as down:
            self._lost(down, store)

    # What requests ask.

    async def place(
        self, response: str, tenant: str | None, lost: type[LostResponse] = LostResponse
    ) -> tuple[Pool, Worker] | None:
        """Return the worker that has a response, with its pool.

        None if it is not known here: some worker may have it all the same. Raises `lost` if it is
        gone or not of the key named `tenant` (if clients have several keys, so is whatever is not
        known), and NoWorker if that cannot be known now. None as a `tenant` stands for any.
        """
        owner = await self._find(_key(response))
        if owner is None and (tenant is None or not self._separate):
            return None
        if owner is None or tenant not in {None, owner.own}:
            raise lost
        for pool in self._fleet.pools:
            worker = pool.named.get(owner.worker)
            if worker is not None and not _is_another(worker, owner):
                return pool, worker
        raise lost

    async def only(self, response: str, tenant: str) -> tuple[Pool, Worker]:
        """Return the worker to ask for a response. Raises LostResponse, NoWorker.

        Of one that is not known here, the only worker can tell.
        """
        home = await self.place(response, tenant)
        if home is not None:
            return home
        every = [(pool, worker) for pool in self._fleet.pools for worker in pool.workers]
        if len(every) != 1:
            raise LostResponse
        return every[0]

    async def _find(self, key: str) -> OpenSession | None:
        """Return where a response is, here or by what others tell. Raises NoWorker."""
        owner = self._table.use(key, monotonic())
        if owner is None and self.others is not None:
            self.others.catch_up()
            owner = self._table.use(key, monotonic())
        if owner is not None:
            return owner
        if self._store is not None:
            return await self._fetch(key)
        return None if self.others is None else await self._ask(key, self.others)

    async def _ask(self, key: str, others: ResponsePeers) -> OpenSession | None:
        """Ask the other processes: this one may be younger, or may have missed something."""
        others.at_once(OwnerQuery(key))
        owner, tries = None, QUERY_CHECKS
        while owner is None and tries:
            await asyncio.sleep(QUERY_TIMEOUT_S / QUERY_CHECKS)
            owner, tries = self._table.use(key, monotonic()), tries - 1
        return owner

    async def _fetch(self, key: str) -> OpenSession | None:
        """Return what the other routers have told. Raises NoWorker."""
        store, owner = self._reachable(), None
        if store is not None:
            try:
                owner = await store.use(key)
            except StoreDown as down:
                self._lost(down, store)
                store = None
        if store is None:
            raise NoWorker("The store that knows where the response is is down; please try again.")
        self._down = False
        if owner is None or not owner.worker:
            return None
        self._table.bind(key, Binding.of(owner)._replace(expires=None), None, monotonic())
        return owner

    def _reachable(self) -> RedisStore | None:
        return self._store if monotonic() >= self._down_until else None

    def _lost(self, why: StoreDown, store: RedisStore) -> None:
        if store is not self._store:
            return
        if not self._down:
            log.error("the store of responses is down: other routers hear of none: %s", why)
        self._down, self._down_until = True, monotonic() + RETRY_INTERVAL_S


class IdReader:
    """Finds the id of a response in its answer, which is relayed meanwhile."""

    __slots__ = ("_beginning", "_news", "_responses", "_tenant", "_untold", "_worker")

    def __init__(self, responses: Responses, worker: Worker, tenant: str) -> None:
        self._responses, self._worker, self._tenant = responses, worker, tenant
        self._beginning = b""
        self._news: ResponseOwner | None = None
        self._untold = True

    async def begins(self, data: bytes) -> bool:
        """Look at the first bytes, before any is relayed; return whether the id is there."""
        self._look(data[:MAX_BEGINNING_BYTES])
        await self.ends()
        return self._news is not None

    def add(self, data: bytes) -> None:
        """Look at more bytes, which are about to be relayed."""
        if self._news is None and len(self._beginning) < MAX_BEGINNING_BYTES:
            self._beginning += data[: MAX_BEGINNING_BYTES - len(self._beginning)]
            self._look(self._beginning)

    async def ends(self) -> None:
        """Tell other routers, unless that is done."""
        if self._news is not None and self._untold:
            self._untold = False
            await self._responses.share(self._news)

    def _look(self, beginning: bytes) -> None:
        if response := id_in(beginning):
            self._news = self._responses.learn(response, self._worker, self._tenant)


def at(pool: Pool, model: str, name: str) -> list[Worker]:
    """Return the worker of that name as the only one that will do, if it may be asked now.

    That it is draining or ejected does not matter: no other has what is asked for. Raises NoWorker
    if it is away, and LostPrevious if it cannot answer for the model.
    """
    worker = pool.named.get(name)
    if worker is None or (worker.there and not pool.serves(worker, model)):
        raise LostPrevious
    if worker.state is ProbeState.ASLEEP:
        raise NoWorker("The worker that has the response is asleep; wake it, or try again later.")
    if not worker.there:
        raise NoWorker("The worker that has the response is not ready; please try again.")
    return [worker]


def _key(response: str) -> str:
    """Return a key of fixed length; who reads it cannot fetch the response."""
    return blake2b(response.encode(), digest_size=16).hexdigest()


def _binding(news: ResponseOwner) -> Binding:
    return Binding(news.worker, news.tenant, call=news.process, owner=news.tenant)


def _is_another(worker: Worker, owner: OpenSession) -> bool:
    """Whether a worker is another process by now than the one that had the response."""
    known = owner.call and worker.started is not None
    return bool(known) and owner.call != repr(worker.started)
