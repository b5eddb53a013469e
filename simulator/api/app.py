"""A worker's ASGI application: a table that maps method and path to a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from simulator.api import endpoints, pooling
from simulator.api.models import decode
from simulator.api.served_model import ServedModel
from simulator.engine.core import Engine
from simulator.http.errors import ApiError, DisconnectedError
from simulator.http.exchange import AsgiExchange, CutExchange
from simulator.http.faults import ActiveFault, FaultOrder
from simulator.http.listener import UvicornConnection
from simulator.kv.events import ZmqEventPublisher

#: The vLLM release whose HTTP API this imitates.
VLLM_VERSION = "0.33.0"

_GARBAGE = b"\x00\xff 200 this is not HTTP\r\n\r\n\x16\x03\x01"

_POSTS: dict[str, Callable[[ServedModel, AsgiExchange], Awaitable[None]]] = {
    "/v1/chat/completions": endpoints.chat,
    "/v1/completions": endpoints.completions,
    "/v1/responses": endpoints.responses,
    "/v1/messages": endpoints.messages,
    "/v1/messages/count_tokens": endpoints.count_tokens,
    "/invocations": endpoints.invocations,
    "/v1/embeddings": pooling.embeddings,
    "/pooling": pooling.pooling,
    "/classify": pooling.classify,
    "/score": pooling.score,
    "/v1/score": pooling.score,
    "/rerank": pooling.rerank,
    "/v1/rerank": pooling.rerank,
    "/v2/rerank": pooling.rerank,
    "/v1/audio/transcriptions": endpoints.transcribe,
    "/v1/audio/translations": endpoints.transcribe,
    "/tokenize": endpoints.tokenize_request,
    "/detokenize": endpoints.detokenize_request,
}


class ServingWorker(Protocol):
    """What the application needs of its worker; a restart replaces engine, model and registry."""

    engine: Engine
    served: ServedModel
    registry: CollectorRegistry
    publisher: ZmqEventPublisher | None
    fault: ActiveFault | None

    def set_fault(self, order: FaultOrder, asked_by: UvicornConnection | None = None) -> None:
        """Start a fault."""

    def clear_fault(self) -> None:
        """End the active fault, if any."""


class WorkerApp:
    """The ASGI application of one worker."""

    def __init__(self, worker: ServingWorker) -> None:
        self._worker = worker
        self._admin: dict[tuple[str, str], Callable[[AsgiExchange], Awaitable[None]]] = {
            ("GET", "/health"): _ok,
            ("GET", "/ping"): _ok,
            ("POST", "/ping"): _ok,
            ("GET", "/version"): _version,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("GET", "/kv_event_sources"): self._sources,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("GET", "/simulator/fault"): self._show_fault,
            ("POST", "/simulator/fault"): self._set_fault,
            ("DELETE", "/simulator/fault"): self._clear_fault,
        }

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        exchange = AsgiExchange(scope, receive, send)
        fault = self._worker.fault
        if fault is not None and fault.befalls(scope["path"]):
            if fault.order.kind not in ("reset", "stall"):
                await self._fail(exchange, fault.order)
                return
            exchange = CutExchange(scope, receive, send, fault)
        try:
            await self._route(exchange)
        except ApiError as error:
            await exchange.json(error.body, error.status)
        except DisconnectedError:
            return

    async def _route(self, exchange: AsgiExchange) -> None:
        handler = _POSTS.get(exchange.path) if exchange.method == "POST" else None
        admin = self._admin.get((exchange.method, exchange.path))
        if handler is not None:
            await handler(self._worker.served, exchange)
        elif admin is not None:
            await admin(exchange)
        elif exchange.path in _POSTS or any(path == exchange.path for _, path in self._admin):
            await exchange.json({"detail": "Method Not Allowed"}, 405)
        else:
            await exchange.json({"detail": "Not Found"}, 404)

    async def _fail(self, exchange: AsgiExchange, order: FaultOrder) -> None:
        """Answer as the faults `error` and `garbage` demand."""
        if order.kind == "error":
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            kind = "InternalServerError" if order.status == 500 else "Service Unavailable"
            await exchange.json(ApiError(order.status, message, kind).body, order.status)
            return
        exchange.connection.write(_GARBAGE)
        exchange.connection.transport.close()
        await exchange.connection.gone

    async def _load(self, exchange: AsgiExchange) -> None:
        engine = self._worker.engine
        await exchange.json({"server_load": engine.running + engine.waiting})

    async def _metrics(self, exchange: AsgiExchange) -> None:
        text = generate_latest(self._worker.registry)
        await exchange.reply(text, CONTENT_TYPE_LATEST.encode())

    async def _models(self, exchange: AsgiExchange) -> None:
        served = self._worker.served
        base = served.models[0]
        common = {"object": "model", "created": served.started, "owned_by": "vllm"}
        length = {"max_model_len": served.max_model_len}
        models = [
            {"id": name, **common, "root": served.root, "parent": None, **length}
            for name in served.models
        ]
        models += [
            {"id": name, **common, "root": name, "parent": base, "max_model_len": None}
            for name in served.adapters
        ]
        await exchange.json({"object": "list", "data": models})

    async def _sources(self, exchange: AsgiExchange) -> None:
        publisher = self._worker.publisher
        await exchange.json({} if publisher is None else {"0": publisher.describe()})

    async def _reset(self, exchange: AsgiExchange) -> None:
        await exchange.json({"success": self._worker.engine.reset_prefix_cache()})

    async def _show_fault(self, exchange: AsgiExchange) -> None:
        fault = self._worker.fault
        spent = fault is None or fault.left == 0
        await exchange.json({"fault": None if spent or fault is None else fault.order})

    async def _set_fault(self, exchange: AsgiExchange) -> None:
        order = decode(await exchange.body(), FaultOrder)
        await exchange.json({"fault": order})  # before the fault can close the connection
        self._worker.set_fault(order, asked_by=exchange.connection)

    async def _clear_fault(self, exchange: AsgiExchange) -> None:
        self._worker.clear_fault()
        await exchange.json({"fault": None})


async def _ok(exchange: AsgiExchange) -> None:
    await exchange.reply()


async def _version(exchange: AsgiExchange) -> None:
    await exchange.json({"version": VLLM_VERSION})
