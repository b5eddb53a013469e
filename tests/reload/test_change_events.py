"""Settings that say where workers publish KV events, changed while requests are served."""

import threading
from typing import Any

from tests.reload.changing import QUIET, change
from tests.support import MakeRouter, MakeStub, Router, Stub, until

ASKED, TOLD = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
SOURCES = b'{"0":{"endpoint":"%b"}}' % ASKED.encode()


def followed(router: Router) -> list[str]:
    """Return the addresses that are listened to."""
    ways = router.door.memories._followed.values()
    return [one.endpoint for published, _ in ways for one in published]


def asked(router: Router) -> bool:
    """Whether a worker is being asked where it publishes."""
    return any(not task.done() for task in router.door.memories._asking.values())


def hanging(worker: Stub) -> threading.Event:
    """Keep the worker from doing anything until the event is set."""
    over = threading.Event()
    worker._loop.call_soon_threadsafe(over.wait, 20)
    return over


def publishing(stub: MakeStub) -> Stub:
    """Start a worker that says where it publishes."""
    worker = stub()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(SOURCES)
    worker._fixed[b"/kv_event_sources"] = head + SOURCES
    return worker


def test_an_address_given_while_the_worker_is_asked(stub: MakeStub, route: MakeRouter) -> None:
    """What the settings say holds, although the worker answers something else afterwards."""
    worker = publishing(stub)
    router = route(worker.url, strategy="kvaware", health=QUIET)
    until(lambda: followed(router) == [ASKED] and not asked(router))
    told: dict[str, Any] = {"url": worker.url, "kv_events": TOLD}
    over = hanging(worker)
    change(router, worker.url, strategy="kvaware")
    assert asked(router)
    change(router, told, strategy="kvaware")
    assert followed(router) == [TOLD]
    over.set()
    until(lambda: not asked(router))
    assert followed(router) == [TOLD]


def test_a_pool_replaced_while_its_worker_is_asked(stub: MakeStub, route: MakeRouter) -> None:
    """The worker's events are heard for the new pool as soon as it answers."""
    worker = publishing(stub)
    router = route(worker.url, strategy="kvaware", health=QUIET)
    until(lambda: followed(router) == [ASKED] and not asked(router))
    over = hanging(worker)
    change(router, worker.url, strategy="kvaware")
    assert asked(router)
    change(router, worker.url, strategy={"name": "kvaware", "unconfirmed": "2s"})
    assert followed(router) == []
    over.set()
    until(lambda: followed(router) == [ASKED])
