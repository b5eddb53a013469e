"""A worker that is busy is not gone: if no other is left, its requests go on."""

import logging
import time

import pytest

from tests.health.failing import CHAT, CHUNK, PATH, SSE, ask, body
from tests.support import Action, MakeRouter, MakeStub, Router, error_of, post, until

#: Probes are quick to give up, but not on a machine that is busy with other things.
OFTEN = {"interval": "50ms", "timeout": "500ms"}
PIECE: list[Action] = [CHUNK, 0.02]
#: A stream that lasts longer than any test.
STREAM = [SSE, *PIECE * 5000]


def shown(router: Router, place: int = 0) -> dict[str, str]:
    """What operators see of a worker."""
    found: list[dict[str, str]] = router.http.get("/workers").json()
    return found[place]


def probed(router: Router, *places: int) -> None:
    """Wait until the probes of these workers have failed long enough."""
    until(lambda: all("in time" in shown(router, place)["reason"] for place in places))


def test_the_only_ones_still_get_requests(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """If all workers let their probes wait, requests are sent, and log and health say so."""
    caplog.set_level(logging.WARNING, "warmroute")
    workers = [stub(), stub()]
    router = route(*(worker.url for worker in workers), strategy="roundrobin", health=OFTEN)
    for worker in workers:
        worker.busy = True
    probed(router, 0, 1)
    assert ask(router, 6) == [200] * 6
    assert all(worker.requests for worker in workers)
    assert "0 of 2 workers pass their probes" in caplog.text
    reply = router.http.get("/health/ready")
    assert (reply.status_code, reply.json()["status"]) == (200, "degraded")
    up = {"pool": "default", "worker": router.worker().name}
    assert router.metric("warmroute_worker_up", **up) == 0
    for worker in workers:
        worker.busy = False
    until(lambda: router.http.get("/health/ready").json()["status"] == "ready")


def test_while_others_pass_it_gets_nothing(stub: MakeStub, route: MakeRouter) -> None:
    """A busy worker is spared while another passes its probes, and used once that one has died."""
    busy, other = stub(), stub()
    router = route(busy.url, other.url, strategy="roundrobin", health=OFTEN)
    busy.busy = True
    probed(router, 0)
    before = len(busy.requests)
    assert ask(router, 6) == [200] * 6
    assert len(busy.requests) == before
    assert shown(router)["state"] == "down"
    other.well = False
    until(lambda: not router.worker(1).ready and router.worker(0).ready)
    assert ask(router, 2) == [200] * 2
    assert len(busy.requests) == before + 2
    other.well = True
    until(lambda: router.worker(1).ready and not router.worker(0).ready)
    assert ask(router, 2) == [200] * 2
    assert len(busy.requests) == before + 2


@pytest.mark.parametrize(("panic", "used"), [(0.5, True), (0.3, False), (0, False)])
def test_too_few_pass(stub: MakeStub, route: MakeRouter, panic: float, used: bool) -> None:
    """If less than a share of the pool passes its probes, busy workers are used beside the rest."""
    workers = [stub() for _ in range(3)]
    settings = {**OFTEN, "ejection": {"panic": panic}}
    router = route(*(worker.url for worker in workers), strategy="roundrobin", health=settings)
    workers[0].busy = workers[1].busy = True
    probed(router, 0, 1)
    until(lambda: router.worker(0).ready is router.worker(1).ready is used)
    before = len(workers[0].requests)
    assert ask(router, 9) == [200] * 9
    assert len(workers[0].requests) == before + 3 * used


def test_only_one_has_the_model(stub: MakeStub, route: MakeRouter) -> None:
    """A busy worker is used for a model that no other has."""
    busy, other = stub(model="special"), stub()
    router = route(busy.url, other.url, health=OFTEN)
    busy.busy = True
    probed(router, 0)
    assert router.http.post(PATH, json={**CHAT, "model": "special"}).status_code == 200


@pytest.mark.parametrize("how", ["ill", "gone"])
def test_what_says_no_is_down(stub: MakeStub, route: MakeRouter, how: str) -> None:
    """A worker whose probes are answered with an error, or refused, gets nothing."""
    worker = stub()
    router = route(worker.url, health=OFTEN)
    worker.busy = True
    probed(router, 0)
    assert ask(router) == [200]
    if how == "ill":
        worker.well = worker.busy = False
    else:
        worker.stop()
    until(lambda: not router.worker().ready)
    assert ask(router) == [503]


def test_what_says_no_but_streams_is_busy(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that answers its probes with errors still gets requests while it streams."""
    worker = stub()
    worker.script_of[b"stream"] = STREAM
    router = route(worker.url, health=OFTEN)
    with post(router.port, PATH, body(stream=True)) as client:
        assert client.recv(65536)
        worker.well = False
        until(lambda: "answered" in shown(router)["reason"])
        assert ask(router, 3) == [200] * 3
        assert router.http.get("/health/ready").json()["status"] == "degraded"


def test_one_that_is_not_heard_is_down(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that has sent nothing for half a minute is gone; one that streams is not."""
    silent, streams = stub(), stub(STREAM)
    route_one, route_two = (route(one.url, health=OFTEN) for one in (silent, streams))
    with post(route_two.port, PATH, body(stream=True)) as client:
        assert client.recv(65536)
        silent.busy = streams.busy = True
        probed(route_one, 0)
        probed(route_two, 0)
        for router in (route_one, route_two):
            worker = router.worker()
            worker.probed_at = worker.answered_at = time.monotonic() - 60
        until(lambda: not route_one.worker().ready)
        assert ask(route_one) == [503]
        until(lambda: route_two.worker().ready)


def sleep_state(*, awake: bool, engines: int = 1) -> str:
    """What vLLM tells of its sleep, by engine."""
    states = {"awake": awake, "weights_offloaded": not awake, "discard_all": False}
    return "# TYPE vllm:engine_sleep_state gauge\n" + "".join(
        f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="{name}"}} {state:.1f}\n'
        for engine in range(engines)
        for name, state in states.items()
    )


def test_sleeping_workers(stub: MakeStub, route: MakeRouter) -> None:
    """They get nothing though their probes succeed, clients are told if all sleep, and they are
    used again once they are awake."""
    workers = [stub(), stub()]
    for worker in workers:
        worker.tell(sleep_state(awake=False))
    router = route(*(w.url for w in workers), strategy="roundrobin", health=OFTEN)
    reply = router.http.post(PATH, json=CHAT)
    assert reply.status_code == 503
    assert "asleep" in error_of(reply)["message"]
    assert [shown(router, place)["state"] for place in (0, 1)] == ["asleep"] * 2
    workers[1].tell(sleep_state(awake=True, engines=2))
    until(lambda: shown(router, 1)["state"] == "ready")
    assert ask(router, 4) == [200] * 4
    assert [len(worker.requests) for worker in workers] == [0, 4]
    workers[0].tell(sleep_state(awake=True))
    until(lambda: shown(router)["state"] == "ready")
    ask(router, 4)
    assert len(workers[0].requests) == 2
    workers[1].tell(sleep_state(awake=False, engines=2))
    until(lambda: shown(router, 1)["state"] == "asleep")
    ask(router, 4)
    assert len(workers[1].requests) == 6
