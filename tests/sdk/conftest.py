"""The official client, a router and a fleet of simulated workers."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import openai
import pytest

from simulator.fleet import FleetSettings
from simulator.thread import FleetThread
from tests.support import Router, until

MODEL = "toy"


class Stage(NamedTuple):
    """A running router, the fleet behind it, and a client that points at it."""

    fleet: FleetThread
    router: Router
    client: openai.OpenAI

    @property
    def busy(self) -> int:
        """Requests that run or wait in any engine."""
        return sum(w.engine.running + w.engine.waiting for w in self.fleet.workers)

    def rest(self) -> None:
        """Wait until no engine works and nothing is booked."""
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
        client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
        stack.callback(client.close)
        yield Stage(fleet, router, client)
