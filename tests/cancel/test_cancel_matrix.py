"""Every point at which a client can leave, on every path, streamed or not."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from socket import socket
from typing import NamedTuple

import pytest

from router.openai import Endpoint
from router.pool import Pool
from strategies.prefixaware import PrefixAware
from tests.cancel.leaving import (
    CHAT,
    CHUNK,
    EVENT,
    PATIENT,
    SSE,
    WHOLE,
    assert_blameless,
    chat,
    connecting,
    counted,
    everywhere,
    heads_seen,
    request_to,
    unreachable,
)
from tests.support import OK, Router, Stub, post, read_all, until

#: A prompt that takes a while to read and to make keys of.
LARGE = "All happy families are alike. " * 70_000


class Stage:
    """A worker that can be reached, one that cannot, and room for one request on each."""

    def __init__(self, stack: ExitStack) -> None:
        self.worker = Stub(model="near")
        stack.callback(self.worker.stop)
        far = Stub(model="far")
        stack.callback(far.stop)
        pools = [
            {"name": "near", "models": ["near"], "workers": [self.worker.url]},
            {"name": "far", "models": ["far"], "workers": [far.url]},
        ]
        settings = {"limits": {"in_flight": 1}, "sagemaker": {"body": "16MiB"}, **PATIENT}
        self.router = Router({"pools": pools, **settings})
        stack.callback(self.router.stop)
        stack.enter_context(unreachable(far))
        self._probing = len(self.worker._tasks)
        self._connecting = connecting()

    def clean(self) -> None:
        """Forget what was."""
        self.worker.requests.clear()
        self._closed = self.worker.closed_by_peer
        self._before = self._counts()

    @property
    def closed(self) -> int:
        """Connections on which the worker worked, and that were closed."""
        return self.worker.closed_by_peer - self._closed

    def _counts(self) -> dict[str, Counter[str]]:
        families = ("requests", "refused_requests", "worker_errors")
        return {family: counted(self.router, family) for family in families}

    def counts(self) -> dict[str, dict[str, int]]:
        """What has been counted since."""
        now = self._counts()
        return {family: dict(now[family] - self._before[family]) for family in now}

    @property
    def waiting(self) -> float:
        """How many wait in line."""
        return self.router.metric("warmroute_queue_length")

    @property
    def connecting(self) -> int:
        """Attempts to reach the worker that cannot be reached."""
        return connecting() - self._connecting

    def rests(self) -> bool:
        """Nothing is booked, held or waited for; no worker has an open connection in use."""
        pools = self.router.door.fleet.pools
        near = pools[0].workers[0]
        # A stub that stalls does so for ever, but notices.
        connections = len(self.worker._tasks) - self.worker.closed_by_peer - self._probing
        return (
            self.router.idle()
            and not self.waiting
            and not any(_placements(pool) for pool in pools)
            and not any(w.upstream._busy for w in self.router.door.fleet.workers)
            and connections == near.upstream.idle
            and self.connecting == 0
        )


def _placements(pool: Pool) -> int:
    """Requests of which the strategy has not been told the end."""
    assert isinstance(pool.strategy, PrefixAware)
    return len(pool.strategy._placed)


@pytest.fixture(scope="module")
def stages() -> Iterator[Callable[[], Stage]]:
    """One for all tests, and another after a test that has left something behind."""
    with ExitStack() as stack:
        made: list[Stage] = []

        def take() -> Stage:
            if not made or not made[-1].rests():
                made.append(Stage(stack))
            return made[-1]

        yield take


@pytest.fixture
def stage(stages: Callable[[], Stage]) -> Stage:
    """Everything at rest."""
    taken = stages()
    taken.clean()
    return taken


class Kind(NamedTuple):
    """What is asked for."""

    endpoint: Endpoint
    stream: bool

    def sent(self, stage: Stage, model: str = "near", text: str = "x") -> socket:
        """The client that asks."""
        body, fields = request_to(self.endpoint, stream=self.stream, model=model, text=text)
        return post(stage.router.port, self.endpoint.path, body, *fields)


def while_connecting(stage: Stage, kind: Kind) -> socket:
    """The worker has not accepted."""
    client = kind.sent(stage, model="far")
    until(lambda: stage.connecting == 1)
    return client


def before_the_header(stage: Stage, kind: Kind) -> socket:
    """The worker has the request."""
    stage.worker.script = ["stall"]
    client = kind.sent(stage)
    until(lambda: stage.worker.requests)
    return client


def before_the_body(stage: Stage, kind: Kind) -> socket:
    """The worker has sent its header, and no byte of a body yet."""
    stage.worker.script = [SSE if kind.stream else WHOLE, "stall"]
    client = kind.sent(stage)
    until(lambda: heads_seen(stage.router.worker(0)))
    return client


def in_the_middle(stage: Stage, kind: Kind) -> socket:
    """The client has read a part of the answer."""
    piece = EVENT if kind.stream else b"{" * 500
    stage.worker.script = [SSE + CHUNK if kind.stream else WHOLE + piece, "stall"]
    client = kind.sent(stage)
    got = b""
    while piece not in got:
        got += client.recv(65536)
    return client


ASKED = [while_connecting, before_the_header, before_the_body, in_the_middle]

streamed = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@streamed
@everywhere
@pytest.mark.parametrize("arrive", ASKED, ids=lambda arrive: arrive.__name__)
def test_once_a_worker_was_chosen(
    stage: Stage, arrive: Callable[[Stage, Kind], socket], endpoint: Endpoint, stream: bool
) -> None:
    """The connection to it is closed; the leaving is counted there, and held against nobody."""
    client = arrive(stage, Kind(endpoint, stream))
    assert not stage.rests()
    assert stage.closed == 0
    client.close()
    until(stage.rests)
    assert stage.closed == len(stage.worker.requests) == (arrive is not while_connecting)
    assert stage.counts() == {
        "requests": {"499": 1}, "refused_requests": {}, "worker_errors": {}
    }  # fmt: skip
    for worker in stage.router.door.fleet.workers:
        assert_blameless(worker)


@streamed
@everywhere
def test_in_the_queue(stage: Stage, endpoint: Endpoint, stream: bool) -> None:
    """No worker hears of it, and whoever is being served goes on."""
    opened = threading.Event()
    stage.worker.script = [opened.is_set, *OK]
    with post(stage.router.port, CHAT, chat(stream=False, model="near"), b"connection: close") as c:
        until(lambda: stage.worker.requests)
        client = Kind(endpoint, stream).sent(stage)
        until(lambda: stage.waiting == 1)
        client.close()
        until(lambda: stage.waiting == 0)
        until(lambda: stage.counts()["refused_requests"] == {"499": 1})
        opened.set()
        assert read_all(c).startswith(b"HTTP/1.1 200 OK")
    until(stage.rests)
    assert len(stage.worker.requests) == 1
    assert stage.counts() == {
        "requests": {"2xx": 1}, "refused_requests": {"499": 1}, "worker_errors": {}
    }  # fmt: skip
    for worker in stage.router.door.fleet.workers:
        assert_blameless(worker)


@streamed
@everywhere
def test_as_its_last_byte_is_read(stage: Stage, endpoint: Endpoint, stream: bool) -> None:
    """However far the router was with it by then, nothing goes on and it is counted once."""
    stage.worker.script = ["stall"]
    client = Kind(endpoint, stream).sent(stage, text=LARGE)
    client.close()
    until(lambda: any(stage.counts().values()))
    until(stage.rests)
    counts = stage.counts()
    assert Counter(counts["requests"]) + Counter(counts["refused_requests"]) == {"499": 1}
    assert counts["worker_errors"] == {}
    for worker in stage.router.door.fleet.workers:
        assert_blameless(worker)
