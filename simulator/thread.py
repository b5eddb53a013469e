"""A fleet in a background thread, for callers without an event loop or with their own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from simulator.fleet import Fleet, FleetSettings
from simulator.worker import Worker

T = TypeVar("T")

_PATIENCE_S = 30.0


class FleetThread:
    """Runs a fleet within a context: `with FleetThread(settings) as fleet: fleet.urls`.

    Workers belong to the thread's event loop: numbers may be read from any thread, but changes
    must go through `call` and `run`.
    """

    def __init__(self, settings: FleetSettings) -> None:
        self._fleet = Fleet(settings)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="simulator", daemon=True)

    @property
    def workers(self) -> list[Worker]:
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
