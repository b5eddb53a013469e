"""A request that others gave way to is not refused because they are not yet gone at its worker."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from router import admission, vacancies
from tests.overload.busy import PATH, QUIET, Gate, ask, asked
from tests.overload.giving_way import LONG, SHORT, routed, sizes
from tests.reload.changing import CHUNK, END, SSE
from tests.retry.test_failover import full
from tests.support import OK, Action, MakeRouter, MakeStub, Stub, post, until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request soon tries again though nothing ends."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 0.1)


class Narrow(list[Action]):
    """The script of a worker that takes one request at a time, and drops a long one only after it
    has refused a short one; a long one that comes then takes the place again.

    Long ones are answered once the gate is open, and short ones end with it.
    """

    def __init__(self, worker: Stub, gate: Gate) -> None:
        super().__init__()
        self._worker = worker
        self._gate = gate
        self._there = ""
        self.refused = 0

    def __iter__(self) -> Iterator[Action]:
        """Answer the request that has come last, if there is a place for it."""
        came, there = sizes(self._worker)[-1], self._there
        if came == "short" and there == "long":
            self._there = ""
            self.refused += 1
            return iter(full(b"x"))
        if there == "short":
            return iter(full(b"x"))
        self._there = came
        if came == "long":
            return iter([self._gate.opened.is_set, *OK])
        return iter([SSE + CHUNK, self._gate.opened.is_set, self._ends, CHUNK + END])

    def _ends(self) -> bool:
        self._there = ""
        return True


def test_it_waits_for_the_place(route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub) -> None:
    """It is sent again, and does not lose the place to the one that gave way time and again; that
    one is sent again once it was accepted."""
    gate = Gate()
    worker.script = narrow = Narrow(worker, gate)
    router = routed(route, worker)
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    with router.http.stream("POST", PATH, json=asked("short", SHORT)) as reply:
        assert reply.status_code == 200
        assert "x-warmroute-preempted" not in reply.headers
        assert 1 <= narrow.refused <= 2
        accepted = len(worker.requests)
        until(lambda: "long" in sizes(worker)[accepted:])
        gate.opened.set()
        assert reply.read().endswith(b"data: 1\n\n")
    assert first.result().status_code == 200
    assert int(first.result().headers["x-warmroute-preempted"]) <= 2
    until(router.idle)
    assert router.metric("warmroute_crowded") == 0
    families = {family.name: family.samples for family in router.door.metrics.collect()}
    decisions = [one for one in families["warmroute_decisions"] if one.name.endswith("_total")]
    assert sum(one.value for one in decisions) == 2


def test_its_client_leaves(route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub) -> None:
    """Then nobody waits behind it any more."""
    worker.script = [lambda: False]
    router = routed(route, worker)
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    worker.script = full(b"x")
    body = json.dumps(asked("short", SHORT)).encode()
    leaving = post(router.port, PATH, body, b"content-type: application/json")
    until(lambda: router.metric("warmroute_crowded") == 2)
    leaving.close()
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    worker.script = OK
    assert first.result().status_code == 200
    until(router.idle)


class Once(list[Action]):
    """A script for workers of which only the very first that is asked is full."""

    refused = False

    def __iter__(self) -> Iterator[Action]:
        """Answer, or refuse once."""
        script, self.refused = (OK if self.refused else full(b"x")), True
        return iter(script)


def test_another_worker_takes_it(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Then it does not wait."""
    both = [stub(Gate().script()) for _ in range(2)]
    router = route(*(one.url for one in both), health=QUIET)
    for one in router.door.fleet.workers:
        one.reuses = True
    longs = [ask(router, crowd, words, LONG) for words in ("long", "other")]
    until(lambda: all(one.requests for one in both))
    both[0].script = both[1].script = once = Once()
    assert ask(router, crowd, "short", SHORT).result().status_code == 200
    assert once.refused
    assert [long.result().status_code for long in longs] == [200] * 2
    until(router.idle)
    assert router.metric("warmroute_crowded_requests_total") == 0


def test_only_until_its_time_is_over(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    worker: Stub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then its client gets the worker's refusal, and so does that of the one that gave way."""
    monkeypatch.setattr(admission, "AGAIN_S", 1.0)
    worker.script = [lambda: False]
    router = routed(route, worker, timeouts={"queue": "1s"})
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    worker.script = full(b"x")
    reply = ask(router, crowd, "short", SHORT).result()
    assert (reply.status_code, reply.content) == (503, b"x")
    assert sizes(worker).count("short") > 1
    assert (first.result().status_code, first.result().content) == (503, b"x")
    until(router.idle)
    assert router.metric("warmroute_crowded") == 0
    assert router.metric("warmroute_crowded_requests_total") == 2
