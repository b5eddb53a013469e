"""Large requests are read in a thread of their own: small ones do not wait for them."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import httpx
import pytest

from router.runtime.threads import Lane
from tests.overload.busy import PATH, QUIET
from tests.support import MakeRouter, MakeStub, post, until

T = TypeVar("T")

MB = 1 << 20
SMALL = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def chat(content: object, **more: object) -> dict[str, object]:
    """Return a chat of one message."""
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


PART = {"type": "text", "text": "Hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (MB // 2)}}
#: Requests that take long to read: those of many bytes, and those of many parts.
LARGE = {
    "text": (PATH, chat("Hello " * MB)),
    "parts": (PATH, chat([PART] * 10_000)),
    "image": (PATH, chat([PART, IMAGE])),
    "tools": (PATH, chat("Hello", tools=[{"type": "function", "x": "x" * MB}])),
    "items": ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": "x" * MB}]}),
    "ids": ("/v1/completions", {"model": "m", "prompt": [12345] * 200_000}),
    "invocation": ("/endpoints/e/invocations", chat("x" * MB)),
    "explained": ("/explain", chat("Hello " * MB)),
}


class Reading:
    """The thread for large requests, which does nothing until it is `opened`."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.asked = 0
        """Requests that have been given to it."""

    def then(self, work: Callable[[], T]) -> T:
        """Wait, and do it."""
        assert self.opened.wait(20)
        return work()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    """Have large requests wait for that."""
    made, run = Reading(), Lane.run

    async def counted(lane: Lane, work: Callable[[], T], size: int, tenant: str = "") -> T:
        made.asked += 1
        return await run(lane, partial(made.then, work), size, tenant)

    monkeypatch.setattr(Lane, "run", counted)
    yield made
    made.opened.set()


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_small_ones_pass(
    stub: MakeStub,
    route: MakeRouter,
    reading: Reading,
    crowd: ThreadPoolExecutor,
    large: tuple[str, dict[str, object]],
) -> None:
    """While a large request waits for the thread, small ones are answered; then it is, too."""
    router = route(stub().url, health=QUIET)
    path, body = large
    reply = crowd.submit(httpx.post, router.url + path, json=body, timeout=30)
    until(lambda: reading.asked)
    for _ in range(3):
        assert router.http.post(PATH, json=SMALL).status_code == 200
    assert not reply.done()
    reading.opened.set()
    assert reply.result().status_code == 200
    until(router.idle)


def test_a_large_one_that_is_wrong(stub: MakeStub, route: MakeRouter) -> None:
    """It is refused as a small one is, and a valid one is answered afterwards."""
    router = route(stub().url, health=QUIET)
    too_many = chat([IMAGE | {"uuid": "x"}, *[{"type": "image_url"}] * 300])
    for wrong in (json.dumps(chat("x" * MB)).encode()[:-1], json.dumps(too_many).encode()):
        assert router.http.post(PATH, content=wrong).status_code == 400
    assert router.http.post(PATH, json=chat("x" * MB)).status_code == 200


def test_who_leaves_is_forgotten(stub: MakeStub, route: MakeRouter, reading: Reading) -> None:
    """A client that disconnects while its large request waits leaves nothing behind."""
    worker = stub()
    router = route(worker.url, health=QUIET)
    with post(router.port, PATH, json.dumps(chat("x" * MB)).encode()):
        until(lambda: reading.asked)
    until(lambda: router.metric("warmroute_refused_requests_total", status="499") == 1)
    reading.opened.set()
    assert router.http.post(PATH, json=chat("x" * MB)).status_code == 200
    assert len(worker.requests) == 1


def test_keys_take_turns(
    stub: MakeStub,
    route: MakeRouter,
    reading: Reading,
    crowd: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another key's large request waits for one of each other key at most, not for all of them."""
    worker = stub()
    keys = {"greedy": "g" * 16, "modest": "m" * 16}
    for name, key in keys.items():
        monkeypatch.setenv(name.upper(), key)
    auth = {"keys": [{"name": name, "key": f"${{{name.upper()}}}"} for name in keys]}
    router = route(worker.url, health=QUIET, auth=auth)
    body = json.dumps(chat("x" * MB)).encode()

    def ask(name: str) -> Future[httpx.Response]:
        headers = {"authorization": f"Bearer {keys[name]}", "x-request-id": name}
        send = partial(httpx.post, router.url + PATH, content=body, headers=headers, timeout=30)
        return crowd.submit(send)

    replies = []
    for place, name in enumerate(["greedy"] * 4 + ["modest"], 1):
        replies.append(ask(name))
        until(lambda place=place: reading.asked == place)  # type: ignore[misc]
    reading.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 5
    order = [b"x-request-id: modest" in request for request in worker.requests]
    assert order.index(True) <= 2
