"""Routers without sockets: everything behind the listening socket, and workers that are functions.

A router sends and answers what it would over a network; only the scheduling is decided here.
"""

import asyncio
import json
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

from router.api.endpoints import ENDPOINTS
from router.fleet.breaker import Breaker
from router.fleet.build import build
from router.fleet.worker import ProbeState, Worker
from router.http.exchange import AnswerSource, Exchange
from router.http.parser import Recall
from router.http.tls import Contexts
from router.http.validation import RequestHead
from router.observe.metrics import Metrics
from router.proxy.proxy import Proxy
from router.sagemaker.handler import SageMaker
from router.sagemaker.paths import route
from router.sessions.sessions import Sessions
from router.sessions.store import Clock, Store
from router.sessions.table import Binding, Bound, OpenSession, SessionLease
from router.settings.model import Settings
from router.settings.server import TimeoutSettings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Refused
from router.upstream.response import ResponseHead
from strategies.cost.load import Load
from strategies.cost.prefill import Pace

_TIMEOUTS = TimeoutSettings()
_BODY = b'{"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}'


class _Transport(asyncio.Transport):
    """Takes what is sent, and has it answered in the loop's next turn."""

    def __init__(self, connection: UpstreamConnection, status: int) -> None:
        super().__init__()
        self._connection = connection
        self._answer = (
            b"HTTP/1.1 %d Said\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % (status, len(_BODY))
        ) + _BODY

    def write(self, data: bytes | bytearray | memoryview) -> None:
        del data
        asyncio.get_running_loop().call_soon(self._connection.data_received, self._answer)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def abort(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing: the answer has arrived whole."""

    def resume_reading(self) -> None:
        """Do nothing."""


class Wire:
    """The way from one router to one worker, which is `well`, `full`, `broken` or `dead`."""

    tls = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.how = "well"

    async def ask(self, head: bytes, body: bytes, _: object = None) -> UpstreamConnection:
        """Send a request as an upstream does."""
        if self.how == "dead":
            raise Refused("could not be reached")
        status = {"well": 200, "full": 503, "broken": 500}[self.how]
        recall: Recall[ResponseHead] = Recall()
        connection = UpstreamConnection(asyncio.get_running_loop(), _TIMEOUTS, recall)
        connection.connection_made(_Transport(connection, status))
        return await connection.ask(head, body)

    def release(self, connection: UpstreamConnection) -> None:
        """Do nothing: no connection is kept."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _Line:
    """Collects what is written to a client."""

    stopping = False

    def __init__(self) -> None:
        self.said = b""

    def write(self, data: bytes) -> None:
        self.said += data

    def finished(self, exchange: Exchange) -> None:
        """Do nothing."""

    def feed_from(self, source: AnswerSource | None) -> None:
        """Do nothing: everything is taken as it comes."""

    def cut(self, *, framed: bool) -> None:
        """Do nothing."""


class Answered(NamedTuple):
    """What a client was answered."""

    status: int
    worker: str
    state: str
    """What became of its session; empty if the answer does not say."""
    reason: str
    """Why that worker was chosen."""


class Yielding:
    """A store that lets other tasks run before it does anything, and afterwards."""

    def __init__(self, store: Store, turns: Sequence[int]) -> None:
        self.store = store
        self._turns = turns
        """Number of loop turns to yield, used in rotation."""
        self._at = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    @property
    def lease(self) -> SessionLease:
        return self.store.lease

    @lease.setter
    def lease(self, lease: SessionLease) -> None:
        self.store.lease = lease

    async def _yield(self) -> None:
        self._at += 1
        for _ in range(self._turns[self._at % len(self._turns)]):
            await asyncio.sleep(0)

    async def use(self, key: str) -> OpenSession | None:
        await self._yield()
        found = _copy(await self.store.use(key))
        await self._yield()
        return found

    async def find(self, key: str) -> OpenSession | None:
        await self._yield()
        return _copy(await self.store.find(key))

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        await self._yield()
        session, done = await self.store.bind(key, to, expected)
        found = Bound(_copy(session), done)
        await self._yield()
        return found

    async def close(self, key: str, *, begun: float | None = None) -> OpenSession | None:
        await self._yield()
        return await self.store.close(key, begun=begun)


def _copy(one: OpenSession | None) -> OpenSession | None:
    """Return a copy, as from another process: a session returned does not change later."""
    if one is None:
        return None
    return copy(one)


class Machine:
    """One router."""

    def __init__(self, names: tuple[str, ...], settings: dict[str, Any]) -> None:
        workers = [{"url": f"http://{name}:1", "name": name, "models": ["m"]} for name in names]
        self._settings = Settings.model_validate({"workers": workers, **settings})
        fleet = build(self._settings, Contexts())
        self._proxy = Proxy(fleet, Metrics(), self._settings)
        self._sagemaker = SageMaker(fleet, self._proxy, self._settings)
        self.pool = fleet.pools[0]
        self.wires = {name: Wire(name) for name in names}
        for worker in self.pool.workers:
            worker.upstream = self.wires[worker.name]  # type: ignore[assignment]

    def begin(self, store: Store, clock: Clock) -> None:
        """Reset everything, and keep sessions in this store."""
        stays = not self.pool.capabilities.moves_sessions
        self.pool.sessions = Sessions(self._settings.session, stays=stays, clock=clock)
        self.pool.sessions.keep_in(store)
        for worker in self.pool.workers:
            worker.load, worker.pace, worker.breaker = Load(), Pace(), Breaker(worker.name)
            worker.draining = False
            worker.become(ProbeState.READY, "for a test")
            self.wires[worker.name].how = "well"
        self.pool.change(self.pool.models, self.pool.workers)

    def worker(self, name: str) -> Worker:
        """Return one of its workers."""
        return self.pool.named[name]

    async def ask(self, path: str, body: dict[str, Any], **fields: str) -> Answered:
        """Serve one request."""
        named = [(name.replace("_", "-").encode(), text.encode()) for name, text in fields.items()]
        line = _Line()
        exchange = Exchange(line, RequestHead("POST", "1.1", named, path), keep=True)
        exchange.body = json.dumps(body).encode()
        asked = route(path)
        if asked is None:
            await self._proxy.serve(ENDPOINTS[path], exchange)
        else:
            await self._sagemaker.serve(asked, exchange)
        lines = line.said.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        said = dict(one.split(": ", 1) for one in lines[1:])
        return Answered(
            int(lines[0].split(" ")[1]),
            said.get("x-warmroute-worker", ""),
            said.get("x-warmroute-session", "").partition(";")[0],
            said.get("x-warmroute-decision", "").partition(";")[0],
        )
