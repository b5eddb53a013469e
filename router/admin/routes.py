"""The paths off the request path: health, workers, merged models, metrics, docs. Plain FastAPI.

The health paths say whether the process lives, and whether requests should come here.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.routing import Route

from router import __version__
from router.admin.explain import explained
from router.admin.openapi import add_docs, describe
from router.admin.views import View, WorkerStatus
from router.api.endpoints import EXPLAIN, MODELS, OPEN_PATHS
from router.api.errors import APIError, UnknownModel, WrongMethod
from router.fleet.fleet import Fleet
from router.fleet.worker import ProbeState
from router.kv.status import KvStatus
from router.observe.models import Shown
from router.proxy.dry_run import DryRun, Question
from router.tokenizers.status import TokenizerStatus


class Readiness(Shown):
    """`ready`: every pool has a ready worker. `degraded`: some have, or a ready worker's KV events
    are missing, or the only ones let their probes wait. `down`: none has.

    `stopping`: whatever there is, the router was told to stop.
    """

    status: str
    pools: dict[str, int]
    """Ready workers by pool."""
    blind: dict[str, int] | None = None
    """Ready workers whose KV events are missing or not trusted, by pool; only with a strategy that
    uses them. Requests continue, routed by what was sent before: the router is `degraded`."""
    stores: dict[str, str] | None = None
    """Shared stores that are `down` or `wrong`, by pool: L2 does not count and the router is
    `degraded`."""


def add_health(app: FastAPI, fleet: Fleet, view: View, stopping: Callable[[], bool]) -> None:
    """Add the routes that load balancers and orchestrators ask."""

    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """Answer as long as the process does; says nothing of the workers."""
        return {"status": "live"}

    @app.head("/health", include_in_schema=False)
    @app.get("/health", include_in_schema=False, response_model_exclude_none=True)  # as vLLM has it
    @app.head("/health/ready", include_in_schema=False)
    @app.api_route(
        "/ping",
        methods=["GET", "HEAD", "POST"],
        include_in_schema=False,
        response_model_exclude_none=True,
    )
    @app.get(
        "/health/ready", responses={503: {"model": Readiness}}, response_model_exclude_none=True
    )
    async def ready(response: Response) -> Readiness:
        """503 while no worker is ready, and once the router was told to stop."""
        ready = {pool.name: sum(w.ready for w in pool.workers) for pool in fleet.pools}
        status = "ready" if all(ready.values()) else "degraded" if any(ready.values()) else "down"
        blind = view.blind()
        stores = view.stores()
        busy = any(w.ready and w.state is ProbeState.BUSY for w in fleet.workers)
        if status == "ready" and (busy or stores or any(blind.values())):
            status = "degraded"
        if stopping():
            status = "stopping"
        if status in {"down", "stopping"}:
            response.status_code = 503
        return Readiness(status=status, pools=ready, blind=blind or None, stores=stores or None)


def admin(fleet: Fleet, view: View, stopping: Callable[[], bool], router: DryRun) -> FastAPI:
    """Make the FastAPI app that serves everything but inference."""
    app = FastAPI(title="Warmroute", version=__version__, docs_url=None, redoc_url=None)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.add_exception_handler(405, _wrong_method)
    app.add_exception_handler(APIError, _refused)
    add_docs(app)

    add_health(app, fleet, view, stopping)
    _add_models(app, fleet)
    _add_views(app, view)
    _add_explain(app, fleet, router)
    return app


def _add_models(app: FastAPI, fleet: Fleet) -> None:
    """Add the routes of OpenAI's API that describe models."""

    @app.get(MODELS)
    async def models() -> dict[str, Any]:
        """List the models of all workers as they describe them, sorted by name."""
        return {"object": "list", "data": [model for _, model in sorted(fleet.models().items())]}

    @app.get(MODELS + "/{name:path}")
    async def model(name: str) -> Mapping[str, Any]:
        """Describe one model as its worker does; slashes in its name may be escaped."""
        name = unquote(name)
        await fleet.seek(name)
        description = fleet.described(name)
        if description is None:
            raise UnknownModel(name, fleet.meant(name))
        return description


def _add_explain(app: FastAPI, fleet: Fleet, router: DryRun) -> None:
    """Add the route that explains a decision."""

    @app.post(EXPLAIN)
    async def explain(
        request: Request, path: str = "/v1/chat/completions", key: str = ""
    ) -> Response:
        """Decide on a request for the endpoint at `path` as if it came now, and send it nowhere.

        The session is the one that the request's headers or its body name, and is not used by
        this. Where keys have caches of their own, `key` is the name of the one it would come with.
        """
        body, headers = await request.body(), request.headers.raw
        question = Question(path, body, headers, key, request.state.tenant)
        explanation = await explained(fleet, router, question)
        return Response(msgspec.json.encode(explanation), media_type="application/json")


def _add_views(app: FastAPI, view: View) -> None:
    """Add the routes that operators read."""

    @app.get("/workers")
    async def workers() -> list[WorkerStatus]:
        """List every worker: its state, why, and what is booked on it."""
        return await view.workers()

    @app.get("/tokenizers")
    async def tokenizers() -> list[TokenizerStatus]:
        """List where tokenizers come from, and whether workers make the same tokens."""
        return await view.tokenizers()

    @app.get("/kv")
    async def kv() -> list[KvStatus]:
        """List every worker whose KV events are wanted: its stream, its blocks, how right it is."""
        return view.kv()

    @app.get("/metrics", response_class=Response)
    async def scrape() -> Response:
        """Serve Prometheus' text format."""
        return Response(await view.metrics(), media_type=CONTENT_TYPE_LATEST)


def operator_paths(app: FastAPI) -> frozenset[str]:
    """Return the app's paths that are for operators only."""
    paths = {route.path for route in app.routes if isinstance(route, Route)}
    return frozenset(path for path in paths - OPEN_PATHS if not path.startswith(MODELS))


async def _wrong_method(request: Request, error: Exception) -> Response:
    """Answer FastAPI's 405, the one error it raises itself, in OpenAI's shape."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    return await _refused(
        request, WrongMethod(request.method, (error.headers or {}).get("Allow", "GET"))
    )


async def _refused(_: Request, ours: Exception) -> Response:
    """Answer a router error."""
    assert isinstance(ours, APIError)  # noqa: S101 - registered for nothing else
    headers = {name.decode(): value.decode() for name, value in ours.headers}
    return Response(ours.body(), ours.status, headers, "application/json")
