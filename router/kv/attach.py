"""The memory of each pool whose strategy uses one: KV events, a remote controller, and an L2 store.

One subscription follows each engine that feeds a memory of this process. Where a worker publishes
its events is in the settings; otherwise the worker is asked.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from controller.events.source import EventSource
from controller.kv_memory import KvMemory
from router.fleet.build import CannotBuild
from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries, NoAnswer
from router.fleet.pool import Consult, Pool
from router.fleet.worker import Worker
from router.kv.lmcache.names import chunking, naming
from router.kv.lmcache.shared_store import Lookup, LookupFailed, SharedStore
from router.kv.remote import RemoteMemory
from router.settings.fleet import TiersSettings
from router.settings.model import Settings, WorkerSettings
from strategies.api import Prompt
from strategies.cost.prefill import Loads
from strategies.registry import make

if TYPE_CHECKING:
    from controller.events.subscriber import Subscriber

log = logging.getLogger("warmroute.controller")

#: Seconds a worker may take to answer where it publishes KV events.
SOURCES_TIMEOUT_S = 5.0
#: Seconds to wait for connections at most, and between two looks at them.
SETTLE_TIMEOUT_S, SETTLE_INTERVAL_S = 2.0, 0.02
#: The flag that makes vLLM publish KV events.
FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}\''
)


class Published(NamedTuple):
    """Where one engine publishes its KV events."""

    rank: int
    endpoint: str
    replay: str | None
    topic: str


class _KvSource(msgspec.Struct):
    """The answer of `GET /kv_event_sources` for one data-parallel rank."""

    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    replay_endpoint: str | None = None
    topic: str = ""


async def published_by(inquiries: Inquiries, worker: Worker) -> list[Published]:
    """Ask a worker where it publishes. Raises NoAnswer, which says how to fix it."""
    answer = await inquiries.ask(worker, "/kv_event_sources", patience=SOURCES_TIMEOUT_S)
    if answer.status == 404:
        raise NoAnswer("it has no /kv_event_sources; set kv_events, and start vLLM with " + FLAG)
    try:
        sources = msgspec.json.decode(answer.body, type=dict[str, _KvSource]) if answer.good else {}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise NoAnswer("/kv_event_sources answered something else than sources") from None
    published = [
        Published(
            int(rank),
            _reachable(source.endpoint, worker),
            _reachable(source.replay_endpoint, worker) if source.replay_endpoint else None,
            source.topic,
        )
        for rank, source in sorted(sources.items())
        if rank.isdecimal() and source.enable_kv_cache_events and source.publisher == "zmq"
    ]
    if not published:
        raise NoAnswer("it publishes none; start vLLM with " + FLAG)
    return published


def _reachable(endpoint: str, worker: Worker) -> str:
    """Replace a wildcard address in `endpoint` by the worker's host."""
    host = urlsplit(worker.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    for wildcard in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - not bound here
        endpoint = endpoint.replace(f"//{wildcard}:", f"//{host}:")
    return endpoint


class Memories:
    """Gives every strategy the memory it uses, and follows the engines of the fleet for them."""

    def __init__(self, fleet: Fleet, settings: Settings, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._controller = settings.controller
        self._tiers = self._stores_tiers = settings.tiers
        self._workers = _workers_by_name(settings)
        self._loads: dict[str, tuple[TiersSettings, Loads]] = {}
        self._remotes: list[RemoteMemory] = []
        self.stores: dict[str, SharedStore] = {}
        """The L2 store of each pool that asks one."""
        self._replaced_stores: list[SharedStore] = []
        self._subscriber: Subscriber | None = None
        self._followed: dict[tuple[str, Worker], tuple[list[Published], list[EventSource]]] = {}
        """The pool's name and the worker: where its engines publish, and their sources."""
        self._inquiring: dict[Worker, asyncio.Task[None]] = {}
        self._attach()

    @staticmethod
    def of(pool: Pool) -> KvMemory | None:
        """Return the pool's memory; None if its strategy uses none, or a remote controller's."""
        memory = pool.kv.memory if pool.kv is not None else None
        return memory if isinstance(memory, KvMemory) else None

    def remotes(self) -> Iterator[tuple[Pool, RemoteMemory]]:
        """Yield every pool that asks a remote controller."""
        for pool in self._fleet.pools:
            if pool.kv is not None and isinstance(pool.kv.memory, RemoteMemory):
                yield pool, pool.kv.memory

    def pools(self) -> Iterator[tuple[Pool, KvMemory]]:
        """Yield every pool that has a memory in this process."""
        for pool in self._fleet.pools:
            memory = self.of(pool)
            if memory is not None:
                yield pool, memory

    def all(self) -> Iterator[tuple[Pool, KvMemory | RemoteMemory]]:
        """Yield every pool that uses a memory, here or in a remote controller."""
        yield from self.pools()
        yield from self.remotes()

    @property
    def subscriber(self) -> "Subscriber":
        """The subscriber to KV events, made at first use."""
        if self._subscriber is None:
            # Loading ZeroMQ takes 3 MB, and only routers with a memory need it.
            from controller.events.subscriber import Subscriber  # noqa: PLC0415

            self._subscriber = Subscriber()
        return self._subscriber

    def start(self) -> None:
        """Subscribe to the workers whose addresses are in the settings."""
        if any(self.pools()):
            _ = self.subscriber
        self._attach()
        for pool, _ in self.pools():
            for worker in pool.workers:
                configured = self._configured(worker)
                if configured:
                    self._follow(pool, worker, [configured])

    async def change(self, settings: Settings) -> None:
        """Follow changed settings, and the fleet as it is now."""
        self._workers = _workers_by_name(settings)
        self._tiers = settings.tiers
        if settings.controller != self._controller:
            self._controller = settings.controller
            for pool in self._fleet.pools:
                if pool.kv is not None:
                    pool.kv.memory = None
        fresh = self._attach()
        await self._close_unused_stores()
        await self._close_unused_remotes()
        wanted = {(pool.name, worker) for pool, _ in self.pools() for worker in pool.workers}
        await self._leave_all_but(wanted, fresh)
        self.start()
        for pool, memory in self.all():
            memory.tidy(pool.named)
        for _, worker in wanted:
            if worker.ready:
                self.notice(worker)

    def notice(self, worker: Worker) -> None:
        """Ask a ready worker where it publishes, unless the settings say so."""
        inquiry = self._inquiring.get(worker)
        if self._subscriber is None or (inquiry is not None and not inquiry.done()):
            return
        for pool, _ in self.pools():
            if worker in pool.workers and self._configured(worker) is None:
                self._inquiring[worker] = asyncio.create_task(self._discover(pool, worker))

    async def settle(self) -> None:
        """Wait until the workers asked have answered, and up to two seconds for connections."""
        await asyncio.gather(*self._inquiring.values(), return_exceptions=True)
        for _ in range(round(SETTLE_TIMEOUT_S / SETTLE_INTERVAL_S)):
            sources = [source for _, memory in self.pools() for source in memory.all_sources()]
            if not any(source.doubt for source in sources):
                return
            await asyncio.sleep(SETTLE_INTERVAL_S)

    async def stop(self) -> None:
        """End all subscriptions, and close the connections to controllers and stores."""
        for inquiry in self._inquiring.values():
            inquiry.cancel()
        await asyncio.gather(*self._inquiring.values(), return_exceptions=True)
        if self._subscriber is not None:
            await self._subscriber.close()
        for remote in self._remotes:
            await remote.close()
        for store in self.stores.values():
            await store.close()

    # What each pool gets.

    def _attach(self) -> set[str]:
        """Give a memory to every strategy that uses one; return the pools that got a new one."""
        fresh = set()
        for pool in self._fleet.pools:
            if pool.kv is not None:
                memory = pool.kv.memory
                if not isinstance(memory, KvMemory | RemoteMemory):
                    fresh.add(pool.name)
                    memory = pool.kv.memory = self._create_memory(pool.kv.memory_bytes)
                pool.kv.loads = self._loads_of(pool)
                memory.l1 = pool.kv.loads.l1_s > 0.0
                store = pool.kv.store = self._store_of(pool)
                pool.prompts.keeps_ids = store is not None
                remote = memory if isinstance(memory, RemoteMemory) else None
                pool.consult = _consulting(remote, store)
                pool.prompts.sizes = memory.sizes
        return fresh

    def _create_memory(self, limit_bytes: int) -> KvMemory | RemoteMemory:
        settings = self._controller
        if settings is None:
            return KvMemory(limit_bytes)
        key = settings.key.get_secret_value() if settings.key else ""
        remote = RemoteMemory(settings.url, key, settings.deadline)
        self._remotes.append(remote)
        return remote

    def _loads_of(self, pool: Pool) -> Loads:
        """Return the pool's learned tier speeds; new ones if the tiers' settings have changed."""
        tiers, loads = self._loads.get(pool.name, (None, Loads()))
        if tiers != self._tiers:
            loads = self._tiers.loads()
            self._loads[pool.name] = self._tiers, loads
        return loads

    def _store_of(self, pool: Pool) -> SharedStore | None:
        """Return the pool's L2 store; a new one if the tiers' settings have changed."""
        store = self.stores.get(pool.name)
        if store is None or self._stores_tiers != self._tiers:
            if store is not None:
                self._replaced_stores.append(store)
                del self.stores[pool.name]
            lookup, store = lookup_of(self._tiers), None
            if lookup is not None and self._tiers.l2.lmcache is not None:
                store = SharedStore(lookup, self._tiers.l2.lmcache.deadline)
                self.stores[pool.name] = store
        return store

    async def _close_unused_stores(self) -> None:
        """Close stores of earlier settings, of removed pools, and of pools that ask none now."""
        self._stores_tiers = self._tiers
        asking = {pool.name for pool in self._fleet.pools if pool.kv is not None}
        self._replaced_stores += [self.stores.pop(name) for name in set(self.stores) - asking]
        while self._replaced_stores:
            await self._replaced_stores.pop().close()

    async def _close_unused_remotes(self) -> None:
        """Close connections to controllers that no pool asks any more."""
        used = [remote for _, remote in self.remotes()]
        unused = [remote for remote in self._remotes if remote not in used]
        self._remotes = used
        for remote in unused:
            await remote.close()

    # Subscriptions.

    def _configured(self, worker: Worker) -> Published | None:
        """Return where the settings say that a worker publishes, if they do."""
        settings = self._workers.get(worker.name)
        if settings is None or settings.kv_events is None:
            return None
        return Published(0, settings.kv_events, settings.kv_replay, "")

    async def _discover(self, pool: Pool, worker: Worker) -> None:
        memory = self.of(pool)
        if memory is None:
            return
        try:
            published = await published_by(self._inquiries, worker)
        except NoAnswer as lacking:
            if (
                worker in pool.workers
                and worker.name not in memory.sources
                and memory.missing.get(worker.name) != str(lacking)
            ):
                memory.missing[worker.name] = str(lacking)
                log.warning(
                    "pool %s: worker %s publishes no KV events: %s", pool.name, worker.name, lacking
                )
            return
        finally:
            for gone in self._inquiring.keys() - set(self._fleet.workers):
                del self._inquiring[gone]
        where = (pool.name, worker)
        if pool not in self._fleet.pools:  # the settings have changed: ask for the new pool
            self._ask_again(worker)
        elif self._configured(worker) is not None:
            return
        elif where in self._followed and self._followed[where][0] != published:
            await self._leave(where)
            self._ask_again(worker)  # for the settings may have changed meanwhile
        elif worker in pool.workers:
            self._follow(pool, worker, published)

    def _ask_again(self, worker: Worker) -> None:
        self._inquiring.pop(worker, None)
        self.notice(worker)

    def _follow(self, pool: Pool, worker: Worker, published: list[Published]) -> None:
        memory, where = self.of(pool), (pool.name, worker)
        if memory is None or self._subscriber is None or where in self._followed:
            return
        sources = []
        names = (worker.url.partition("://")[2], urlsplit(worker.url).hostname or "")
        registered = {source.rank for source in memory.sources.get(worker.name, ())}
        for engine in published:
            if engine.rank not in registered:  # with the controller, by its API
                source = memory.join(worker.name, engine.rank, replays=engine.replay is not None)
                self._subscriber.follow(source, engine.endpoint, engine.replay, engine.topic, names)
                sources.append(source)
        self._followed[where] = (published, sources)
        log.info(
            "pool %s: worker %s: KV events from %s", pool.name, worker.name, published[0].endpoint
        )

    async def _leave_all_but(self, wanted: set[tuple[str, Worker]], fresh: set[str]) -> None:
        """Leave workers that are not wanted, publish elsewhere now, or whose pool is `fresh`."""
        for where, (published, _) in list(self._followed.items()):
            if where not in self._followed:
                continue  # left while another was
            configured = self._configured(where[1])
            moved = configured is not None and [configured] != published
            if where not in wanted or where[0] in fresh or moved:
                await self._leave(where)

    async def _leave(self, where: tuple[str, Worker]) -> None:
        _, sources = self._followed.pop(where)
        closing = self._subscriber.leave(sources) if self._subscriber is not None else None
        for pool, memory in self.pools():  # before the await, during which it may be followed again
            if pool.name == where[0]:
                for source in sources:
                    memory.leave(source)
        if closing is not None:
            await closing


def _workers_by_name(settings: Settings) -> dict[str, WorkerSettings]:
    return {worker.name: worker for pool in settings.all_pools() for worker in pool.workers}


def _consulting(remote: RemoteMemory | None, store: SharedStore | None) -> Consult | None:
    """Return what asks the controller or the store before a decision; both concurrently."""
    if store is None:
        return remote.ask if remote else None

    async def ask(prompt: Prompt, workers: Sequence[str]) -> None:
        if remote is None:
            await store.ask(prompt)
        else:
            await asyncio.gather(remote.ask(prompt, workers), store.ask(prompt))

    return ask


def lookup_of(tiers: TiersSettings) -> Lookup | None:
    """Return the lookup of the L2 store; None if there is no store to ask, or L2 is disabled.

    Raises CannotBuild if a required package is not installed.
    """
    store = tiers.l2.lmcache
    if store is None or not tiers.l2.enabled:
        return None
    if store.coordinator is not None:
        from router.kv.lmcache.coordinator import Coordinator  # noqa: PLC0415 - httpx takes memory

        return Coordinator(store.coordinator, chunking(store))
    size = tiers.bytes_per_token if "bytes_per_token" in tiers.model_fields_set else None
    try:
        import blake3  # noqa: F401, PLC0415

        from router.kv.lmcache.redis import RedisChunks  # noqa: PLC0415

        return RedisChunks(store, naming(store), size)
    except ImportError as error:
        raise CannotBuild(
            f"tiers.l2.lmcache.redis: {error.name} is not installed: pip install"
            " 'warmroute[lmcache]'"
        ) from None


async def refuse_lost_stores(settings: Settings, *, ask: bool = True) -> None:
    """Raise CannotBuild, with a sentence, if a store's lookup cannot be made or be asked now.

    Without `ask`, no store is asked: an outage while serving is tolerated, and the store does not
    count meanwhile. A store that no strategy asks is no reason to fail.
    """
    lmcache = settings.tiers.l2.lmcache
    if lmcache is None or not settings.tiers.l2.enabled:
        return
    strategies = [pool.strategy for pool in settings.all_pools()]
    if all(make(strategy.name, strategy.options).kv is None for strategy in strategies):
        return
    lookup = lookup_of(settings.tiers)
    if lookup is None:
        return
    store = SharedStore(lookup, 0.0)
    try:
        if ask:
            await store.look()
    except LookupFailed as error:
        field = "redis" if lmcache.redis else "coordinator"
        raise CannotBuild(f"tiers.l2.lmcache.{field}: {error}") from None
    finally:
        await store.close()
