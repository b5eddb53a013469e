"""The subscriptions to KV events: one for each engine that feeds the memory of a pool.

Where a worker publishes its KV events: the settings say so, or the worker does.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from controller.events.source import EventSource
from controller.kv_memory import KvMemory
from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries, NoAnswer
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.settings.model import Settings, WorkerSettings

if TYPE_CHECKING:
    from controller.events.subscriber import Subscriber

#: Seconds a worker may take to answer where it publishes KV events.
TIMEOUT_S = 5.0
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


def configured(settings: WorkerSettings | None) -> Published | None:
    """Return where the settings say that a worker publishes, if they do."""
    if settings is None or settings.kv_events is None:
        return None
    return Published(0, settings.kv_events, settings.kv_replay, "")


async def published_by(inquiries: Inquiries, worker: Worker) -> list[Published]:
    """Ask a worker where it publishes. Raises NoAnswer, which says how to fix it."""
    answer = await inquiries.ask(worker, "/kv_event_sources", patience=TIMEOUT_S)
    if answer.status == 404:
        raise NoAnswer("it has no /kv_event_sources; set kv_events, and start vLLM with " + FLAG)
    try:
        said = msgspec.json.decode(answer.body, type=dict[str, _KvSource]) if answer.good else {}
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


def _reached(endpoint: str, worker: Worker) -> str:
    """Replace a wildcard address in `endpoint` by the worker's host."""
    host = urlsplit(worker.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    for anywhere in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - not bound here
        endpoint = endpoint.replace(f"//{anywhere}:", f"//{host}:")
    return endpoint


log = logging.getLogger("warmroute.controller")


class Subscriptions:
    """Subscribes to workers that join, and leaves those that leave."""

    def __init__(self, fleet: Fleet, settings: Settings, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._subscriber: Subscriber | None = None
        self._followed: dict[tuple[str, Worker], tuple[list[Published], list[EventSource]]] = {}
        self._asking: dict[Worker, asyncio.Task[None]] = {}
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Know other settings from now on; what they change follows with `leave_all_but`."""
        self._settings = _by_name(settings)

    def pools(self) -> Iterator[tuple[Pool, KvMemory]]:
        """Yield every pool that has a memory in this process."""
        for pool in self._fleet.pools:
            memory = memory_of(pool)
            if memory is not None:
                yield pool, memory

    @property
    def subscriber(self) -> "Subscriber":
        """The subscriber to KV events, made at first use."""
        if self._subscriber is None:
            # Loading ZeroMQ takes 3 MB, and only routers with a memory need it.
            from controller.events.subscriber import Subscriber  # noqa: PLC0415

            self._subscriber = Subscriber()
        return self._subscriber

    def follow(self) -> None:
        """Subscribe to the workers whose addresses are in the settings."""
        for pool, _ in self.pools():
            for worker in pool.workers:
                known = self._told(worker)
                if known:
                    self._follow(pool, worker, [known])

    async def leave_all_but(self, wanted: Collection[tuple[str, Worker]], fresh: set[str]) -> None:
        """Leave workers that are not wanted, publish elsewhere now, or whose pool is `fresh`."""
        for where in list(self._followed):
            if where not in wanted or where[0] in fresh:
                await self._leave(where)
        for (name, worker), (published, _) in list(self._followed.items()):
            known = self._told(worker)
            if known and [known] != published:
                await self._leave((name, worker))

    def notice(self, worker: Worker) -> None:
        """Ask a ready worker where it publishes, unless the settings say so."""
        asked = self._asking.get(worker)
        if self._subscriber is None or (asked is not None and not asked.done()):
            return
        for pool, _ in self.pools():
            if worker in pool.workers and self._told(worker) is None:
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
        """End all of them."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        if self._subscriber is not None:
            await self._subscriber.close()

    def _told(self, worker: Worker) -> Published | None:
        return configured(self._settings.get(worker.name))

    async def _discover(self, pool: Pool, worker: Worker) -> None:
        memory = memory_of(pool)
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
            gone = [one for one in self._asking if one not in set(self._fleet.workers)]
            for one in gone:
                self._asking.pop(one)
        where = (pool.name, worker)
        if pool not in self._fleet.pools:  # the settings have changed: ask for the new pool
            self._ask_again(worker)
        elif self._told(worker) is not None:  # they say it by now
            return
        elif where in self._followed and self._followed[where][0] != published:
            await self._leave(where)
            self._ask_again(worker)  # for the settings may have changed meanwhile
        elif worker in pool.workers:
            self._follow(pool, worker, published)

    def _ask_again(self, worker: Worker) -> None:
        self._asking.pop(worker, None)
        self.notice(worker)

    def _follow(self, pool: Pool, worker: Worker, published: list[Published]) -> None:
        memory, where = memory_of(pool), (pool.name, worker)
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


def memory_of(pool: Pool) -> KvMemory | None:
    """Return the pool's memory; None if its strategy uses none, or a remote controller's."""
    memory = pool.kv.memory if pool.kv is not None else None
    return memory if isinstance(memory, KvMemory) else None


def _by_name(settings: Settings) -> dict[str, WorkerSettings]:
    return {worker.name: worker for pool in settings.all_pools() for worker in pool.workers}
