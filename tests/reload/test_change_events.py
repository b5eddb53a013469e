"""Settings that say where workers publish KV events, changed while requests are served."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any

import pytest

from controller.events.source import EventSource
from tests.reload.changing import QUIET, change
from tests.support import MakeRouter, MakeStub, Router, Stub, until

ASKED, TOLD = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


def followed(router: Router) -> list[str]:
    """Return the addresses that are listened to."""
    ways = router.door.memories._followed.values()
    return [one.endpoint for published, _ in ways for one in published]


def asked(router: Router) -> bool:
    """Whether a worker is being asked where it publishes."""
    return any(not task.done() for task in router.door.memories._inquiring.values())


def hanging(worker: Stub) -> threading.Event:
    """Keep the worker from doing anything until the event is set."""
    over = threading.Event()
    worker._loop.call_soon_threadsafe(over.wait, 20)
    return over


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


def test_a_pool_replaced_while_sockets_are_closed(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that publishes elsewhere now is heard for the new pool, not for the old one."""
    worker = publishing(stub)
    router = route(worker.url, strategy="kvaware", health=QUIET)
    until(lambda: followed(router) == [ASKED] and not asked(router))
    subscriber, over = router.door.memories.subscriber, threading.Event()
    leave = subscriber.leave

    async def slowly(closing: Coroutine[Any, Any, None]) -> None:
        await closing
        await asyncio.to_thread(over.wait, 20)

    def leaving(sources: Iterable[EventSource]) -> Coroutine[Any, Any, None]:
        return slowly(leave(sources))

    monkeypatch.setattr(subscriber, "leave", leaving)
    says(worker, TOLD)
    change(router, worker.url, strategy="kvaware")
    until(lambda: followed(router) == [])
    change(router, worker.url, strategy={"name": "kvaware", "unconfirmed": "2s"})
    over.set()
    until(lambda: followed(router) == [TOLD])
    ((_, memory),) = router.door.memories.pools()
    assert len(list(memory.all_sources())) == 1
