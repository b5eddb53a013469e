"""Clients that disconnect at every stage of a request, on every path, streamed or not."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from socket import socket
from typing import NamedTuple

import pytest

from router.api.endpoints import ENDPOINTS, Endpoint
from router.fleet.pool import Pool
from strategies.policies.prefix_aware import PrefixAware
from tests.cancel.leaving import (
    CHAT,
    CHUNK,
    EVENT,
    PATIENT,
    SSE,
    WHOLE,
    Leave,
    assert_blameless,
    chat,
    close,
    counted,
    everywhere,
    half_close,
    head_seen,
    request_to,
    reset,
    unreachable,
)
from tests.support import OK, Router, Stub, post, read_all, until

#: A prompt that takes a while to read and to hash.
LARGE = "All happy families are alike. " * 70_000


class Stage:
    """A router with a reachable and an unreachable worker, with room for one request on each."""

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
        self.connecting = stack.enter_context(unreachable(far))
        """Returns how many connections to the unreachable worker are being established."""

    def clean(self) -> None:
        """Count from zero again."""
        self.worker.requests.clear()
        self._closed = self.worker.closed_by_peer
        self._before = self._counts()

    @property
    def closed(self) -> int:
        """The number of connections closed while the worker answered, since `clean`."""
        return self.worker.closed_by_peer - self._closed

    def _counts(self) -> dict[str, Counter[str]]:
        families = ("requests", "refused_requests", "worker_errors")
        return {family: counted(self.router, family) for family in families}

    def counts(self) -> dict[str, dict[str, int]]:
        """What the router's counters have counted since `clean`."""
        now = self._counts()
        return {family: dict(now[family] - self._before[family]) for family in now}

    @property
    def waiting(self) -> float:
        """How many requests wait in the queue."""
        return self.router.metric("warmroute_queue_length")

    def rests(self) -> bool:
        """Whether nothing is booked, queued or being connected to, and no connection is in use."""
        pools = self.router.door.fleet.pools
        return (
            self.router.idle()
            and not self.waiting
            and not any(_placed(pool) for pool in pools)
            and not any(worker.upstream.in_use for worker in self.router.door.fleet.workers)
            and not self.connecting()
        )


def _placed(pool: Pool) -> int:
    """The number of placed requests whose end the strategy has not been told yet."""
    assert isinstance(pool.strategy, PrefixAware)
    return pool.strategy.tree.root.users


@pytest.fixture(scope="module")
def stages() -> Iterator[Callable[[], Stage]]:
    """One stage for all tests; a new one after a test that has left something behind."""
    with ExitStack() as stack:
        made: list[Stage] = []

        def take() -> Stage:
            if not made or not made[-1].rests():
                made.append(Stage(stack))
            return made[-1]

        yield take


@pytest.fixture
def stage(stages: Callable[[], Stage]) -> Stage:
    """A stage at rest, with its counts at zero."""
    taken = stages()
    taken.clean()
    return taken


class Kind(NamedTuple):
    """A kind of request."""

    endpoint: Endpoint
    stream: bool

    def sent(self, stage: Stage, model: str = "near", text: str = "x") -> socket:
        """Send the request and return the client's socket."""
        body, fields = request_to(self.endpoint, stream=self.stream, model=model, text=text)
        return post(stage.router.port, self.endpoint.path, body, *fields)


def while_connecting(stage: Stage, kind: Kind) -> socket:
    """Stop at the point where the worker has not accepted the connection."""
    client = kind.sent(stage, model="far")
    until(lambda: stage.connecting() == 1)
    return client


def before_the_header(stage: Stage, kind: Kind) -> socket:
    """Stop at the point where the worker has the request."""
    stage.worker.script = ["stall"]
    client = kind.sent(stage)
    until(lambda: stage.worker.requests)
    return client


def before_the_body(stage: Stage, kind: Kind) -> socket:
    """Stop at the point where the worker has sent its head but no byte of the body."""
    stage.worker.script = [SSE if kind.stream else WHOLE, "stall"]
    client = kind.sent(stage)
    until(lambda: head_seen(stage.router.worker(0)))
    return client


def in_the_middle(stage: Stage, kind: Kind) -> socket:
    """Stop at the point where the client has read a part of the answer."""
    piece = EVENT if kind.stream else b"{" * 500
    stage.worker.script = [SSE + CHUNK if kind.stream else WHOLE + piece, "stall"]
    client = kind.sent(stage)
    got = b""
    while piece not in got:
        got += client.recv(65536)
    return client


ASKED = [while_connecting, before_the_header, before_the_body, in_the_middle]

streamed = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


arrives = pytest.mark.parametrize("arrive", ASKED, ids=lambda arrive: arrive.__name__)


@streamed
@everywhere
@arrives
def test_once_a_worker_was_chosen(
    stage: Stage, arrive: Callable[[Stage, Kind], socket], endpoint: Endpoint, stream: bool
) -> None:
    """The connection to the worker is closed, a 499 is counted, and no worker is blamed."""
    leaves(stage, arrive, Kind(endpoint, stream), close)


@streamed
@arrives
@pytest.mark.parametrize("leave", [reset, half_close])
def test_however_it_leaves(
    stage: Stage, arrive: Callable[[Stage, Kind], socket], stream: bool, leave: Leave
) -> None:
    """Also with a TCP reset, or by closing the sending side only."""
    leaves(stage, arrive, Kind(ENDPOINTS[CHAT], stream), leave)


def leaves(stage: Stage, arrive: Callable[[Stage, Kind], socket], kind: Kind, leave: Leave) -> None:
    """Leave at that point, and check what becomes of it."""
    client = arrive(stage, kind)
    assert not stage.rests()
    assert stage.closed == 0
    leave(client)
    until(stage.rests)
    client.close()
    asked = arrive is not while_connecting
    until(lambda: stage.closed == len(stage.worker.requests) == asked)
    gone(stage, requests={"499": 1})


def gone(stage: Stage, **counts: dict[str, int]) -> None:
    """Check that this is all that was counted, and no worker was blamed."""
    families = ("requests", "refused_requests", "worker_errors")
    assert stage.counts() == {family: counts.get(family, {}) for family in families}
    for worker in stage.router.door.fleet.workers:
        assert_blameless(worker)


@streamed
@everywhere
def test_in_the_queue(stage: Stage, endpoint: Endpoint, stream: bool) -> None:
    """A client in the queue disconnects: no worker sees it, and the request before it goes on."""
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
    gone(stage, requests={"2xx": 1}, refused_requests={"499": 1})


@streamed
@everywhere
def test_as_its_last_byte_is_read(stage: Stage, endpoint: Endpoint, stream: bool) -> None:
    """However far the router has got with the request by then, it ends and is counted once."""
    stage.worker.script = ["stall"]
    client = Kind(endpoint, stream).sent(stage, text=LARGE)
    client.close()
    until(lambda: any(stage.counts().values()), 30)  # its prompt is large
    until(stage.rests, 30)
    counts = stage.counts()
    assert Counter(counts["requests"]) + Counter(counts["refused_requests"]) == {"499": 1}
    assert counts["worker_errors"] == {}
    for worker in stage.router.door.fleet.workers:
        assert_blameless(worker)
