"""Fleets of simulated workers on real sockets."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings

Start = Callable[..., FleetThread]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start fleets of toy workers that are stopped at the end of the test."""
    with ExitStack() as stack:

        def started(**settings: object) -> FleetThread:
            given = {"profile": "toy", "models": ("toy",), **settings}
            return stack.enter_context(FleetThread(FleetSettings(**given)))  # type: ignore[arg-type]

        yield started


@pytest.fixture(scope="module")
def shared() -> Iterator[FleetThread]:
    """One toy worker for all tests of a module that leave no state behind."""
    settings = FleetSettings(profile="toy", models=("toy", "alias"), adapters=("tuned",))
    with FleetThread(settings) as fleet:
        yield fleet


@pytest.fixture
def client(shared: FleetThread) -> Iterator[httpx.Client]:
    """A client of the shared worker."""
    with httpx.Client(base_url=shared.urls[0]) as client:
        yield client
