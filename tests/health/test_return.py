"""Workers that were down and come back."""

import time

import pytest

from tests.health.failing import CHAT, PATH, ask, ejected, health, says
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, until

SOON = {"interval": "10ms", "timeout": "10s"}
METRICS = b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %b\n"


def gone(router: Router, worker: Stub) -> None:
    """Make the worker fail its probes, and wait until the router has noticed."""
    worker.well = False
    until(lambda: not router.worker().ready)


def back(router: Router, worker: Stub) -> None:
    """Make the worker pass its probes again, and wait until the router has noticed."""
    worker.well = True
    until(lambda: router.worker().ready)


def started(worker: Stub, at: bytes) -> None:
    """Make the worker's metrics report this process start time."""
    text = METRICS % at
    worker.fixed[b"/metrics"] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text


def test_a_restart_ends_an_ejection(stub: MakeStub, route: MakeRouter) -> None:
    """A restarted worker is used at once."""
    bad, good = stub(says(500)), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health={**health(), **SOON})
    ask(router, 6)
    assert ejected(router) == [1, 0]
    gone(router, bad)
    back(router, bad)
    assert ejected(router) == [0, 0]
    bad.script = OK
    assert ask(router, 4) == [200] * 4
    assert len(bad.requests) == 5


def test_a_probe_that_failed_does_not(stub: MakeStub, route: MakeRouter) -> None:
    """If the process start time is the same after failed probes, the ejection goes on."""
    bad, good = stub(says(500)), stub()
    started(bad, b"1.7e9")
    router = route(bad.url, good.url, strategy="roundrobin", health={**health(), **SOON})
    ask(router, 6)
    gone(router, bad)
    back(router, bad)
    assert ejected(router) == [1, 0]


@pytest.mark.parametrize(
    ("first", "then", "warm"),
    [
        (b"1.7e9", b"1.7e9", True),
        (b"1.7e9", b"1.8e9", False),
        (b"1.7e9", b"", False),
        (b"", b"", False),
    ],
)
def test_its_prefixes_are_forgotten_unless_it_is_the_same_process(
    stub: MakeStub, route: MakeRouter, first: bytes, then: bytes, warm: bool
) -> None:
    """Prefixes are kept if the process start time is the same: an outage empties no cache."""
    worker = stub()
    started(worker, first)
    router = route(worker.url, health=SOON)
    chat = {**CHAT, "messages": [{"role": "user", "content": "word " * 5000}]}

    def decision() -> str:
        reply = router.http.post(PATH, json=chat)
        return str(reply.headers["x-warmroute-decision"]).partition(";")[0]

    assert [decision(), decision()] == ["cold", "prefix"]
    gone(router, worker)
    started(worker, then)
    back(router, worker)
    assert decision() == ("prefix" if warm else "cold")


@pytest.mark.parametrize(("then", "warm"), [(b"1.8e9", False), (b"1.6e9", True), (b"", True)])
def test_a_restart_between_two_probes(
    stub: MakeStub, route: MakeRouter, then: bytes, warm: bool
) -> None:
    """It shows in a later process start time, when the worker is asked for its models again."""
    worker = stub()
    started(worker, b"1.7e9")
    router = route(worker.url, health=SOON)
    chat = {**CHAT, "messages": [{"role": "user", "content": "word " * 5000}]}
    router.http.post(PATH, json=chat)
    started(worker, then)
    same, before = router.worker(), router.worker().discovered_at
    router.call(lambda: same.doubt("m", time.monotonic()))
    until(lambda: same.discovered_at > before)
    reply = router.http.post(PATH, json=chat)
    assert reply.headers["x-warmroute-decision"].startswith("prefix" if warm else "cold")
