"""Stub workers of a known capacity: a fixed number of requests at once, each for a given time.

Further requests wait in a queue, so an overloaded worker answers late, as engines do. The router's
`limits.in_flight` is there to prevent that.
"""

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random
from typing import Any, cast

import uvloop

from benchmarks.harness.stub import MODEL


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of the workers."""

    workers: int
    places: int
    """Requests that one worker serves at once."""
    service_s: float
    """Mean seconds that it takes for one request."""

    @property
    def rate(self) -> float:
        """Requests a second that all workers together can serve."""
        return self.workers * self.places / self.service_s


def _whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


_ANSWER = _whole(
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1722945021,"model":"%b","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":100,"completion_tokens":2,"total_tokens":102}}' % MODEL.encode()
)
_FIXED = {
    b"/health": _whole(b""),
    b"/v1/models": _whole(b'{"object":"list","data":[{"id":"%b"}]}' % MODEL.encode()),
}


class _Engine:
    """One worker's places, and the queue for them."""

    def __init__(self, capacity: Capacity, random: Random) -> None:
        self._capacity = capacity
        self._random = random
        self._running: set[_Connection] = set()
        self._waiting: deque[_Connection] = deque()

    def add(self, connection: "_Connection") -> None:
        """Queue a request; it is served as soon as there is a place."""
        self._waiting.append(connection)
        self._fill()

    def leave(self, connection: "_Connection") -> None:
        """Drop a request whose connection is lost."""
        if connection in self._waiting:
            self._waiting.remove(connection)
        self._done(connection)

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._running) < self._capacity.places:
            connection = self._waiting.popleft()
            self._running.add(connection)
            span = self._capacity.service_s * self._random.uniform(0.8, 1.2)
            connection.timer = loop.call_later(span, self._finish, connection)

    def _finish(self, connection: "_Connection") -> None:
        connection.answer(_ANSWER)
        self._done(connection)

    def _done(self, connection: "_Connection") -> None:
        if connection in self._running:
            self._running.discard(connection)
            if connection.timer is not None:
                connection.timer.cancel()
        self._fill()


class _Connection(asyncio.Protocol):
    """One connection from the router."""

    _transport: asyncio.Transport

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._data = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Drop the request that this connection waits for."""
        self._engine.leave(self)

    def data_received(self, data: bytes) -> None:
        """Act on a request once all of it has arrived."""
        self._data += data
        head, separator, body = self._data.partition(b"\r\n\r\n")
        at = head.find(b"\r\ncontent-length: ")
        length = int(head[at + 18 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if not separator or len(body) < length:
            return
        self._data = b""
        if head.startswith(b"POST"):
            self._engine.add(self)
        else:
            self.answer(_FIXED.get(head.split(b" ", 2)[1], _whole(b"{}")))

    def answer(self, data: bytes) -> None:
        """Send an answer."""
        self._transport.write(data)


def serve(channel: "Connection[Any, Any]", capacity: Capacity) -> None:
    """Run all workers in this process; send their ports, and end when the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(channel, capacity))


async def _serve(channel: "Connection[Any, Any]", capacity: Capacity) -> None:
    loop = asyncio.get_running_loop()
    ports = []
    for number in range(capacity.workers):
        engine = _Engine(capacity, Random(number))
        server = await loop.create_server(_connections(engine), "127.0.0.1", 0, backlog=4096)
        ports.append(server.sockets[0].getsockname()[1])
    channel.send(ports)
    gone = asyncio.Event()
    loop.add_reader(channel.fileno(), gone.set)
    await gone.wait()


def _connections(engine: _Engine) -> Callable[[], _Connection]:
    return lambda: _Connection(engine)
