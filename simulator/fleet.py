"""Many simulated workers in one process, each on its own port.

A fleet in a background thread, for callers without an event loop or with their own.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop
import zmq.asyncio

from simulator.kv.events import Encoding
from simulator.kv.stores import BlockStore, MemoryBlockStore, RedisBlockStore
from simulator.kv.tiers import USUAL, Rates
from simulator.worker import SimulatedWorker, SimulatedWorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The number of workers in a fleet, and the settings they share."""

    workers: int = 1
    #: A name in `simulator.engine.profiles.PROFILES`.
    profile: str = "llama-3.1-8b-h100"
    #: The base model's names; the first is the canonical one.
    models: Sequence[str] = ("llama-3.1-8b",)
    #: LoRA adapters served beside it.
    adapters: Sequence[str] = ()
    #: Simulated seconds per real second.
    speed: float = 1.0
    host: str = "127.0.0.1"
    #: Port of the first worker, the others use the next ones; 0: any free ports.
    port: int = 0
    #: Tokens a KV block holds.
    block_size: int = 16
    #: Capacity of each KV cache in tokens; None: the profile's.
    kv_tokens: int | None = None
    #: Requests that may wait at a worker before it refuses more with 503; None: no limit.
    max_queued: int | None = None
    #: Capacity of each worker's host memory tier (L1) in tokens; 0: no such tier.
    host_tokens: int = 0
    #: Whether events about blocks in host memory carry hashes only, without tokens.
    bare_events: bool = False
    #: Capacity in tokens of the store (L2) that all workers share; 0: no store.
    store_tokens: int = 0
    #: URL of the Redis to use as the store; None: the store is in this process.
    store_url: str | None = None
    #: How fast each worker loads from host memory and from the store.
    rates: Rates = USUAL
    #: Seeds of the block hashes; workers take them in turn, so a single one serves all.
    hash_seeds: Sequence[str] = ("",)
    #: Whether workers publish KV events.
    kv_events: bool = True
    #: First of the event ports, two per worker: events, then replay; 0: any free ports.
    kv_port: int = 0
    #: How events are encoded: "map" as in vLLM since 0.24, "array" as before.
    kv_encoding: Encoding = "map"
    #: Model folder with tokenizer and chat template; None: the simulator's own.
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for settings that no fleet can have."""
        if self.workers < 1:
            raise ValueError("a fleet has at least one worker")
        if not 0 < self.speed < float("inf"):
            raise ValueError("speed must be a number above zero")
        if not self.models:
            raise ValueError("a worker serves at least one model")
        for first, each in ((self.port, 1), (self.kv_port, 2)):
            if first < 0 or first + each * self.workers > 65536:  # sockets would wrap around
                raise ValueError("ports are 0 (any) to 65535, those of all workers")
        if 0 < self.store_tokens < self.block_size:
            raise ValueError(f"a store holds at least one block of {self.block_size} tokens")
        if self.store_url is not None and not self.store_tokens:
            raise ValueError("a store at a URL needs a size, too: add --store-tokens")

    def worker(self, index: int) -> SimulatedWorkerSettings:
        """The settings of worker `index`, counted from 0."""
        return SimulatedWorkerSettings(
            name=f"sim-{index + 1}",
            profile=self.profile,
            models=tuple(self.models),
            adapters=tuple(self.adapters),
            speed=self.speed,
            host=self.host,
            port=self.port + index if self.port else 0,
            block_size=self.block_size,
            kv_tokens=self.kv_tokens,
            max_queued=self.max_queued,
            host_tokens=self.host_tokens,
            rates=self.rates,
            bare_events=self.bare_events,
            hash_seed=self.hash_seeds[index % len(self.hash_seeds)],
            kv_events=self.kv_events,
            kv_port=self.kv_port + 2 * index if self.kv_port else 0,
            kv_encoding=self.kv_encoding,
            tokenizer=self.tokenizer,
        )


class SimulatedFleet:
    """Workers that run within a context: `async with Fleet(settings) as fleet:`."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self.workers: list[SimulatedWorker] = []
        self._context: zmq.asyncio.Context | None = None
        self._store: BlockStore[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Fleet of {len(self.workers)} workers>"

    async def start(self) -> None:
        """Start every worker; OSError, with none started, if a port is taken or Redis is down."""
        if self.settings.kv_events:
            self._context = zmq.asyncio.Context()
        try:
            self._store = self._made()
            for index in range(self.settings.workers):
                worker = SimulatedWorker(self.settings.worker(index), self._context, self._store)
                await worker.start()
                self.workers.append(worker)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop every worker; in-flight requests are cut off."""
        for worker in self.workers:
            await worker.stop()
        self.workers = []
        if self._context is not None:
            self._context.term()
            self._context = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def _made(self) -> BlockStore[bytes] | None:
        settings = self.settings
        blocks = settings.store_tokens // settings.block_size
        if not blocks:
            return None
        if settings.store_url is None:
            return MemoryBlockStore(blocks)
        store = RedisBlockStore(settings.store_url, blocks)
        try:
            store.check()
        except OSError:
            store.close()
            raise
        return store

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.stop()


def run_fleet(settings: FleetSettings, on_ready: Callable[[SimulatedFleet], None]) -> None:
    """Run a fleet until SIGINT or SIGTERM; `on_ready` is called once all workers listen."""
    uvloop.run(_until_stopped(settings, on_ready))


async def _until_stopped(
    settings: FleetSettings, on_ready: Callable[[SimulatedFleet], None]
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with SimulatedFleet(settings) as fleet:
        on_ready(fleet)
        await stop.wait()


T = TypeVar("T")

_PATIENCE_S = 30.0


class FleetThread:
    """Runs a fleet within a context: `with FleetThread(settings) as fleet: fleet.urls`.

    Workers belong to the thread's event loop: numbers may be read from any thread, but changes
    must go through `call` and `run`.
    """

    def __init__(self, settings: FleetSettings) -> None:
        self._fleet = SimulatedFleet(settings)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="simulator", daemon=True)

    @property
    def workers(self) -> list[SimulatedWorker]:
        """The workers, in order."""
        return self._fleet.workers

    @property
    def urls(self) -> list[str]:
        """Their base URLs, in order."""
        return [worker.url for worker in self._fleet.workers]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the fleet's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the fleet's loop and wait for its result."""

        async def called() -> T:
            return function()

        return self.run(called())

    def start(self) -> None:
        """Start the thread and every worker; OSError when a port is taken."""
        self._thread.start()
        try:
            self.run(self._fleet.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop every worker and the thread."""
        try:
            self.run(self._fleet.stop())
        finally:
            self._end()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()
