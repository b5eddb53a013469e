"""Many simulated workers in one process, each on its own port."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop
import zmq.asyncio

from simulator.kv.stores import BlockStore, MemoryBlockStore, RedisBlockStore
from simulator.settings import FleetSettings
from simulator.worker import SimulatedWorker

T = TypeVar("T")

#: Seconds to wait for the thread of a fleet.
THREAD_TIMEOUT_S = 30.0


class SimulatedFleet:
    """Workers that run within a context: `async with SimulatedFleet(settings) as fleet:`."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self.workers: list[SimulatedWorker] = []
        self._context: zmq.asyncio.Context | None = None
        self._store: BlockStore[bytes] | None = None

    def __repr__(self) -> str:
        return f"<SimulatedFleet of {len(self.workers)} workers>"

    async def start(self) -> None:
        """Start every worker; raise OSError, with none started, if a port or Redis fails."""
        if self.settings.kv_events:
            self._context = zmq.asyncio.Context()
        try:
            self._store = self._make_store()
            for index in range(self.settings.workers):
                worker = SimulatedWorker(self.settings, index, self._context, self._store)
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

    def _make_store(self) -> BlockStore[bytes] | None:
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


class FleetThread:
    """A fleet in a background thread: `with FleetThread(settings) as fleet: fleet.urls`.

    Workers belong to the thread's event loop: numbers may be read from any thread, but changes
    must go through `call` and `run`.
    """

    def __init__(self, settings: FleetSettings) -> None:
        self._fleet = SimulatedFleet(settings)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="simulator", daemon=True)

    @property
    def workers(self) -> list[SimulatedWorker]:
        """Return the workers, in order."""
        return self._fleet.workers

    @property
    def urls(self) -> list[str]:
        """Return their base URLs, in order."""
        return [worker.url for worker in self._fleet.workers]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the fleet's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(THREAD_TIMEOUT_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the fleet's loop and wait for its result."""

        async def called() -> T:
            return function()

        return self.run(called())

    def start(self) -> None:
        """Start the thread and every worker; raise OSError if a port is taken."""
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
        self._thread.join(THREAD_TIMEOUT_S)

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
