"""The door: inference paths straight to the proxy, everything else to FastAPI."""

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any

from router.admin import admin
from router.asgi import Bridge
from router.connection import NEVER, Patience
from router.errors import WrongMethod
from router.exchange import Exchange
from router.fleet import Fleet, Pool, Worker
from router.health import Health
from router.metrics import Metrics
from router.openai import ENDPOINTS
from router.protocol import Bounds, Client
from router.proxy import Proxy
from router.settings import PoolSettings, Settings, WorkerSettings
from router.upstream import Upstream
from strategies.registry import make

#: Bytes that a request to an administrative path may bring.
ADMIN_BODY = 64 << 10


class Door:
    """What is behind every connection. A dictionary stands in front of FastAPI's routing."""

    def __init__(self, fleet: Fleet, settings: Settings, tls: ssl.SSLContext) -> None:
        self.fleet = fleet
        self.metrics = Metrics(fleet)
        self.bounds = _bounds(settings)
        self.clients: set[Client] = set()
        self.draining = False
        """Told to stop, but still accepting: not ready any more."""
        self.stopping = False
        """Every connection is closed after its answer."""
        self._body_limit = settings.limits.body
        self._health = Health(fleet, settings.health, tls)
        self._admin = Bridge(admin(fleet, self.metrics))
        self._proxy = Proxy(
            fleet,
            self.metrics,
            attempts=settings.limits.attempts,
            log_requests=settings.logs.requests,
        )

    def admit(self, exchange: Exchange) -> int:
        """Judge a request by its head; return the longest body it may have. Raises DoorError."""
        if exchange.path not in ENDPOINTS:
            return ADMIN_BODY
        if exchange.method != "POST":
            raise WrongMethod(exchange.method, "POST")
        return self._body_limit

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer a request that is there as a whole."""
        endpoint = ENDPOINTS.get(exchange.path)
        if endpoint is None:
            return self._admin.serve(exchange)
        return self._proxy.serve(endpoint, exchange)

    def unserved(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """A request was refused, or its client left, before anybody served it."""
        self._proxy.refused(exchange, status, reason)

    async def start(self) -> None:
        """Look at every worker once, and go on looking."""
        await self._health.start()

    async def stop(self) -> None:
        """Let go of the workers."""
        await self._health.stop()
        for worker in self.fleet.workers:
            worker.upstream.close()
        await asyncio.sleep(0)  # closing takes a turn of the loop


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
    """Make the application that `settings` describe. Raises what a strategy's options raise."""
    t = settings.timeouts
    patience = Patience(t.connect, t.first_byte, t.idle, t.keepalive, t.total or NEVER)
    tls = ssl.create_default_context()
    fleet = Fleet([_pool(pool, patience, tls) for pool in settings.all_pools()])
    return Door(fleet, settings, tls)


def _pool(settings: PoolSettings, patience: Patience, tls: ssl.SSLContext) -> Pool:
    workers = [_worker(worker, patience, tls) for worker in settings.workers]
    strategy = make(settings.strategy.name, dict(settings.strategy.options))
    return Pool(settings.name, settings.models, workers, strategy)


def _worker(settings: WorkerSettings, patience: Patience, tls: ssl.SSLContext) -> Worker:
    address = settings.address
    used = tls if settings.url.startswith("https://") else None
    key = settings.api_key
    return Worker(
        settings.name,
        settings.url,
        Upstream(address.host, address.port, tls=used, patience=patience),
        models=settings.models,
        kv_tokens=settings.kv_tokens,
        api_key=key.get_secret_value() if key else None,
    )
