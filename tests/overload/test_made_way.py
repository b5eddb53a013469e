"""A request that others gave way to is not refused because they are not yet gone at its worker."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.overload.busy import PATH, QUIET, Gate, ask, asked
from tests.overload.giving_way import LONG, SHORT, routed
from tests.overload.totals import total
from tests.retry.test_failover import full
from tests.support import OK, Action, MakeRouter, MakeStub, Stub, post, until


class Once(list[Action]):
    """A script for workers of which only the very first that is asked is full."""

    refused = False

    def __iter__(self) -> Iterator[Action]:
        """Answer, or refuse once."""
        script, self.refused = (OK if self.refused else full(b"x")), True
        return iter(script)


def test_it_is_sent_again(route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub) -> None:
    """As soon as its worker takes others again; the refusal is counted, and both are answered."""
    worker.script = [lambda: False]
    router = routed(route, worker)
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    worker.script = once = Once()
    reply = ask(router, crowd, "short", SHORT).result()
    assert once.refused
    assert reply.status_code == 200
    assert "x-warmroute-preempted" not in reply.headers
    assert first.result().status_code == 200
    labels = {"pool": "default", "worker": worker.url[7:], "kind": "full"}
    assert router.metric("warmroute_worker_errors_total", **labels) == 1
    assert total(router, "decisions") == 2
    until(router.idle)


def test_its_client_leaves(route: MakeRouter, crowd: ThreadPoolExecutor, worker: Stub) -> None:
    """Then nobody waits behind it any more."""
    worker.script = [lambda: False]
    router = routed(route, worker)
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    worker.script = full(b"x")
    body = json.dumps(asked("short", SHORT)).encode()
    leaving = post(router.port, PATH, body, b"content-type: application/json")
    until(lambda: router.metric("warmroute_queue_length") == 2)
    leaving.close()
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    worker.script = OK
    assert first.result().status_code == 200
    until(router.idle)


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
