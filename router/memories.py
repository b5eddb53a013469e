"""The memory of each pool whose strategy uses one, and the KV event subscriptions that feed it."""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import msgspec

from controller.memory import Memory
from controller.source import Source
from router.fleet import Fleet
from router.inquiry import Inquiries, NoAnswer
from router.pool import Consult, Pool
from router.remote_memory import RemoteMemory
from router.settings import Settings, TiersSettings, WorkerSettings
from router.stores.made import lookup_of
from router.stores.shared import SharedStore
from router.worker import Worker
from strategies.base import Prompt
from strategies.loads import Loads

if TYPE_CHECKING:
    from controller.subscriber import Subscriber

log = logging.getLogger("warmroute.controller")

#: Seconds a worker may take to answer where it publishes KV events.
PATIENCE_S = 5.0
#: The flag that makes vLLM publish KV events.
FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}\''
)


class Remembers(Protocol):
    """A strategy that uses a memory, if it is given one."""

    memory: Memory | RemoteMemory | None
    memory_bytes: int
    loads: Loads
    store: SharedStore | None


class Published(NamedTuple):
    """Where one engine publishes its KV events."""

    rank: int
    endpoint: str
    replay: str | None
    topic: str


class _Said(msgspec.Struct):
    """The answer of `GET /kv_event_sources` for one data-parallel rank."""

    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    replay_endpoint: str | None = None
    topic: str = ""


class Memories:
    """Follows the fleet: subscribes to workers that join and forgets those that leave."""

    def __init__(self, fleet: Fleet, settings: Settings, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._settings = _by_name(settings)
        self._controller = settings.controller
        self._tiers = self._asked = settings.tiers
        self._loads: dict[str, tuple[TiersSettings, Loads]] = {}
        self._remotes: list[RemoteMemory] = []
        self.stores: dict[str, SharedStore] = {}
        """The L2 store of each pool that asks one."""
        self._gone: list[SharedStore] = []
        self._inquiries = inquiries
        self._subscriber: Subscriber | None = None
        self._followed: dict[tuple[str, Worker], tuple[list[Published], list[Source]]] = {}
        self._asking: dict[Worker, asyncio.Task[None]] = {}
        self._attach()

    def of(self, pool: Pool) -> Memory | None:
        """Return the pool's memory; None if its strategy uses none, or a remote controller's."""
        memory = getattr(pool.chooser, "memory", None)
        return memory if isinstance(memory, Memory) else None

    def remotes(self) -> Iterator[tuple[Pool, RemoteMemory]]:
        """Yield every pool that asks a remote controller."""
        for pool in self._fleet.pools:
            memory = getattr(pool.chooser, "memory", None)
            if isinstance(memory, RemoteMemory):
                yield pool, memory

    @property
    def subscriber(self) -> "Subscriber":
        """The subscriber to KV events, made at first use."""
        if self._subscriber is None:
            # Loading ZeroMQ takes 3 MB, and only routers with a memory need it.
            from controller.subscriber import Subscriber  # noqa: PLC0415

            self._subscriber = Subscriber()
        return self._subscriber

    def pools(self) -> Iterator[tuple[Pool, Memory]]:
        """Yield every pool that has a memory in this process."""
        for pool in self._fleet.pools:
            memory = self.of(pool)
            if memory is not None:
                yield pool, memory

    def all(self) -> Iterator[tuple[Pool, Memory | RemoteMemory]]:
        """Yield every pool that uses a memory, here or in a remote controller."""
        yield from self.pools()
        yield from self.remotes()

    def start(self) -> None:
        """Subscribe to the workers whose addresses are in the settings."""
        if any(self.pools()):
            _ = self.subscriber
        self._attach()
        for pool, _ in self.pools():
            for worker in pool.workers:
                told = _told(self._settings.get(worker.name))
                if told:
                    self._follow(pool, worker, [told])

    async def change(self, settings: Settings) -> None:
        """Follow changed settings, and the fleet as it is now."""
        self._settings = _by_name(settings)
        self._tiers = settings.tiers
        if settings.controller != self._controller:
            self._controller = settings.controller
            for pool in self._fleet.pools:
                if pool.by_blocks:
                    cast("Remembers", pool.chooser).memory = None
        fresh = self._attach()
        await self._let_go_of_stores()
        await self._let_go_of_remotes()
        wanted = {(pool.name, worker) for pool, _ in self.pools() for worker in pool.workers}
        await self._leave_all_but(wanted, fresh)
        self.start()
        for pool, memory in self.all():
            memory.tidy(pool.named)
        for _, worker in wanted:
            if worker.ready:
                self.notice(worker)

    async def _leave_all_but(self, wanted: Collection[tuple[str, Worker]], fresh: set[str]) -> None:
        """Leave workers that are not wanted, publish elsewhere now, or whose pool is `fresh`."""
        for where in list(self._followed):
            if where not in wanted or where[0] in fresh:
                await self._leave(where)
        for (name, worker), (published, _) in list(self._followed.items()):
            told = _told(self._settings.get(worker.name))
            if told and [told] != published:
                await self._leave((name, worker))

    def notice(self, worker: Worker) -> None:
        """Ask a ready worker where it publishes, unless the settings say so."""
        asked = self._asking.get(worker)
        if self._subscriber is None or (asked is not None and not asked.done()):
            return
        for pool, _ in self.pools():
            if worker in pool.workers and _told(self._settings.get(worker.name)) is None:
                self._asking[worker] = asyncio.create_task(self._discover(pool, worker))

    async def settle(self) -> None:
        """Wait until the workers asked have answered, and up to two seconds for connections."""
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        for _ in range(100):
            sources = [one for _, memory in self.pools() for one in memory.all_sources()]
            if not any(one.doubt for one in sources):
                return
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End all subscriptions."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        if self._subscriber is not None:
            await self._subscriber.close()
        for remote in self._remotes:
            await remote.close()
        for store in self.stores.values():
            await store.close()

    def _attach(self) -> set[str]:
        """Give a memory to every strategy that uses one; return the pools that got a new one."""
        fresh = set()
        for pool in self._fleet.pools:
            if pool.by_blocks:
                strategy = cast("Remembers", pool.chooser)
                strategy.loads = self._loads_of(pool)
                if strategy.memory is None:
                    fresh.add(pool.name)
                    strategy.memory = self._made(strategy.memory_bytes)
                strategy.memory.l1 = strategy.loads.has_l1
                remote = strategy.memory if isinstance(strategy.memory, RemoteMemory) else None
                strategy.store = self._store_of(pool)
                pool.prompts.keeps_ids = strategy.store is not None
                pool.consult = _consulting(remote, strategy.store)
                pool.prompts.sizes = strategy.memory.sizes
        return fresh

    def _loads_of(self, pool: Pool) -> Loads:
        """Return the pool's learned tier speeds; new ones if the tiers' settings have changed."""
        told, loads = self._loads.get(pool.name, (None, Loads()))
        if told != self._tiers:
            loads = self._tiers.loads()
            self._loads[pool.name] = self._tiers, loads
        return loads

    def _store_of(self, pool: Pool) -> SharedStore | None:
        """Return the pool's L2 store; a new one if the tiers' settings have changed."""
        store = self.stores.get(pool.name)
        if store is None or self._asked != self._tiers:
            if store is not None:
                self._gone.append(store)
                del self.stores[pool.name]
            lookup, store = lookup_of(self._tiers), None
            if lookup is not None and self._tiers.l2.lmcache is not None:
                store = SharedStore(lookup, self._tiers.l2.lmcache.deadline)
                self.stores[pool.name] = store
        return store

    async def _let_go_of_stores(self) -> None:
        """Close stores of earlier settings, of removed pools, and of pools that ask none now."""
        self._asked = self._tiers
        asking = {pool.name for pool in self._fleet.pools if pool.by_blocks}
        self._gone += [self.stores.pop(name) for name in set(self.stores) - asking]
        while self._gone:
            await self._gone.pop().close()

    async def _let_go_of_remotes(self) -> None:
        """Close connections to controllers that no pool asks any more."""
        asked = [remote for _, remote in self.remotes()]
        gone = [remote for remote in self._remotes if remote not in asked]
        self._remotes = asked
        for remote in gone:
            await remote.close()

    def _made(self, limit_bytes: int) -> Memory | RemoteMemory:
        told = self._controller
        if told is None:
            return Memory(limit_bytes)
        key = told.key.get_secret_value() if told.key else ""
        remote = RemoteMemory(told.url, key, told.deadline)
        self._remotes.append(remote)
        return remote

    async def _discover(self, pool: Pool, worker: Worker) -> None:
        memory = self.of(pool)
        if memory is None:
            return
        try:
            published = await self._ask(worker)
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
            gone = [one for one in self._asking if one not in set(self._fleet.workers)]
            for one in gone:
                self._asking.pop(one)
        where = (pool.name, worker)
        if pool not in self._fleet.pools:  # the settings have changed: ask for the new pool
            self._ask_again(worker)
        elif _told(self._settings.get(worker.name)) is not None:  # they say it by now
            return
        elif where in self._followed and self._followed[where][0] != published:
            await self._leave(where)
            self._ask_again(worker)  # for the settings may have changed meanwhile
        elif worker in pool.workers:
            self._follow(pool, worker, published)

    def _ask_again(self, worker: Worker) -> None:
        self._asking.pop(worker, None)
        self.notice(worker)

    async def _ask(self, worker: Worker) -> list[Published]:
        """Ask a worker where it publishes. Raises NoAnswer, which says how to fix it."""
        answer = await self._inquiries.ask(worker, "/kv_event_sources", patience=PATIENCE_S)
        if answer.status == 404:
            raise NoAnswer(
                "it has no /kv_event_sources; set kv_events, and start vLLM with " + FLAG
            )
        try:
            said = msgspec.json.decode(answer.body, type=dict[str, _Said]) if answer.good else {}
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise NoAnswer("/kv_event_sources answered something else than sources") from None
        published = [
            Published(
                int(rank),
                _reached(one.endpoint, worker),
                _reached(one.replay_endpoint, worker) if one.replay_endpoint else None,
                one.topic,
            )
            for rank, one in sorted(said.items())
            if rank.isdecimal() and one.enable_kv_cache_events and one.publisher == "zmq"
        ]
        if not published:
            raise NoAnswer("it publishes none; start vLLM with " + FLAG)
        return published

    def _follow(self, pool: Pool, worker: Worker, published: list[Published]) -> None:
        memory, where = self.of(pool), (pool.name, worker)
        if memory is None or self._subscriber is None or where in self._followed:
            return
        sources = []
        known = {source.rank for source in memory.sources.get(worker.name, ())}
        for one in published:
            if one.rank in known:  # it was registered with the controller
                continue
            source = memory.join(worker.name, one.rank, replays=one.replay is not None)
            names = (worker.url.partition("://")[2], urlsplit(worker.url).hostname or "")
            self._subscriber.follow(source, one.endpoint, one.replay, one.topic, names)
            sources.append(source)
        self._followed[where] = (published, sources)
        log.info(
            "pool %s: worker %s: KV events from %s", pool.name, worker.name, published[0].endpoint
        )

    async def _leave(self, where: tuple[str, Worker]) -> None:
        _, sources = self._followed.pop(where)
        closing = self._subscriber.leave(sources) if self._subscriber is not None else None
        for pool, memory in self.pools():  # before the await, during which it may be followed again
            if pool.name == where[0]:
                for source in sources:
                    memory.leave(source)
        if closing is not None:
            await closing


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


def _by_name(settings: Settings) -> dict[str, WorkerSettings]:
    return {worker.name: worker for pool in settings.all_pools() for worker in pool.workers}


def _told(settings: WorkerSettings | None) -> Published | None:
    """Return where the settings say that a worker publishes, if they do."""
    if settings is None or settings.kv_events is None:
        return None
    return Published(0, settings.kv_events, settings.kv_replay, "")


def _reached(endpoint: str, worker: Worker) -> str:
    """Replace a wildcard address in `endpoint` by the worker's host."""
    host = urlsplit(worker.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    for anywhere in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - not bound here
        endpoint = endpoint.replace(f"//{anywhere}:", f"//{host}:")
    return endpoint
