"""`serve --processes`: a long prompt gives way to a short one that another process serves."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.commands import Running, Serve
from tests.overload.busy import PATH, asked
from tests.overload.giving_way import LONG, SHORT
from tests.support import until


def place_of(running: Running, identity: str) -> str:
    """Return which process served the request with that id."""
    whose = re.compile(rf"\[(\d)\] id={identity} ")
    until(lambda: whose.search(running.err.read_text()))
    (place,) = whose.findall(running.err.read_text())
    return str(place)


def one_each(running: Running, stack: ExitStack) -> list[httpx.Client]:
    """Return a client of each of two processes: a connection stays with the process it got."""
    found: dict[str, httpx.Client] = {}
    for number in range(50):
        client = stack.enter_context(httpx.Client(base_url=running.url(), timeout=60))
        fields = {"x-request-id": f"first-{number}"}
        body = asked("hi", 1) | {"max_tokens": 1}
        client.post(PATH, json=body, headers=fields).raise_for_status()
        found.setdefault(place_of(running, f"first-{number}"), client)
        if len(found) == 2:
            return [found["1"], found["2"]]
    raise AssertionError("one process gets no connections")


@pytest.mark.long
def test_a_long_prompt_gives_way(serve: Serve, stack: ExitStack) -> None:
    """The short one is answered first, and the long one then, from what had been computed; both
    processes end with nothing booked."""
    settings = FleetSettings(speed=2.0, models=("m",), kv_events=False)
    fleet = stack.enter_context(FleetThread(settings))
    (engine,) = (one.engine for one in fleet.workers)
    running = serve(*fleet.urls, args=("--processes", 2), logs={"requests": True})
    one, two = one_each(running, stack)
    crowd = stack.enter_context(ThreadPoolExecutor(1))
    body = asked("long", LONG) | {"max_tokens": 2}
    first = crowd.submit(one.post, PATH, json=body)
    until(lambda: engine.cache.used > 100)
    reply = two.post(PATH, json=asked("short", SHORT) | {"max_tokens": 2})
    assert reply.status_code == 200
    assert first.result().status_code == 200
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert "data: [DONE]" in first.result().text

    def idle() -> bool:
        (worker,) = httpx.get(running.url() + "/workers").json()
        return not (worker["in_flight"] or worker["wait_seconds"])

    until(idle)
