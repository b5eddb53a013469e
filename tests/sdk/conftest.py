"""The official clients, a router, and a fleet of simulated workers.

The newest boto3 and the synchronous OpenAI client are in every run; the others take long together.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.sdk.boto.client import GENERATIONS, Boto
from tests.sdk.clients import CALLERS, SyncCaller
from tests.sdk.node import Node
from tests.support import Action, MakeRouter, MakeStub, Router, Stub, until

MODEL = "toy"
#: Both clients, of which the second is left out of quick runs.
KINDS = ["sync", pytest.param("async", marks=pytest.mark.long)]
*OLDER, NEWEST = GENERATIONS


class Stage(NamedTuple):
    """A running router, and the fleet behind it."""

    fleet: FleetThread
    router: Router

    @property
    def busy(self) -> int:
        """Requests running or waiting in any engine."""
        return sum(w.engine.running + w.engine.waiting for w in self.fleet.workers)

    def rest(self) -> None:
        """Wait until no engine is busy and nothing is booked."""
        until(lambda: self.busy == 0)
        until(self.router.idle)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Three toy workers behind a prefixaware router, for all tests of a module."""
    with ExitStack() as stack:
        settings = FleetSettings(workers=3, profile="toy", models=(MODEL,), kv_events=False)
        fleet = stack.enter_context(FleetThread(settings))
        router = Router({"workers": fleet.urls, "strategy": "prefixaware"})
        stack.callback(router.stop)
        yield Stage(fleet, router)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The JavaScript client, for all tests."""
    with Node() as made:
        yield made


@pytest.fixture(
    scope="session",
    params=[*(pytest.param(name, marks=pytest.mark.long) for name in OLDER), NEWEST],
)
def boto(request: pytest.FixtureRequest) -> Iterator[Boto]:
    """Each generation of boto3 in turn."""
    with Boto(request.param) as made:
        yield made


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """`sync`, then `async`."""
    return str(request.param)


@pytest.fixture(scope="module", params=KINDS)
def caller(stage: Stage, request: pytest.FixtureRequest) -> Iterator[SyncCaller]:
    """Both clients in turn, connected to the simulated fleet."""
    with CALLERS[request.param](stage.router.url) as made:
        yield made


class Scripted(NamedTuple):
    """A worker that answers from a script, the router in front of it, and a client."""

    worker: Stub
    router: Router
    caller: SyncCaller

    def plays(self, script: list[Action]) -> None:
        """Change the worker's script."""
        self.worker.script = script

    @property
    def asked(self) -> bytes:
        """The body of the last request that the worker saw."""
        return self.worker.requests[-1].partition(b"\r\n\r\n")[2]


class MakeScripted(Protocol):
    """Start a scripted worker, a router and a client with these options."""

    def __call__(self, script: list[Action] | None = None, **options: object) -> Scripted: ...


@pytest.fixture
def scripted(stub: MakeStub, route: MakeRouter, kind: str) -> Iterator[MakeScripted]:
    """Both clients in turn, with a worker that answers from a script."""
    with ExitStack() as stack:

        def make(script: list[Action] | None = None, **options: object) -> Scripted:
            worker = stub(script, MODEL)
            router = route(worker.url, limits={"queue": 0})  # it is told of every refusal
            caller = stack.enter_context(CALLERS[kind](router.url, **options))
            return Scripted(worker, router, caller)

        yield make
