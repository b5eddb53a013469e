"""Slow clients: their workers are held back, the router buffers little, and no byte is lost."""

from contextlib import ExitStack
from time import monotonic
from typing import Protocol, get_args

import pytest

from tests.backpressure.fountain import Fountain, Reader, Shape
from tests.support import MakeRouter, MakeStub, Router, until

QUIET = {"interval": "1h", "timeout": "10s"}
#: `ENDLESS`: so many events that they never end. `ENOUGH`: more bytes than all kernel buffers hold.
ENDLESS, ENOUGH = 1 << 30, 64 << 20


class MakeFountain(Protocol):
    """Make a worker that writes as fast as it can."""

    def __call__(self, events: int, shape: Shape = "stream") -> Fountain: ...


@pytest.fixture
def fountain(stack: ExitStack) -> MakeFountain:
    """Make workers that write as fast as they can."""

    def make(events: int, shape: Shape = "stream") -> Fountain:
        made = Fountain(events, shape)
        stack.callback(made.stop)
        return made

    return make


shapes = pytest.mark.parametrize("shape", get_args(Shape))


def paused(router: Router) -> bool:
    """Whether the router has stopped reading from the worker."""
    return any(connection.paused for connection in tuple(router.worker().upstream.in_use))


@shapes
def test_nothing_is_read(fountain: MakeFountain, route: MakeRouter, shape: Shape) -> None:
    """If the client reads nothing, the router stops the worker."""
    worker = fountain(ENDLESS, shape)
    router = route(worker.url, health=QUIET)
    with Reader(router.port):
        until(lambda: paused(router))
        (pour,) = worker.pours
        before = still = 0

        def stands_still() -> bool:
            nonlocal before, still
            written = pour.written
            assert written < ENOUGH
            before, still = written, still + 1 if written == before else 0
            return still == 20

        until(stands_still)
        assert pour.given > pour.written  # it has more to give
        assert router.worker().load.in_flight == 1
    until(lambda: pour.over)
    until(router.idle)


@shapes
def test_reading_on(fountain: MakeFountain, route: MakeRouter, shape: Shape) -> None:
    """A client that pauses many times gets every byte, in order."""
    worker = fountain(600, shape)  # 19 MiB
    router = route(worker.url, health=QUIET)
    with Reader(router.port) as reader:
        answer = reader.answer()
        got = []
        for stop in range(3):
            until(lambda: paused(router))
            got.append(answer.read(1 + stop))
            got.append(answer.read(1 << 20))
        until(lambda: paused(router))
        got.append(answer.read())
    assert b"".join(got) == worker.body()
    until(router.idle)
    assert router.worker().upstream.idle == 1  # the worker's connection is kept


def test_those_who_read_are_served(
    fountain: MakeFountain, stub: MakeStub, route: MakeRouter
) -> None:
    """While some clients do not read, others are served, even by the same worker."""
    worker, quick = fountain(100), stub(model="quick")
    router = route(worker.url, quick.url, health=QUIET)
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(Reader(router.port))
        until(lambda: sum(c.paused for c in tuple(router.worker().upstream.in_use)) == 20)
        for _ in range(20):
            body = {"model": "quick", "messages": []}
            assert router.http.post("/v1/chat/completions", json=body).status_code == 200
        with Reader(router.port) as reader:
            assert reader.answer().read() == worker.body()
        assert worker.open == 20
        assert router.worker().load.in_flight == 20
    until(router.idle)


def test_the_worker_s_silence_is_not_blamed(fountain: MakeFountain, route: MakeRouter) -> None:
    """A worker that the router has stopped reading from does not run into `timeouts.idle`."""
    worker = fountain(100)
    router = route(worker.url, timeouts={"idle": "1s"}, health=QUIET)
    with Reader(router.port) as reader:
        until(lambda: paused(router))
        since = monotonic()
        until(lambda: monotonic() > since + 1.5)  # timeouts are checked ten times a second
        assert reader.answer().read() == worker.body()
    until(router.idle)
