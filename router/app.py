"""The door: inference paths straight to the proxy, everything else to FastAPI."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from router.admin import admin, operator_paths
from router.asgi import Bridge
from router.exchange import Exchange, date_line
from router.fleet import Fleet
from router.gate import admin_gate, for_clients, main_gate
from router.health import Health
from router.identity.keeper import Keeper
from router.inquiry import Inquiries
from router.memories import Memories
from router.metrics import Metrics
from router.openai import ENDPOINTS, Endpoint
from router.own_metrics import own_metrics
from router.protocol import Client
from router.proxy import Proxy
from router.reading import Bounds
from router.rebuild import Plan, build
from router.sagemaker.paths import Operation, Route, route
from router.sagemaker.surface import SageMaker
from router.sessions.keeping import let_go, look_after
from router.sessions.paths import add_session_paths
from router.settings import Settings
from router.stores.made import refuse_lacking_stores
from router.tls import Contexts
from router.view import View
from router.worker import Worker


class Door:
    """What is behind every connection. A dictionary stands in front of FastAPI's routing."""

    bounds: Bounds
    admit: Callable[[Exchange], int]
    """Judge a request by its head; return the longest body it may have. Raises DoorError."""

    def __init__(self, fleet: Fleet, settings: Settings, contexts: Contexts) -> None:
        self._settings = settings
        self._contexts = contexts
        self.fleet = fleet
        self._inquiries = Inquiries()
        self.keeper = Keeper(fleet, settings, self._inquiries)
        self.metrics = Metrics(fleet, lambda: self.keeper.cases)
        self.clients: set[Client] = set()
        self.metrics.also(lambda: own_metrics(lambda: len(self.clients)))
        self.stopping = False
        """Told to stop: not ready any more, and every answer is the last on its connection."""
        self.memories = Memories(fleet, settings, self._inquiries)
        self._health = Health(fleet, settings.health, self._inquiries, self._notice)
        self.metrics.remember(self.memories)
        self.view = View(fleet, self.metrics, lambda: self.keeper.cases, self.memories)
        self._proxy = Proxy(fleet, self.metrics, settings)
        app = admin(fleet, self.view, lambda: self.stopping, self._proxy)
        add_session_paths(app, fleet)
        self._admin = Bridge(app)
        self._sagemaker = SageMaker(fleet, self._proxy, settings)
        self._operators = operator_paths(app)
        self._apart = settings.admin.listen is not None
        self._looking: asyncio.Task[None] | None = None
        self.backdoor = Backdoor(self)
        self._rule(settings)

    def _notice(self, worker: Worker, back: bool) -> None:
        """A ready worker was asked for its models."""
        self.keeper.notice(worker, back)
        self.memories.notice(worker)

    def _rule(self, settings: Settings) -> None:
        """Bounds and rules for everyone, from the next request on."""
        self.metrics.aliases = settings.metrics.aliases == "hyperpod"
        self.bounds = _bounds(settings)
        self._prefix = settings.sagemaker.prefix or ""
        self.admit = main_gate(settings, self._operators, apart=self._apart).admit
        self.backdoor.admit = admin_gate(settings, self._operators).admit

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer a request that was admitted and is there as a whole."""
        endpoint = ENDPOINTS.get(exchange.path)
        if endpoint is not None and exchange.method == "POST":
            return self._serve(endpoint, exchange)
        asked = route(exchange.path, self._prefix)
        if asked is not None:
            if asked.operation is Operation.OPENAI and exchange.method == "GET":
                return self._models_of(asked, exchange)
            return self._sagemaker.serve(asked, exchange)
        if exchange.method == "OPTIONS" and for_clients(exchange.path):
            return _permit(exchange)
        return self._admin.serve(exchange)

    async def _serve(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Interpreted, also where the proxy is compiled: its task has exceptions of its own."""
        await self._proxy.serve(endpoint, exchange)

    async def _models_of(self, asked: Route, exchange: Exchange) -> None:
        """List models below an endpoint, as below `/v1`."""
        if self._sagemaker.admits(asked, exchange):
            exchange.path = asked.path
            await self._admin.serve(exchange)

    def unserved(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """A request was refused, or its client left, before anybody served it."""
        self._proxy.refused(exchange, status, reason)

    def freed_elsewhere(self) -> None:
        """Another process of this router tells that requests of its own have got on."""
        self._proxy.freed_elsewhere()

    async def change(self, settings: Settings) -> list[Worker]:
        """Put other settings into effect, all of them between two requests.

        Workers that join are probed first, while everything goes on as before. Returns those that
        have left. Raises CannotBuild; then nothing has changed.
        """
        plan = Plan(self.fleet, self._settings, settings, self._contexts)
        await refuse_lacking_stores(settings)
        try:
            await self._health.meet(plan.joining)
            before = {pool.sessions for pool in self.fleet.pools if pool.sessions is not None}
            left = plan.carry_out()
            self._settings = settings
            self.keeper.change(settings)
            await self.memories.change(settings)
            self._health.change(settings.health)
            self._proxy.change(settings)
            self._sagemaker.change(settings)
            self._rule(settings)
            for client in self.everyone:
                client.follow(self.bounds)
            for gone in before.difference(pool.sessions for pool in self.fleet.pools):
                await gone.stop()
        finally:
            await self._health.part()
        return left

    @property
    def everyone(self) -> list[Client]:
        """All connections, those of operators too."""
        return [*self.clients, *self.backdoor.clients]

    async def start(self) -> None:
        """Look at every worker once, and go on looking."""
        self.memories.start()
        await self._health.start()
        self.keeper.start()
        self._looking = asyncio.create_task(look_after(self.fleet))

    async def look(self) -> None:
        """Look at everything once: every worker, and every tokenizer."""
        self.memories.start()
        await self._health.start()
        await self.keeper.settle()
        await self.memories.settle()

    async def stop(self) -> None:
        """Let go of the workers."""
        if self._looking is not None:
            self._looking.cancel()
        await self.keeper.stop()
        await self.memories.stop()
        await self._health.stop()
        self._proxy.close()
        for worker in self.fleet.workers:
            worker.upstream.close()
        await let_go(self.fleet)
        await asyncio.sleep(0)  # closing takes a turn of the loop


class Backdoor:
    """What is behind the connections to `admin.listen`: the same, by rules of its own."""

    admit: Callable[[Exchange], int]
    """As the door's."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.clients: set[Client] = set()  # a crowd at the door does not lock operators out
        self.serve = door.serve
        self.unserved = door.unserved

    @property
    def bounds(self) -> Bounds:
        """As the door's, now."""
        return self._door.bounds

    @property
    def stopping(self) -> bool:
        """As the door's, now."""
        return self._door.stopping


async def _permit(exchange: Exchange) -> None:
    """Answer a browser that asks what a page may do: the gate has said it already."""
    exchange.answer(204, b"x-request-id: %b\r\n%b" % (exchange.identity, date_line()), b"")


def _bounds(settings: Settings) -> Bounds:
    clients, limits = settings.clients, settings.limits
    return Bounds(
        header_s=clients.header,
        body_s=clients.body,
        write_s=clients.write,
        keepalive_s=clients.keepalive,
        connections=clients.connections,
        url=limits.url,
        headers=limits.headers,
        header_count=limits.header_count,
    )


def create_app(settings: Settings) -> Door:
    """Make the application that `settings` describe. Raises CannotBuild."""
    contexts = Contexts()
    return Door(build(settings, contexts), settings, contexts)
