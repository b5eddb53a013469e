"""Settings that say where workers publish KV events, changed while requests are served."""

import time
from typing import Any

from tests.reload.changing import QUIET, change
from tests.support import MakeRouter, MakeStub, Router, Stub, until

ASKED, TOLD = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


def followed(router: Router) -> list[str]:
    """Return the addresses that are listened to."""
    ways = router.door.memories._followed.values()
    return [one.endpoint for published, _ in ways for one in published]


def says(worker: Stub, endpoint: str) -> None:
    """Have the worker say that it publishes there."""
    sources = b'{"0":{"endpoint":"%b"}}' % endpoint.encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(sources)
    worker.fixed[b"/kv_event_sources"] = head + sources


def publishing(stub: MakeStub) -> Stub:
    """Start a worker that says where it publishes."""
    worker = stub()
    says(worker, ASKED)
    return worker


def test_an_address_given_while_the_worker_is_asked(stub: MakeStub, route: MakeRouter) -> None:
    """What the settings say holds, although the worker answers something else afterwards."""
    worker = publishing(stub)
    router = route(worker.url, strategy="kvaware", health=QUIET)
    until(lambda: followed(router) == [ASKED])
    told: dict[str, Any] = {"url": worker.url, "kv_events": TOLD}
    worker.busy = True
    change(router, worker.url, strategy="kvaware")
    change(router, told, strategy="kvaware")
    assert followed(router) == [TOLD]
    worker.busy = False
    for _ in range(20):
        assert followed(router) == [TOLD]
        time.sleep(0.01)


def test_a_pool_replaced_while_its_worker_is_asked(stub: MakeStub, route: MakeRouter) -> None:
    """The worker's events are heard for the new pool as soon as it answers."""
    worker = publishing(stub)
    router = route(worker.url, strategy="kvaware", health=QUIET)
    until(lambda: followed(router) == [ASKED])
    worker.busy = True
    change(router, worker.url, strategy="kvaware")
    change(router, worker.url, strategy={"name": "kvaware", "unconfirmed": "2s"})
    assert followed(router) == []
    worker.busy = False
    until(lambda: followed(router) == [ASKED])
