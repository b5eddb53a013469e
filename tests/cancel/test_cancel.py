"""Clients that disconnect at any point of a request: the worker stops and nobody is blamed."""

import json

import pytest

from strategies.api import Candidate, Outcome, Prompt
from strategies.policies.prefix_aware import PrefixAware
from tests.cancel.leaving import (
    CHAT,
    CHUNK,
    EVENT,
    FULL,
    PATIENT,
    SSE,
    Leave,
    assert_gone,
    chat,
    close,
    counted,
    half_close,
    reset,
    unreachable,
)
from tests.support import OK, Action, MakeRouter, MakeStub, head, post, send, until


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize(
    "sent",
    [
        head(CHAT, 100),
        head(CHAT, 100) + b'{"model":"m",',
        b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{" % CHAT.encode(),
    ],
    ids=["no-body", "half-a-body", "half-a-chunk"],
)
def test_while_sending(stub: MakeStub, route: MakeRouter, sent: bytes, leave: Leave) -> None:
    """A request whose client disconnects while sending it never reaches a worker."""
    worker = stub()
    router = route(worker.url, **PATIENT)
    with send(router.port, sent) as client:
        leave(client)
        until(lambda: counted(router, "refused_requests") == {"499": 1})
    assert counted(router, "requests") == {}
    assert worker.requests == []
    assert router.idle()
    assert router.http.post(CHAT, content=chat(stream=False)).status_code == 200


def test_while_the_worker_sends(stub: MakeStub, route: MakeRouter) -> None:
    """An answer is stopped even while the worker keeps sending it without a pause."""
    endless: list[Action] = [CHUNK, 0.001] * 20_000
    worker = stub([SSE, *endless])
    router = route(worker.url, **PATIENT)
    client = post(router.port, CHAT, chat(stream=True))
    assert client.recv(65536)
    client.close()
    until(router.idle)
    until(lambda: counted(router, "requests") == {"499": 1})
    assert counted(router, "worker_errors") == {}


@pytest.mark.parametrize("leave", [close, reset, half_close])
def test_a_client_that_stopped_reading(stub: MakeStub, route: MakeRouter, leave: Leave) -> None:
    """A disconnect is noticed even while the router has paused because the client reads slowly."""
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    worker = stub([SSE, *[piece] * 2000])
    router = route(worker.url, **PATIENT)
    client = post(router.port, CHAT, chat(stream=True))
    until(lambda: any(c.paused for c in tuple(router.worker().upstream.in_use)))
    leave(client)
    until(router.idle)
    client.close()
    until(lambda: counted(router, "requests") == {"499": 1})
    assert counted(router, "worker_errors") == {}


def test_at_the_second_worker(stub: MakeStub, route: MakeRouter) -> None:
    """A client that disconnects after a failover is counted on the second worker, which stops."""
    full, slow = stub([FULL]), stub(["stall"])
    router = route(full.url, slow.url, strategy="roundrobin", **PATIENT)
    client = post(router.port, CHAT, chat(stream=True))
    until(lambda: len(slow.requests) == 1)
    client.close()
    until(lambda: slow.closed_by_peer == 1)
    until(router.idle)
    assert counted(router, "requests") == {"499": 1}
    assert counted(router, "worker_errors") == {"full": 1}
    second = {"pool": "default", "worker": router.worker(1).name}
    assert router.metric("warmroute_requests_total", status="499", **second) == 1
    assert all(each.ready for each in router.door.fleet.workers)


def test_a_crowd_that_leaves(stub: MakeStub, route: MakeRouter) -> None:
    """When fifty clients disconnect at once, fifty connections are closed and fifty counted."""
    workers = [stub(["stall"]), stub(["stall"])]
    router = route(*(worker.url for worker in workers), **PATIENT)
    clients = [post(router.port, CHAT, chat(stream=bool(number % 2))) for number in range(50)]
    until(lambda: sum(len(worker.requests) for worker in workers) == 50)
    for client in clients:
        client.close()
    until(lambda: sum(worker.closed_by_peer for worker in workers) == 50)
    until(router.idle)
    assert counted(router, "requests") == {"499": 50}
    assert counted(router, "worker_errors") == {}


def test_leaving_after_the_end_is_not_leaving(stub: MakeStub, route: MakeRouter) -> None:
    """A client that closes after its answer counts as served; the worker's connection is kept."""
    worker = stub()
    router = route(worker.url, **PATIENT)
    for number in range(10):
        with post(router.port, CHAT, chat(stream=False), b"connection: close") as client:
            while client.recv(65536):
                pass
        until(lambda done=number + 1: counted(router, "requests") == {"2xx": done})  # type: ignore[misc]
    until(router.idle)
    assert router.worker().upstream.idle == 1
    assert counted(router, "refused_requests") == {}


def test_what_the_strategy_is_told(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strategy learns that the answer began but failed, and remembers the computed prompt."""
    told: list[Outcome] = []
    settled = PrefixAware.settled

    def watched(
        self: PrefixAware, prompt: Prompt, choice: Candidate, outcome: Outcome, now: float
    ) -> None:
        told.append(outcome)
        settled(self, prompt, choice, outcome, now)

    monkeypatch.setattr(PrefixAware, "settled", watched)
    worker = stub([SSE + CHUNK, "stall"])
    router = route(worker.url, **PATIENT)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "word " * 5000}]}
    with post(router.port, CHAT, json.dumps(body).encode()) as client:
        got = b""
        while EVENT not in got:
            got += client.recv(65536)
    assert_gone(router, worker)
    assert [(outcome.ok, outcome.began) for outcome in told] == [(False, True)]
    worker.script = OK
    again = router.http.post(CHAT, json=body)
    assert again.headers["x-warmroute-decision"].startswith("prefix;")


def test_what_was_never_sent_is_not_remembered(stub: MakeStub, route: MakeRouter) -> None:
    """If the client disconnects before the worker is connected, no prefix is recorded for it."""
    worker = stub()
    router = route(worker.url, **PATIENT)
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 5000}]}
    assert router.http.post("/explain", json=body).json()["reason"] == "cold"
    with unreachable(worker):
        with post(router.port, CHAT, json.dumps(body).encode()):
            until(lambda: router.worker().load.in_flight == 1)
        assert_gone(router)
        assert router.http.post("/explain", json=body).json()["reason"] == "cold"
