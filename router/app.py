"""The door: inference paths straight to the proxy, everything else to FastAPI."""

import asyncio
import ssl

from fastapi import FastAPI

from router.admin import admin
from router.connection import Patience
from router.exchange import Message, Receive, Scope, Send, request_id
from router.fleet import Fleet, Pool, Worker
from router.health import Health
from router.metrics import Metrics
from router.openai import ENDPOINTS
from router.proxy import Proxy
from router.settings import PoolSettings, Settings, WorkerSettings
from router.upstream import Upstream
from strategies.registry import make


class Door:
    """The ASGI application. A dictionary stands in front of FastAPI's routing."""

    def __init__(self, fleet: Fleet, settings: Settings, tls: ssl.SSLContext) -> None:
        self.fleet = fleet
        self.metrics = Metrics(fleet)
        self._health = Health(fleet, settings.health, tls)
        self._admin: FastAPI = admin(fleet, self.metrics)
        self._proxy = Proxy(
            fleet,
            self.metrics,
            body_limit=settings.limits.body,
            attempts=settings.limits.attempts,
            log_requests=settings.logs.requests,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif endpoint := ENDPOINTS.get(scope["path"]):
            await self._proxy.serve(endpoint, scope, receive, send)
        else:
            await self._admin(scope, receive, _identified(scope, send))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._health.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._health.stop()
        for worker in self.fleet.workers:
            worker.upstream.close()
        await asyncio.sleep(0)  # closing takes a turn of the loop
        await send({"type": "lifespan.shutdown.complete"})


def _identified(scope: Scope, send: Send) -> Send:
    """Add the request's id to an answer that does not come from the proxy."""
    if scope["type"] != "http":
        return send
    identity = (b"x-request-id", request_id(scope["headers"]))

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [pair for pair in message["headers"] if pair[0] != identity[0]]
            message = {**message, "headers": [*others, identity]}
        await send(message)

    return sent


def create_app(settings: Settings) -> Door:
    """Make the application that `settings` describe. Raises what a strategy's options raise."""
    t = settings.timeouts
    patience = Patience(t.connect, t.first_byte, t.idle, t.keepalive)
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
