"""Workers that hang: they never answer what they were sent."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from router.fleet.worker import Worker
from tests.overload.busy import QUIET, ask
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, until

NEVER: list[Action] = [lambda: False]
Hurry = Callable[[], None]


def routed(route: MakeRouter, *workers: Stub, **settings: Any) -> Router:
    """A router that knows how fast its workers are, and trusts its clients."""
    trusted = ({"url": one.url, "engine_fields": True} for one in workers)
    router = route(*trusted, **({"health": QUIET} | settings))
    router.worker().pace.curve.seen = 1
    return router


def both(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    script: list[Action] | None = None,
    **settings: Any,
) -> tuple[Router, Future[httpx.Response], Stub, Stub]:
    """Send a request to one of two workers, which hangs; return it and the workers, that one first.

    The other would answer.
    """
    pair = [stub(script or NEVER) for _ in range(2)]
    router = routed(route, *pair, **settings)
    first = ask(router, crowd, "first", 100)
    until(lambda: any(one.requests for one in pair))
    hung, other = sorted(pair, key=lambda one: not one.requests)
    other.script = OK
    return router, first, hung, other


def worker_of(router: Router, stub: Stub) -> Worker:
    """The router's view of a worker."""
    return next(one for one in router.door.fleet.workers if one.url == stub.url)


def moved(router: Router, stub: Stub) -> float:
    """How many requests were moved away from a worker."""
    labels = {"pool": "default", "worker": stub.url[7:], "kind": "stuck"}
    return router.metric("warmroute_worker_errors_total", **labels)
