"""The memory of each pool whose strategy uses one, its remote controller, and its L2 store."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from controller.kv_memory import KvMemory
from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries
from router.fleet.pool import Consult, Pool
from router.fleet.worker import Worker
from router.kv.lmcache.build import lookup_of
from router.kv.lmcache.shared_store import SharedStore
from router.kv.remote import RemoteMemory
from router.kv.subscriptions import Subscriptions, memory_of
from router.settings.fleet import TiersSettings
from router.settings.model import Settings
from strategies.api import Prompt
from strategies.cost.tiers import Loads

if TYPE_CHECKING:
    from controller.events.subscriber import Subscriber


class Memories:
    """Gives every strategy the memory it uses, and follows the fleet with them."""

    def __init__(self, fleet: Fleet, settings: Settings, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._subscriptions = Subscriptions(fleet, settings, inquiries)
        self._controller = settings.controller
        self._tiers = self._asked = settings.tiers
        self._loads: dict[str, tuple[TiersSettings, Loads]] = {}
        self._remotes: list[RemoteMemory] = []
        self.stores: dict[str, SharedStore] = {}
        """The L2 store of each pool that asks one."""
        self._gone: list[SharedStore] = []
        self._attach()

    def of(self, pool: Pool) -> KvMemory | None:
        """Return the pool's memory; None if its strategy uses none, or a remote controller's."""
        return memory_of(pool)

    def remotes(self) -> Iterator[tuple[Pool, RemoteMemory]]:
        """Yield every pool that asks a remote controller."""
        for pool in self._fleet.pools:
            if pool.kv is not None and isinstance(pool.kv.memory, RemoteMemory):
                yield pool, pool.kv.memory

    def pools(self) -> Iterator[tuple[Pool, KvMemory]]:
        """Iterate over the pools that have a memory in this process."""
        return self._subscriptions.pools()

    @property
    def subscriber(self) -> "Subscriber":
        """The subscriber to KV events, made at first use."""
        return self._subscriptions.subscriber

    def all(self) -> Iterator[tuple[Pool, KvMemory | RemoteMemory]]:
        """Yield every pool that uses a memory, here or in a remote controller."""
        yield from self.pools()
        yield from self.remotes()

    def start(self) -> None:
        """Subscribe to the workers whose addresses are in the settings."""
        if any(self.pools()):
            _ = self.subscriber
        self._attach()
        self._subscriptions.follow()

    async def change(self, settings: Settings) -> None:
        """Follow changed settings, and the fleet as it is now."""
        self._subscriptions.change(settings)
        self._tiers = settings.tiers
        if settings.controller != self._controller:
            self._controller = settings.controller
            for pool in self._fleet.pools:
                if pool.kv is not None:
                    pool.kv.memory = None
        fresh = self._attach()
        await self._let_go_of_stores()
        await self._let_go_of_remotes()
        wanted = {(pool.name, worker) for pool, _ in self.pools() for worker in pool.workers}
        await self._subscriptions.leave_all_but(wanted, fresh)
        self.start()
        for pool, memory in self.all():
            memory.tidy(pool.named)
        for _, worker in wanted:
            if worker.ready:
                self.notice(worker)

    def notice(self, worker: Worker) -> None:
        """Ask a ready worker where it publishes, unless the settings say so."""
        self._subscriptions.notice(worker)

    async def settle(self) -> None:
        """Wait until the workers asked have answered, and up to two seconds for connections."""
        await self._subscriptions.settle()

    async def stop(self) -> None:
        """End all subscriptions, and close the connections to controllers and stores."""
        await self._subscriptions.stop()
        for remote in self._remotes:
            await remote.close()
        for store in self.stores.values():
            await store.close()

    def _attach(self) -> set[str]:
        """Give a memory to every strategy that uses one; return the pools that got a new one."""
        fresh = set()
        for pool in self._fleet.pools:
            if pool.kv is not None:
                memory = pool.kv.memory
                if not isinstance(memory, KvMemory | RemoteMemory):
                    fresh.add(pool.name)
                    memory = pool.kv.memory = self._made(pool.kv.memory_bytes)
                pool.kv.loads = self._loads_of(pool)
                memory.l1 = pool.kv.loads.l1_s > 0.0
                store = pool.kv.store = self._store_of(pool)
                pool.prompts.keeps_ids = store is not None
                remote = memory if isinstance(memory, RemoteMemory) else None
                pool.consult = _consulting(remote, store)
                pool.prompts.sizes = memory.sizes
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
        asking = {pool.name for pool in self._fleet.pools if pool.kv is not None}
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

    def _made(self, limit_bytes: int) -> KvMemory | RemoteMemory:
        told = self._controller
        if told is None:
            return KvMemory(limit_bytes)
        key = told.key.get_secret_value() if told.key else ""
        remote = RemoteMemory(told.url, key, told.deadline)
        self._remotes.append(remote)
        return remote


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
