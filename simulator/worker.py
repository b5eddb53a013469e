"""One simulated worker: an engine, its clock, its KV event stream and its HTTP server."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence

import zmq.asyncio
from prometheus_client import CollectorRegistry

from simulator.api.app import WorkerApp
from simulator.api.metrics import registry
from simulator.api.served_model import ServedModel
from simulator.engine.clock import EngineClock
from simulator.engine.core import Engine
from simulator.engine.profiles import profile_named
from simulator.http.faults import ActiveFault, FaultOrder
from simulator.http.listener import UvicornConnection, UvicornListener
from simulator.kv.blocks import Change
from simulator.kv.events import ZmqEventPublisher
from simulator.kv.stores import BlockStore
from simulator.kv.tiers import Offloading, Tiers
from simulator.model.language import language_of
from simulator.settings import FleetSettings

#: Seconds to let the answer to the fault request leave before the worker goes down.
_FLUSH_S = 0.005


class SimulatedWorker:
    """A simulated worker that runs between `start` and `stop`."""

    engine: Engine
    clock: EngineClock
    served: ServedModel
    registry: CollectorRegistry

    def __init__(
        self,
        settings: FleetSettings,
        index: int,
        context: zmq.asyncio.Context | None,
        store: BlockStore[bytes] | None = None,
    ) -> None:
        """Create worker `index` of a fleet, counted from 0.

        Without `context` it publishes no KV events. `store` is shared by all workers that are
        given it.
        """
        self.settings = settings
        self._store = store
        self.name = f"sim-{index + 1}"
        self._hash_seed = settings.hash_seeds[index % len(settings.hash_seeds)]
        self.publisher = None if context is None else self._publisher(index, context)
        self.fault: ActiveFault | None = None
        port = settings.port + index if settings.port else 0
        self._listener = UvicornListener(WorkerApp(self), settings.host, port)
        self._expiry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turning = asyncio.Lock()  # one shutdown-and-restart cycle at a time

    def __repr__(self) -> str:
        return f"<SimulatedWorker {self.name} {self.url} {self.engine}>"

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Return its base URL, without a trailing slash."""
        return f"http://{self._host}:{self.port}"

    @property
    def connections(self) -> int:
        """Return how many client connections are open."""
        return len(self._listener.connections)

    @property
    def kv_events(self) -> str | None:
        """Return the endpoint to subscribe to for its KV events."""
        return None if self.publisher is None else self.publisher.endpoint

    @property
    def kv_replay(self) -> str | None:
        """Return the endpoint that replays past KV events."""
        return None if self.publisher is None else self.publisher.replay_endpoint

    async def start(self) -> None:
        """Open its sockets; raise OSError if a port is taken."""
        await self._boot()
        try:
            await self._listener.open()
        except OSError:
            await self._shut_down()
            raise

    async def stop(self) -> None:
        """Drop everything and close."""
        self.clear_fault()
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._listener.close()
        self._listener.drop_all()
        await self._listener.finish()
        await self._shut_down()

    def set_fault(self, order: FaultOrder, asked_by: UvicornConnection | None = None) -> None:
        """Start a fault in place of any other; a restart does not reset connection `asked_by`."""
        self.clear_fault()
        fault = self.fault = ActiveFault(order)
        if order.kind == "slow":
            self.clock.slowdown = order.factor
        if order.kind == "refuse":
            self._spawn(self._refuse(fault))
        elif order.kind == "restart":
            self._spawn(self._restart(fault, asked_by))
        elif order.seconds is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(order.seconds, self.clear_fault)

    def clear_fault(self) -> None:
        """End the active fault, if any."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self.fault is not None:
            self.fault.over.set()
            self.fault = None
        self.clock.slowdown = 1.0

    async def _refuse(self, fault: ActiveFault) -> None:
        async with self._turning:
            await asyncio.sleep(_FLUSH_S)
            self._listener.close()
            self._listener.drop_idle()
            await self._last(fault, fault.order.seconds)
            await self._listener.open()

    async def _restart(self, fault: ActiveFault, asked_by: UvicornConnection | None) -> None:
        async with self._turning:
            await asyncio.sleep(_FLUSH_S)
            self._listener.close()
            self._listener.drop_all(spare=asked_by)
            await self._shut_down()
            await self._last(fault, fault.order.seconds or 0.0)
            await self._boot()
            await self._listener.open()

    async def _last(self, fault: ActiveFault, seconds: float | None) -> None:
        """Wait until the fault is cleared or `seconds` have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await fault.over.wait()
        if self.fault is fault:
            self.clear_fault()

    async def _boot(self) -> None:
        """Start a new engine: nothing cached, all counts at zero, events numbered from 0."""
        settings = self.settings
        self.engine = Engine(
            profile_named(settings.profile),
            block_size=settings.block_size,
            kv_tokens=settings.kv_tokens,
            max_queued=settings.max_queued,
            tiers=self._tiers(),
            hash_seed=self._hash_seed,
        )
        self.clock = EngineClock(self.name, self.engine, settings.speed, self._publish)
        self.served = ServedModel(
            settings.models,
            settings.adapters,
            self.clock,
            language_of(settings.tokenizer),
            str(settings.tokenizer or settings.models[0]),
        )
        self.registry = registry(settings.models[0], self.clock, self.served.stats)
        if self.publisher is not None:
            await self.publisher.open()

    def _tiers(self) -> Offloading | None:
        settings, size = self.settings, self.settings.block_size
        if not settings.host_tokens and self._store is None:
            return None
        tiers = Tiers(size, settings.host_tokens // size, self._store, settings.rates)
        return Offloading(tiers, size, bare=settings.bare_events)

    async def _shut_down(self) -> None:
        self.clock.stop()
        if self.publisher is not None:
            await self.publisher.close()

    def _publish(self, changes: Sequence[Change]) -> None:
        if self.publisher is not None:
            self.publisher.publish(changes)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _host(self) -> str:
        host = self.settings.host
        return f"[{host}]" if ":" in host else host

    def _publisher(self, index: int, context: zmq.asyncio.Context) -> ZmqEventPublisher:
        settings = self.settings
        port = settings.kv_port + 2 * index if settings.kv_port else 0
        return ZmqEventPublisher(
            context,
            f"kv@{self.name}@{settings.models[0]}",
            settings.kv_encoding,
            endpoint=f"tcp://{self._host}:{port or '*'}",
            replay_endpoint=f"tcp://{self._host}:{port + 1 if port else '*'}",
        )
