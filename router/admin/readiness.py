"""The health paths: whether the process lives, and whether requests should come here."""

from collections.abc import Callable

from fastapi import FastAPI, Response

from router.admin.views import View
from router.fleet.fleet import Fleet
from router.fleet.worker import State
from router.observe.models import Shown
from router.sagemaker.paths import PING


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
        PING,
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
        busy = any(w.ready and w.state is State.BUSY for w in fleet.workers)
        if status == "ready" and (busy or stores or any(blind.values())):
            status = "degraded"
        if stopping():
            status = "stopping"
        if status in {"down", "stopping"}:
            response.status_code = 503
        return Readiness(status=status, pools=ready, blind=blind or None, stores=stores or None)
