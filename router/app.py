"""The composition root: makes one router of its parts, serves with it, and changes its settings.

`Application` sends the paths of inference straight to the proxy, and everything else to FastAPI; it
owns the fleet and what looks after it. `RouterServer` is one serving process: an application, its
sockets, and settings that may change meanwhile.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from prometheus_client import Metric

from router.admin.routes import admin, operator_paths
from router.admin.sessions import add_session_paths
from router.admin.views import View
from router.api.endpoints import (
    ENDPOINTS,
    EXPLAIN,
    MODELS,
    OPEN_PATHS,
    SESSIONS,
    SMALL_BODY,
    Endpoint,
)
from router.dispatch.metrics import dispatch_metrics
from router.fleet.build import CannotBuild, Plan, build
from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries
from router.fleet.metrics import fleet_metrics, hyperpod_metrics
from router.fleet.probes import Health
from router.fleet.state import leave, take_over
from router.fleet.worker import Worker
from router.http.access import AccessRules, Cors, Keys, PathRule
from router.http.asgi import AsgiBridge
from router.http.connection import HttpConnection
from router.http.exchange import Exchange, date_line
from router.http.server import Server
from router.http.tls import Contexts, ServerTlsContext, door_context
from router.kv.attach import Memories, refuse_lost_stores
from router.kv.metrics import memory_metrics
from router.observe.process import own_metrics
from router.prompt.salts import Salts
from router.proxy.proxy import Proxy
from router.proxy.responses import Retrieval
from router.responses.ids import Stored, stored
from router.responses.owners import Responses
from router.runtime import logs
from router.runtime.process import trim_memory
from router.sagemaker.handler import SageMaker
from router.sagemaker.paths import Operation, Route, path_rules, route
from router.sessions.attach import give_sessions, sessions_of, stop_sessions, sweep_sessions
from router.sessions.metrics import session_metrics
from router.settings.files import check_chain
from router.settings.model import Settings
from router.settings.server import KeySettings, TlsSettings
from router.tokenizers.registry import TokenizerRegistry
from router.tokenizers.status import tokenizer_metrics
from strategies.api import nothing
from strategies.cost.load import Booking


class Application:
    """Serves the requests of all connections. A dictionary lookup comes before FastAPI's routing.

    It owns the fleet and everything that looks after it.
    """

    admit: Callable[[Exchange], int]
    """Check a request by its head; return the size limit of its body. Raises APIError."""

    def __init__(self, fleet: Fleet, settings: Settings, contexts: Contexts) -> None:
        self.settings = settings
        self._contexts = contexts
        self.fleet = fleet
        self._inquiries = Inquiries()
        self.keeper = TokenizerRegistry(fleet, settings, self._inquiries)
        self.metrics = fleet_metrics(fleet)
        self.clients: set[HttpConnection] = set()
        self.stopping = False
        """Shutting down: not ready any more, and every answer is the last on its connection."""
        self.memories = Memories(fleet, settings, self._inquiries)
        self._health = Health(fleet, settings.health, self._inquiries, self._notice)
        self.view = View(fleet, self.metrics, lambda: self.keeper.cases, self.memories)
        self._proxy = Proxy(fleet, self.metrics, settings)
        self.dispatcher = self._proxy.dispatcher
        """Decides on requests, and books them on workers."""
        self._add_metrics()
        app = admin(fleet, self.view, lambda: self.stopping, self._proxy.dry_run)
        add_session_paths(app, fleet)
        self._admin = AsgiBridge(app)
        self._sagemaker = SageMaker(fleet, self._proxy, settings)
        self._retrieval = Retrieval(self._proxy, self.metrics, settings)
        self._operators = operator_paths(app)
        self._apart = settings.admin.listen is not None
        self._tasks: list[asyncio.Task[None]] = []
        self.admin_listener = AdminListener(self)
        self._rule(settings)

    def _add_metrics(self) -> None:
        """Include in every scrape what the parts of the router show of themselves."""
        fleet, metrics = self.fleet, self.metrics
        metrics.add(lambda: dispatch_metrics(self.dispatcher))
        metrics.add(lambda: session_metrics(fleet.pools))
        metrics.add(lambda: tokenizer_metrics(fleet.pools, self.keeper.cases))
        metrics.add(lambda: memory_metrics(self.memories))
        metrics.add(lambda: own_metrics(lambda: len(self.clients)))
        metrics.add(self._repeated)

    def _repeated(self) -> Iterable[Metric]:
        """Yield the series under HyperPod's names, if the settings want them."""
        if not self._aliases:
            return ()
        counts = self.metrics.counters["requests"]
        return hyperpod_metrics(counts, self.fleet.pools, self.metrics.pools)

    def _notice(self, worker: Worker, back: bool) -> None:
        """Pass on that a ready worker was asked for its models."""
        self.keeper.notice(worker, back)
        self.memories.notice(worker)

    def _rule(self, settings: Settings) -> None:
        """Apply access rules, from the next request on."""
        self._aliases = settings.metrics.aliases == "hyperpod"
        self._prefix = settings.sagemaker.prefix or ""
        self.admit = _client_rules(settings, self._operators, apart=self._apart).admit
        self.admin_listener.admit = _operator_rules(settings, self._operators).admit

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer a request that was admitted and has arrived completely."""
        endpoint = ENDPOINTS.get(exchange.path)
        if endpoint is not None and exchange.method == "POST":
            return self._serve(endpoint, exchange)
        sagemaker_route = route(exchange.path, self._prefix)
        stored_response = stored(exchange.path if sagemaker_route is None else sagemaker_route.path)
        if stored_response is not None and exchange.method != "OPTIONS":
            return self._retrieve(stored_response, sagemaker_route, exchange)
        if sagemaker_route is not None:
            if sagemaker_route.operation is Operation.OPENAI and exchange.method == "GET":
                return self._models_of(sagemaker_route, exchange)
            return self._sagemaker.serve(sagemaker_route, exchange)
        if exchange.method == "OPTIONS" and _is_for_clients(exchange.path):
            return _permit(exchange)
        return self._admin.serve(exchange)

    async def _serve(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Run the proxy in an interpreted coroutine, even if the proxy itself is compiled.

        Each task then has an exception state of its own.
        """
        await self._proxy.serve(endpoint, exchange)

    async def _models_of(self, sagemaker_route: Route, exchange: Exchange) -> None:
        """List models below a SageMaker endpoint's path, as below `/v1`."""
        if await self._sagemaker.admits(sagemaker_route, exchange):
            exchange.path = sagemaker_route.path
            await self._admin.serve(exchange)

    async def _retrieve(
        self, stored_response: Stored, sagemaker_route: Route | None, exchange: Exchange
    ) -> None:
        """Serve the path of a response, which may be below a SageMaker endpoint's."""
        if sagemaker_route is not None:
            if not await self._sagemaker.admits(sagemaker_route, exchange):
                return
            exchange.keyed = True  # AWS credentials are of no use to a worker
        await self._retrieval.serve(stored_response, exchange)

    @property
    def responses(self) -> Responses:
        """Which worker has which response."""
        return self._proxy.responses

    def unserved(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """Count and log a request that was refused, or whose client left, before it was served."""
        self._proxy.refused(exchange, status, reason)

    def freed_elsewhere(self) -> None:
        """Note that a prefill or an answer of another process of this router has ended."""
        self._proxy.freed_elsewhere()

    def gives_way(self, booking: Booking) -> None:
        """Preempt a request for one of another process of this router, if it is not too late."""
        self._proxy.gives_way(booking)

    async def change(self, settings: Settings) -> list[Worker]:
        """Put new settings into effect, all of them between two requests.

        Workers that join are probed first, while everything goes on as before. Returns the workers
        that were removed. Raises CannotBuild; then nothing has changed.
        """
        plan = Plan(self.fleet, self.settings, settings, self._contexts)
        await refuse_lost_stores(settings, ask=False)
        try:
            await self._health.meet(plan.joining)
            before = sessions_of(self.fleet)
            left = plan.carry_out()
            give_sessions(self.fleet, settings.session, before)
            self.settings = settings
            self.keeper.change(settings)
            self._health.change(settings.health)
            self._proxy.change(settings)
            self._sagemaker.change(settings)
            self._retrieval.change(settings)
            self._rule(settings)
            for client in self.everyone:
                client.follow(settings)
            await self.memories.change(settings)  # last: it closes connections before it returns
            await self.responses.tidy()
            for gone in set(before.values()).difference(sessions_of(self.fleet).values()):
                await gone.stop()
        finally:
            await self._health.part()
        return left

    @property
    def everyone(self) -> list[HttpConnection]:
        """All client connections, including those to `admin.listen`."""
        return [*self.clients, *self.admin_listener.clients]

    async def start(self) -> None:
        """Probe every worker once, then go on in the background."""
        self.memories.start()
        await self._health.start()
        self.keeper.start()
        self._tasks = [
            asyncio.create_task(sweep_sessions(self.fleet)),
            asyncio.create_task(trim_memory(lambda: self._proxy.large_ended)),
        ]

    async def look(self) -> None:
        """Check everything once: every worker, tokenizer and stream of KV events."""
        self.memories.start()
        await self._health.start()
        await self.keeper.settle()
        await self.memories.settle()

    async def stop(self) -> None:
        """Stop all background work and close the connections to the workers."""
        for task in self._tasks:
            task.cancel()
        await self.keeper.stop()
        await self.memories.stop()
        await self._health.stop()
        self._proxy.close()
        for worker in self.fleet.workers:
            worker.upstream.close()
        await stop_sessions(self.fleet)
        await self.responses.stop()
        await asyncio.sleep(0)  # one loop iteration, in which transports close


class AdminListener:
    """Serves the connections to `admin.listen`: the same door with its own access rules."""

    admit: Callable[[Exchange], int]
    """As `Application.admit`."""

    def __init__(self, door: Application) -> None:
        self._door = door
        self.clients: set[HttpConnection] = (
            set()
        )  # counted apart: clients cannot lock operators out
        self.serve = door.serve
        self.unserved = door.unserved

    @property
    def settings(self) -> Settings:
        """The door's current settings."""
        return self._door.settings

    @property
    def stopping(self) -> bool:
        """Whether the door is shutting down."""
        return self._door.stopping


async def _permit(exchange: Exchange) -> None:
    """Answer a CORS preflight; the access rules have added the header fields already."""
    exchange.answer(204, b"x-request-id: %b\r\n%b" % (exchange.identity, date_line()), b"")


def _client_rules(settings: Settings, operators: Collection[str], *, apart: bool) -> AccessRules:
    """Make the rules of the listener for clients.

    The `operators` paths are served there too, unless `apart`: then they have their own listener.
    """
    keys, admin = _keys(settings.client_keys), _keys(settings.admin_keys)
    longest = settings.limits.longest
    paths = {
        path: PathRule(keys, "POST", longest(form=endpoint.form), pages=True)
        for path, endpoint in ENDPOINTS.items()
    }
    paths[MODELS] = models = PathRule(keys, "GET", SMALL_BODY, pages=True)
    if not apart:
        paths |= dict.fromkeys(operators, PathRule(admin, None, SMALL_BODY))
        paths[EXPLAIN] = PathRule(admin, "POST", settings.limits.body)
    paths |= dict.fromkeys(OPEN_PATHS, PathRule(None, None, SMALL_BODY))
    sagemaker = path_rules(settings, keys)

    def others(path: str) -> PathRule | None:
        if _is_below(path, MODELS):
            return models
        if _is_below(path, SESSIONS) and SESSIONS in paths:
            return paths[SESSIONS]
        if (response := stored(path)) is not None:
            return PathRule(keys, response.methods, SMALL_BODY, pages=True)
        return sagemaker(path)

    # Any key entitles to a 404; one of both clients and operators has its name as a client's.
    known = _keys((*settings.admin.keys, *settings.client_keys)) if settings.client_keys else None
    cors = Cors(settings.cors) if settings.cors else None
    salts = Salts(settings).by_name
    return AccessRules(paths, others, known, cors, salts=salts, steering=settings.steering)


def _operator_rules(settings: Settings, operators: Collection[str]) -> AccessRules:
    """Make the rules of the operators' own listener."""
    keys = _keys(settings.admin_keys)
    paths = dict.fromkeys(operators, PathRule(keys, None, SMALL_BODY))
    paths[EXPLAIN] = PathRule(keys, "POST", settings.limits.body)
    paths |= dict.fromkeys(OPEN_PATHS, PathRule(None, None, SMALL_BODY))
    return AccessRules(
        paths, lambda path: paths.get(SESSIONS) if _is_below(path, SESSIONS) else None, keys
    )


def _keys(keys: Sequence[KeySettings]) -> Keys | None:
    return Keys((key.name, key.key.get_secret_value()) for key in keys) if keys else None


def _is_below(path: str, parent: str) -> bool:
    return path.startswith(parent + "/") and len(path) > len(parent) + 1


def _is_for_clients(path: str) -> bool:
    """Return true if the path is for clients, which includes web pages that `cors` allows."""
    return path in ENDPOINTS or path == MODELS or _is_below(path, MODELS) or bool(stored(path))


def create_app(settings: Settings) -> Application:
    """Make the application that `settings` describe. Raises CannotBuild."""
    contexts = Contexts()
    fleet = build(settings, contexts)
    give_sessions(fleet, settings.session, {})
    return Application(fleet, settings, contexts)


log = logging.getLogger("warmroute.reload")

#: Seconds between two checks whether a removed worker has ended its last request.
DRAIN_POLL_INTERVAL_S = 0.2


class RouterServer:
    """Serves as the settings say, and follows their changes."""

    def __init__(self, settings: Settings, place: int | None = None) -> None:
        """`place` is this process's among several. Raises CannotBuild."""
        self._settings = settings
        self._place = place
        self.door = create_app(settings)
        take_over(self.door.fleet, settings.shutdown.state, place)
        self._tls = _context(settings)
        if self._tls is not None:
            self.door.metrics.add(self._tls.metrics)
        self.server = Server(self.door, settings.shutdown, self._tls)
        self._draining: set[asyncio.Task[None]] = set()
        self.at_rest: Callable[[], None] = nothing
        """Called when all is answered, before the learned state is saved; it must not change
        after this."""

    async def run(
        self, listeners: Sequence[socket.socket], admin: Sequence[socket.socket] = ()
    ) -> None:
        """Serve until told to stop, shut down in order, and save the learned state."""
        try:
            await self.server.serve(listeners, admin)
        finally:
            for task in tuple(self._draining):
                task.cancel()
            self.at_rest()
            state = self._settings.shutdown.state
            await asyncio.to_thread(leave, self.door.fleet, state, self._place)

    async def change(self, settings: Settings) -> None:
        """Apply other settings. Raises CannotBuild; then nothing has changed."""
        if settings.tls is not None:
            _check(settings.tls)
        left = await self.door.change(settings)
        self._show(settings.tls)
        self.server.ending = settings.shutdown
        if settings.logs != self._settings.logs:
            logs.set_up(settings.logs.level, settings.logs.format, self._place)
        self._settings = settings
        for worker in left:
            task = asyncio.create_task(self._await_drained(worker))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)

    async def _await_drained(self, worker: Worker) -> None:
        """Log when a removed worker may be stopped, and end its metric series then."""
        while worker.load.here:  # noqa: ASYNC110 - a load is plain numbers, without events
            await asyncio.sleep(DRAIN_POLL_INTERVAL_S)
        log.info("worker %s has left: its last request has ended", worker.name)
        if worker.name not in {other.name for other in self.door.fleet.workers}:
            self.door.metrics.forget(worker.name)

    def _show(self, tls: TlsSettings | None) -> None:
        """Use the certificates that the files hold now."""
        if self._tls is not None and tls is not None:
            try:
                self._tls.show(tls)
            except ValueError as error:  # they have changed since `_check`
                log.error("tls: %s", error)


def _context(settings: Settings) -> ServerTlsContext | None:
    try:
        return door_context(settings.tls) if settings.tls else None
    except ValueError as error:
        raise CannotBuild(f"tls: {error}") from None


def _check(tls: TlsSettings) -> None:
    """Check the certificate files before anything is changed. Raises CannotBuild."""
    try:
        check_chain(tls.certificate, tls.key)
    except ValueError as error:
        raise CannotBuild(f"tls: {error}") from None
