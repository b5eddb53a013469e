"""Everything off the hot path: health, workers, merged models, metrics, docs. Plain FastAPI."""

from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from router import __version__
from router.errors import DoorError, UnknownPath, WrongMethod
from router.fleet import Fleet, Worker
from router.metrics import Metrics
from router.openai import ENDPOINTS


class WorkerStatus(BaseModel):
    """One worker, as the router sees it now."""

    name: str
    pool: str
    url: str
    state: str
    reason: str
    models: list[str]
    in_flight: int
    wait_seconds: float
    """Booked prefill not yet done."""
    kv_tokens: int | None
    """Tokens its KV cache holds."""
    kv_tokens_booked: int
    pace_factor: float
    """Learned prefill time over the first guess."""


class Readiness(BaseModel):
    """`ready`: every pool has a ready worker. `degraded`: some have. `down`: none has."""

    status: str
    pools: dict[str, int]
    """Ready workers by pool."""


def admin(fleet: Fleet, metrics: Metrics) -> FastAPI:
    """Make the app that serves whatever is not inference."""
    app = FastAPI(title="Warmroute", version=__version__, redoc_url=None)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _http_error)

    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """Answer as long as the process does; says nothing of the workers."""
        return {"status": "live"}

    @app.head("/health/ready", include_in_schema=False)
    @app.get("/health/ready", responses={503: {"model": Readiness}})
    async def ready(response: Response) -> Readiness:
        """503 while no worker is ready."""
        ready = {pool.name: sum(w.ready for w in pool.workers) for pool in fleet.pools}
        status = "ready" if all(ready.values()) else "degraded" if any(ready.values()) else "down"
        if status == "down":
            response.status_code = 503
        return Readiness(status=status, pools=ready)

    @app.get("/workers")
    async def workers() -> list[WorkerStatus]:
        """List every worker: its state and what is booked on it."""
        return [_status(pool.name, w) for pool in fleet.pools for w in pool.workers]

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the models of all workers as they describe them, sorted by name."""
        return {"object": "list", "data": [model for _, model in sorted(fleet.models().items())]}

    @app.get("/metrics", response_class=Response)
    async def scrape() -> Response:
        """Serve Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _status(pool: str, worker: Worker) -> WorkerStatus:
    return WorkerStatus(
        name=worker.name,
        pool=pool,
        url=worker.url,
        state=worker.state.value,
        reason=worker.reason,
        models=sorted(worker.models),
        in_flight=worker.load.in_flight,
        wait_seconds=worker.wait(),
        kv_tokens=worker.kv_tokens,
        kv_tokens_booked=worker.load.kv_tokens,
        pace_factor=worker.pace.factor,
    )


async def _http_error(request: Request, error: Exception) -> Response:
    """Give errors of the framework in OpenAI's shape too."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    ours: DoorError
    if error.status_code == 404:
        ours = UnknownPath(f"There is nothing at {request.scope['path'][:200]!r}.")
    elif error.status_code == 405:
        ours = WrongMethod(request.method, (error.headers or {}).get("Allow", "GET"))
    else:
        ours = DoorError(error.detail)
        ours.status = error.status_code
    headers = {name.decode(): value.decode() for name, value in ours.headers}
    return Response(ours.body(), ours.status, headers, "application/json")


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's own schema, and the inference paths, which it never sees."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        for endpoint in ENDPOINTS.values():
            kind = "multipart/form-data" if endpoint.form else "application/json"
            schema["paths"][endpoint.path] = {
                "post": {
                    "summary": "Relayed to a worker, body and answer unchanged.",
                    "tags": ["inference"],
                    "requestBody": {
                        "required": True,
                        "content": {kind: {"schema": {"type": "object"}}},
                    },
                    "responses": {
                        "200": {"description": "The worker's answer."},
                        "400": {"description": "The request cannot be understood."},
                        "404": {"description": "No worker serves that model."},
                        "502": {"description": "The worker failed."},
                        "503": {"description": "No worker is ready; try again."},
                    },
                }
            }
        app.openapi_schema = schema
    return app.openapi_schema
