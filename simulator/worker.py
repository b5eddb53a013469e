"""One simulated worker: an engine, its clock, its KV event stream and its HTTP server."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from simulator.kv.events import Encoding, ZmqEventPublisher
from simulator.kv.stores import BlockStore
from simulator.kv.tiers import USUAL, Offloading, Rates, Tiers
from simulator.model.language import language_of

#: Seconds to let the answer to the fault request leave before the worker goes down.
_FLUSH_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkerSettings:
    """The settings of one worker."""

    name: str = "sim-1"
    #: A name in `simulator.engine.profiles.PROFILES`.
    profile: str = "llama-3.1-8b-h100"
    #: The base model's names; the first is the canonical one.
    models: Sequence[str] = ("llama-3.1-8b",)
    #: LoRA adapters served beside it.
    adapters: Sequence[str] = ()
    #: Simulated seconds per real second.
    speed: float = 1.0
    host: str = "127.0.0.1"
    #: 0: any free port.
    port: int = 0
    #: Tokens a KV block holds.
    block_size: int = 16
    #: Capacity of the KV cache in tokens; None: the profile's.
    kv_tokens: int | None = None
    #: Requests that may wait before more are refused with 503; None: no limit.
    max_queued: int | None = None
    #: Capacity of the host memory tier (L1) in tokens; 0: no such tier.
    host_tokens: int = 0
    #: How fast blocks load from the tiers.
    rates: Rates = USUAL
    #: Whether events about blocks in host memory carry hashes only, without tokens.
    bare_events: bool = False
    #: Seed of the block hashes (`PYTHONHASHSEED`): workers share a store only if theirs are equal.
    hash_seed: str = ""
    #: Whether to publish KV events.
    kv_events: bool = False
    #: Port of the events, replay uses the next one; 0: any free ports.
    kv_port: int = 0
    #: How events are encoded: "map" as in vLLM since 0.24, "array" as before.
    kv_encoding: Encoding = "map"
    #: Model folder with tokenizer and chat template; None: the simulator's own.
    tokenizer: Path | None = None


class SimulatedWorker:
    """A simulated worker that runs between `start` and `stop`."""

    engine: Engine
    pump: EngineClock
    served: ServedModel
    registry: CollectorRegistry

    def __init__(
        self,
        settings: SimulatedWorkerSettings,
        context: zmq.asyncio.Context | None,
        store: BlockStore[bytes] | None = None,
    ) -> None:
        """Create a worker; `store` is shared by all workers that are given it."""
        self.settings = settings
        self._store = store
        self.name = settings.name
        self.publisher = None if context is None else _publisher(settings, context)
        self.fault: ActiveFault | None = None
        self._listener = UvicornListener(WorkerApp(self), settings.host, settings.port)
        self._expiry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turning = asyncio.Lock()  # one shutdown-and-restart cycle at a time

    def __repr__(self) -> str:
        return f"<Worker {self.name} {self.url} {self.engine}>"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Its base URL, without a trailing slash."""
        host = self.settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def kv_events(self) -> str | None:
        """The endpoint to subscribe to for its KV events."""
        return None if self.publisher is None else self.publisher.endpoint

    @property
    def kv_replay(self) -> str | None:
        """The endpoint that replays past KV events."""
        return None if self.publisher is None else self.publisher.replay_endpoint

    async def start(self) -> None:
        """Open its sockets; OSError when a port is taken."""
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
            self.pump.slowdown = order.factor
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
        self.pump.slowdown = 1.0

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
            hash_seed=settings.hash_seed,
        )
        self.pump = EngineClock(self.name, self.engine, settings.speed, self._publish)
        self.served = ServedModel(
            settings.models,
            settings.adapters,
            self.pump,
            language_of(settings.tokenizer),
            str(settings.tokenizer or settings.models[0]),
        )
        self.registry = registry(settings.models[0], self.pump, self.served.stats)
        if self.publisher is not None:
            await self.publisher.open()

    def _tiers(self) -> Offloading | None:
        settings = self.settings
        if not settings.host_tokens and self._store is None:
            return None
        size = settings.block_size
        blocks = settings.host_tokens // size
        tiers = Tiers(size, blocks, self._store, settings.rates)
        return Offloading(tiers, size, bare=settings.bare_events)

    async def _shut_down(self) -> None:
        self.pump.stop()
        if self.publisher is not None:
            await self.publisher.close()

    def _publish(self, changes: Sequence[Change]) -> None:
        if self.publisher is not None:
            self.publisher.publish(changes)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _publisher(
    settings: SimulatedWorkerSettings, context: zmq.asyncio.Context
) -> ZmqEventPublisher:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = settings.kv_port
    return ZmqEventPublisher(
        context,
        f"kv@{settings.name}@{settings.models[0]}",
        settings.kv_encoding,
        endpoint=f"tcp://{host}:{port or '*'}",
        replay_endpoint=f"tcp://{host}:{port + 1 if port else '*'}",
    )
