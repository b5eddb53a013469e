"""How many workers of a pool may be ejected at once, and when ejections are ignored."""

import logging

import pytest

from tests.health.failing import EMPTY, EVENT, FAULTS, ask, ejected, ejections, health, says
from tests.support import OK, Action, MakeRouter, MakeStub, until


@pytest.mark.parametrize(
    ("size", "share", "most"),
    [(1, 0.5, 0), (1, 1.0, 0), (2, 0.5, 1), (2, 1.0, 1), (3, 0.5, 1), (4, 0.25, 1), (4, 0.5, 2)],
)
def test_no_more_than_a_share(
    stub: MakeStub, route: MakeRouter, size: int, share: float, most: int
) -> None:
    """At most `share` of a pool is ejected, however many fail, and never its last worker."""
    workers = [stub(["close"]) for _ in range(size)]
    if size > 1:  # one that answers: failing alike ejects none
        workers[-1].script = OK
    settings = health(failures=2, share=share, panic=0)
    router = route(*(w.url for w in workers), strategy="roundrobin", health=settings)
    for _ in range(12 * size):
        ask(router)
        assert sum(ejected(router)) <= most
    assert sum(ejected(router)) == most
    asked = [len(worker.requests) for worker in workers]
    ask(router, 4)
    for out, worker, before in zip(ejected(router), workers, asked, strict=True):
        assert not (out and len(worker.requests) > before)


@pytest.mark.parametrize("script", [["close"], says(500), says(502), EVENT, EMPTY])
def test_none_is_ejected_if_all_fail_alike(
    stub: MakeStub, route: MakeRouter, script: list[Action]
) -> None:
    """What every worker fails says nothing against one of them."""
    workers = [stub(script) for _ in range(3)]
    router = route(*(w.url for w in workers), health=health(failures=2))
    ask(router, 20)
    until(router.idle)
    assert ejected(router) == [0, 0, 0]
    states = {one["state"] for one in router.http.get("/workers").json()}
    assert states == {"ready"}


def test_the_only_worker(stub: MakeStub, route: MakeRouter) -> None:
    """A pool's only worker is never ejected; each request is sent to it."""
    worker = stub(["close"])
    router = route(worker.url, health=health(failures=1, share=1.0))
    assert ask(router, 10) == [502] * 10
    assert len(worker.requests) == 10
    assert ejections(router, worker, "closed") == 0


def test_panic(stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture) -> None:
    """If too few are healthy, ejected workers are used too; the log tells its start and end."""
    workers = [stub() for _ in range(4)]
    settings = {**health(failures=1), "interval": "20ms", "fall": 1}
    router = route(*(w.url for w in workers), strategy="roundrobin", health=settings)
    for worker in workers[:2]:
        worker.script, _ = FAULTS["500"]
    ask(router, 4)
    assert ejected(router) == [1, 1, 0, 0]
    asked = [len(worker.requests) for worker in workers]
    ask(router, 6)
    assert [len(worker.requests) for worker in workers[:2]] == asked[:2]

    workers[3].well = False
    until(lambda: not router.worker(3).ready)
    with caplog.at_level(logging.WARNING, "warmroute.fleet"):
        ask(router, 6)
    assert [len(w.requests) - n for w, n in zip(workers, asked, strict=True)] == [2, 2, 5, 3]
    assert "pool default: 1 of 4 workers are healthy: ejections are ignored" in caplog.messages
    assert ejected(router) == [1, 1, 0, 0]

    workers[3].well = True
    until(lambda: router.worker(3).ready)
    asked = [len(worker.requests) for worker in workers]
    ask(router, 6)
    assert "pool default: 2 of 4 workers are healthy: ejections count again" in caplog.messages
    assert [len(w.requests) - n for w, n in zip(workers, asked, strict=True)] == [0, 0, 3, 3]


def test_without_panic(stub: MakeStub, route: MakeRouter) -> None:
    """With `panic: 0` ejected workers are used only if no other worker can answer."""
    workers = [stub(["close"]), stub()]
    settings = {**health(failures=1, panic=0), "interval": "20ms", "fall": 1}
    router = route(*(w.url for w in workers), strategy="roundrobin", health=settings)
    ask(router, 2)
    assert ejected(router) == [1, 0]
    assert ask(router, 3) == [200] * 3
    workers[1].well = False
    until(lambda: not router.worker(1).ready)
    workers[0].script = ["reset"]
    assert ask(router, 3) == [502] * 3  # better than a refusal


def test_the_log_says_who_and_why(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line when a worker is ejected and one when it is let back in."""
    bad, good = stub(["reset"]), stub()
    settings = health(first="100ms")
    router = route(
        {"url": bad.url, "name": "bad"}, good.url, strategy="roundrobin", health=settings
    )
    with caplog.at_level(logging.WARNING, "warmroute.fleet"):
        ask(router, 6)
        said = "worker bad is ejected: 3 failures in a row, the last: closed; back in 1 s"
        until(lambda: f"pool default: {said}" in caplog.messages)
        bad.script = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
        until(lambda: ask(router) and ejected(router) == [0, 0])
    assert caplog.messages.count("pool default: worker bad is let back in") == 1
