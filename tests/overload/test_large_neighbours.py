"""Large requests are read in a thread of their own: small ones do not wait for them."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from router.runtime.threads import Lane
from tests.overload.busy import PATH, QUIET
from tests.support import MakeRouter, MakeStub, Router, until

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
    "messages": (PATH, {"model": "m", "messages": [{"role": "user", "content": "x" * 400}] * 4000}),
    "parts": (PATH, chat([PART] * 10_000)),
    "image": (PATH, chat([PART, IMAGE])),
    "tools": (PATH, chat("Hello", tools=[{"type": "function", "x": "x" * MB}])),
    "other": (PATH, chat("Hello", anything=["x" * 100] * 10_000)),
    "system": ("/v1/messages", chat("Hello", system="Hello " * MB)),
    "items": ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": "x" * MB}]}),
    "ids": ("/v1/completions", {"model": "m", "prompt": [12345] * 200_000}),
    "inputs": ("/v1/embeddings", {"model": "m", "input": ["Hello " * 100] * 2048}),
    "documents": ("/rerank", {"model": "m", "query": "x", "documents": [PART] * 10_000}),
    "invocation": ("/endpoints/e/invocations", chat("x" * MB)),
    "explained": ("/explain", chat("Hello " * MB)),
}


class Busy:
    """Keeps the thread for large requests of a router busy."""

    def __init__(self, router: Router) -> None:
        self.lane: Lane = router.door._proxy._tokenizing.reading
        self.opened = threading.Event()
        wait = partial(self.opened.wait, 20)
        router.call(lambda: setattr(self, "task", asyncio.ensure_future(self.lane.run(wait, 0))))
        until(lambda: self.lane.pending)


@pytest.fixture
def busy(stub: MakeStub, route: MakeRouter) -> Iterator[tuple[Router, Busy]]:
    """A router whose thread for large requests is busy until it is freed, or the test ends."""
    router = route(stub().url, health=QUIET)
    made = Busy(router)
    yield router, made
    made.opened.set()


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_small_ones_pass(
    busy: tuple[Router, Busy], crowd: ThreadPoolExecutor, large: tuple[str, dict[str, object]]
) -> None:
    """While a large request waits for the thread, small ones are answered; then it is, too."""
    router, thread = busy
    path, body = large
    reply = crowd.submit(httpx.post, router.url + path, json=body, timeout=30)
    until(lambda: thread.lane.pending == 2)
    for _ in range(3):
        assert router.http.post(PATH, json=SMALL).status_code == 200
    assert not reply.done()
    thread.opened.set()
    assert reply.result().status_code == 200
    until(lambda: not thread.lane.pending)
    until(router.idle)


def test_a_large_one_that_is_wrong(busy: tuple[Router, Busy]) -> None:
    """It is refused as a small one is, and a valid one is answered afterwards."""
    router, thread = busy
    thread.opened.set()
    too_many = chat([IMAGE | {"uuid": "x"}, *[{"type": "image_url"}] * 300])
    for wrong in (json.dumps(chat("x" * MB)).encode()[:-1], json.dumps(too_many).encode()):
        assert router.http.post(PATH, content=wrong).status_code == 400
    assert router.http.post(PATH, json=chat("x" * MB)).status_code == 200


def test_who_leaves_is_forgotten(busy: tuple[Router, Busy]) -> None:
    """A client that disconnects while its large request waits leaves nothing behind."""
    router, thread = busy
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(router.url + PATH, json=chat("x" * MB), timeout=0.3)
    until(lambda: thread.lane.pending == 1)
    assert router.metric("warmroute_refused_requests_total", status="499") == 1
    thread.opened.set()
    assert router.http.post(PATH, json=chat("x" * MB)).status_code == 200


def test_keys_take_turns(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key's large request waits for one of each other key at most, not for all of them."""
    worker = stub()
    keys = {"greedy": "g" * 16, "modest": "m" * 16}
    for name, key in keys.items():
        monkeypatch.setenv(name.upper(), key)
    told = {"keys": [{"name": name, "key": f"${{{name.upper()}}}"} for name in keys]}
    router = route(worker.url, health=QUIET, auth=told)
    thread = Busy(router)

    def ask(name: str) -> Future[httpx.Response]:
        headers = {"authorization": f"Bearer {keys[name]}", "x-request-id": name}
        large = chat("Hello " * MB)
        return crowd.submit(httpx.post, router.url + PATH, json=large, headers=headers, timeout=30)

    replies = []
    for place in range(4):
        replies.append(ask("greedy"))
        until(lambda: thread.lane.pending == place + 2)  # noqa: B023 - awaited at once
    replies.append(ask("modest"))
    until(lambda: thread.lane.pending == 6)
    thread.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 5
    order = [b"x-request-id: modest" in request for request in worker.requests]
    assert order.index(True) <= 1
