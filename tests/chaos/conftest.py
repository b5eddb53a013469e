"""A router in front of healthy workers, with a fault-injecting proxy before each."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.chaos.echo import Echo, body
from tests.chaos.proxy import Chaos
from tests.support import MakeRouter, Router, until

PATH = "/v1/chat/completions"
#: Ejected workers come back soon.
EJECTION = {"first": "100ms", "longest": "200ms"}
#: `QUIET`: probes only after failures. `LIVELY`: probes all the time.
QUIET = {"interval": "1h", "timeout": "5s", "ejection": EJECTION}
LIVELY = {"interval": "50ms", "timeout": "5s", "ejection": EJECTION}
SETTINGS: dict[str, Any] = {
    "strategy": "roundrobin",
    "health": QUIET,
    "timeouts": {"first_byte": "30s", "idle": "30s"},
}
#: Timeouts for tests in which the router must notice silence.
SOON = {"first_byte": "1s", "idle": "1s"}


class Fleet:
    """Workers, the proxy before each, and the router."""

    def __init__(
        self, stack: ExitStack, route: MakeRouter, models: list[str], settings: dict[str, Any]
    ) -> None:
        self.workers = [Echo(names.split()) for names in models]
        for worker in self.workers:
            stack.callback(worker.stop)
        self.chaos = [Chaos(worker) for worker in self.workers]
        for chaos in self.chaos:
            stack.callback(chaos.stop)
        self.router: Router = route(*(chaos.url for chaos in self.chaos), **settings)
        self._asked = 0

    def marker(self) -> str:
        """Return a marker that no other request has."""
        self._asked += 1
        return f"marker-{self._asked}"

    def ask(self, marker: str, *, stream: bool) -> httpx.Response:
        """Send a request and read the complete answer."""
        return self.router.http.post(PATH, json=request(marker, stream=stream))

    def works(self) -> None:
        """Check that every worker answers correctly, streamed or not, and nothing stays booked."""
        until(lambda: all(worker.ready for worker in self.router.door.fleet.workers))
        before = [len(worker.seen) for worker in self.workers]

        def everyone_answers() -> bool:
            """Ask repeatedly; some workers may still be ejected."""
            for stream in (False, True) * len(self.workers):
                marker = self.marker()
                assert_answered(self.ask(marker, stream=stream), marker, stream=stream)
            return all(len(w.seen) > count for w, count in zip(self.workers, before, strict=True))

        until(everyone_answers)
        until(self.router.idle)

    def charged(self) -> dict[tuple[str, str], float]:
        """The counted failures by worker and kind."""
        return {
            (sample.labels["worker"], sample.labels["kind"]): sample.value
            for family in self.router.door.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "warmroute_worker_errors_total" and sample.value
        }

    def seen_by(self, marker: str) -> list[int]:
        """Indices of the workers that received the whole request, once for each time."""
        return [place for place, w in enumerate(self.workers) for seen in w.seen if seen == marker]


MakeFleet = Callable[..., Fleet]


def request(marker: str, *, stream: bool) -> dict[str, Any]:
    """The body of a request that carries the marker."""
    talk = [{"role": "user", "content": marker}]
    return {"model": "m", "messages": talk, **({"stream": True} if stream else {})}


def assert_answered(reply: httpx.Response, marker: str, *, stream: bool) -> None:
    """Check that the reply is exactly the worker's answer to this request."""
    assert (reply.status_code, reply.content) == (200, body(marker, stream=stream))


@pytest.fixture
def fleet(stack: ExitStack, route: MakeRouter) -> MakeFleet:
    """Make a fleet of that many workers, or of one worker for each string of model names."""

    def make(workers: int | list[str] = 2, **settings: Any) -> Fleet:
        models = ["m"] * workers if isinstance(workers, int) else workers
        return Fleet(stack, route, models, {**SETTINGS, **settings})

    return make
