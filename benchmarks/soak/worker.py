"""A worker of the soak: answers as the client wishes, fails on order, and records what it reads.

The record survives if the worker is killed: when a request has arrived completely, its number is
appended to a file (the book) before anything else is done with it.

Now and then it closes a kept connection soon after an answer, as servers do with idle ones, so
that a request may be on its way just then. This does not count as a fault.
"""

import asyncio
import json
import os
import signal
import socket
import struct
from collections.abc import Sequence
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, NamedTuple, cast

import uvloop

from benchmarks.harness.stub import MODEL
from benchmarks.soak.requests import ANSWER_FIELD, WantedAnswer, answer, events, number_of

#: Seconds until the first byte, normally and when slow; and between two events of a stream.
_FIRST_BYTE_S, _SLOW_FIRST_BYTE_S, _EVENT_INTERVAL_S = (0.002, 0.02), (1.0, 2.5), 0.01
#: How often and how soon (in seconds) after an answer a kept connection is closed. It is not closed
#: if that is late by `_MAX_CLOSE_LAG_S`, because a request may have been there unread for as long.
_CLOSE_SHARE, _CLOSE_WITHIN_S, _MAX_CLOSE_LAG_S = 0.02, 0.03, 0.02
_RESET = struct.pack("ii", 1, 0)
_GARBAGE = b"\x16\x03\x01\x00\xff 200 this is not HTTP\r\n\r\n\x00"
#: A record of the book: the request's number shifted left by one, with the lowest bit set if it was
#: refused as full, and the time.
_RECORD = struct.Struct("<Qd")


class FaultKind(StrEnum):
    """The kinds of faults of a worker."""

    KILL = "killed"
    """It is killed with all its requests, and starts again later."""
    FREEZE = "frozen"
    """It stops doing anything, and then continues."""
    REFUSE = "refuses"
    """It finishes its requests, and accepts no new connections."""
    FULL = "full"
    """It answers 503."""
    ERROR = "500"
    """It answers 500."""
    GARBAGE = "garbage"
    """It answers with something that is not HTTP."""
    STALL = "stalls"
    """Its answers stop, before they begin or in the middle."""
    RESET = "resets"
    """Its answers break off because it closes the connection."""
    UNWELL = "unwell"
    """It fails health probes, but serves requests."""
    SLOW = "slow"
    """It takes a second or two to answer, but counts as well."""


class SoakOrder(NamedTuple):
    """An order to the worker to begin or end a fault."""

    kind: FaultKind | None
    """None: end the fault."""
    seconds: float = 0.0
    """Duration of a freeze, during which the worker cannot receive orders."""


class BookEntry(NamedTuple):
    """A request that a worker has read."""

    number: int
    refused: bool
    """Whether it was refused with 503, because the worker was full."""
    at: float

    def record(self) -> bytes:
        """Return it as a record of the book."""
        return _RECORD.pack(self.number << 1 | self.refused, self.at)


def read_book(path: Path) -> list[BookEntry]:
    """Return the entries of a worker's book."""
    data = path.read_bytes() if path.exists() else b""
    whole = len(data) // _RECORD.size * _RECORD.size
    return [
        BookEntry(number >> 1, bool(number & 1), at)
        for number, at in _RECORD.iter_unpack(data[:whole])
    ]


def _whole(status: bytes, body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\ncontent-type: %b\r\n\r\n%b" % (
        status,
        len(body),
        kind,
        body,
    )


def _error(status: bytes, message: str) -> bytes:
    error = {"message": message, "type": "server_error", "param": None, "code": None}
    return _whole(status, json.dumps({"error": error}).encode())


_MODELS = _whole(
    b"200 OK",
    json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode(),
)
_WELL, _UNWELL = _whole(b"200 OK", b""), _error(b"500 Internal Server Error", "not well")
_FULL, _BROKEN = _error(b"503 Service Unavailable", "full"), _error(b"500 Oops", "engine is dead")
_MISSING = _whole(b"404 Not Found", b"{}")
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class _Server:
    """State shared by the connections of one worker."""

    def __init__(self, book: Path, seed: int) -> None:
        self.kind: FaultKind | None = None
        self.random = Random(seed)
        self.connections: set[_Connection] = set()
        self._book = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._server: asyncio.Server | None = None

    async def open(self, port: int) -> int:
        """Accept connections; return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self, loop), "127.0.0.1", port, backlog=4096
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Stop accepting connections, and close those that are idle."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self.connections):
            connection.close_if_idle()

    def write_down(self, number: int | None) -> None:
        """Record in the book that a request has been read."""
        if number is not None:
            entry = BookEntry(number, self.kind is FaultKind.FULL, monotonic())
            os.write(self._book, entry.record())

    def release(self) -> None:
        """Reset the connections whose answers were stalled by a fault that is over."""
        for connection in tuple(self.connections):
            connection.reset_if_stalled()


class _Connection(asyncio.Protocol):
    """One connection from the router."""

    _transport: asyncio.Transport

    def __init__(self, server: _Server, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = server
        self._loop = loop
        self._head = b""
        self._left = -1
        self._body: list[bytes] = []
        self._pieces: list[bytes] = []
        self._at = 0
        self._timer: asyncio.TimerHandle | None = None
        self._end: FaultKind | None = None
        """How the current answer breaks off."""
        self._hanging = False
        self._due = 0.0
        """When the kept connection is to be closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._owner.connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Drop the answer in progress."""
        self._owner.connections.discard(self)
        self._pieces = []
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Collect a request; answer once all of it has arrived."""
        if self._left < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._head = self._head[:end]
            self._left = int(_field(self._head, b"content-length") or 0)
        self._left -= len(data)
        self._body.append(data)
        if self._left <= 0:
            head, body = self._head, b"".join(self._body)
            self._head, self._body, self._left = b"", [], -1
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        server, path = self._owner, head.split(b" ", 2)[1]
        if not head.startswith(b"POST"):
            self._probe(path)
            return
        number = number_of(_field(head, b"x-request-id"))
        server.write_down(number)
        if server.kind in {FaultKind.FULL, FaultKind.ERROR}:
            self._transport.write(_FULL if server.kind is FaultKind.FULL else _BROKEN)
        elif server.kind is FaultKind.GARBAGE:
            self._transport.write(_GARBAGE)
            self._transport.close()
        else:
            self._begin(number or 0, body, WantedAnswer.read(_field(head, ANSWER_FIELD)))

    def _probe(self, path: bytes) -> None:
        if path == b"/health":
            self._transport.write(_UNWELL if self._owner.kind is FaultKind.UNWELL else _WELL)
        else:
            self._transport.write(_MODELS if path == b"/v1/models" else _MISSING)

    def _begin(self, number: int, body: bytes, wanted: WantedAnswer) -> None:
        server = self._owner
        if wanted.stream:
            chunks = [
                b"%x\r\n%b\r\n" % (len(event), event) for event in events(number, body, wanted)
            ]
            self._pieces = [_STREAM + chunks[0], *chunks[1:-1], chunks[-1] + b"0\r\n\r\n"]
        else:
            self._pieces = [_whole(b"200 OK", answer(number, body, wanted))]
        if server.kind in {FaultKind.STALL, FaultKind.RESET}:
            self._end = server.kind
            self._pieces = _cut(self._pieces, server.random)
        self._at = 0
        slow = server.kind is FaultKind.SLOW
        self._timer = self._loop.call_later(
            server.random.uniform(*(_SLOW_FIRST_BYTE_S if slow else _FIRST_BYTE_S)), self._step
        )

    def _step(self) -> None:
        if self._at < len(self._pieces):
            self._transport.write(self._pieces[self._at])
            self._at += 1
        if self._at < len(self._pieces):
            self._timer = self._loop.call_later(_EVENT_INTERVAL_S, self._step)
        else:
            self._timer = None
            self._pieces = []
            self._finish()

    def _finish(self) -> None:
        end, self._end = self._end, None
        random = self._owner.random
        if end is FaultKind.RESET:
            self._reset()
        elif end is FaultKind.STALL:
            self._hanging = True
        elif self._owner.kind is FaultKind.REFUSE:
            self._transport.close()
        elif random.random() < _CLOSE_SHARE:
            self._due = self._loop.time() + random.uniform(0, _CLOSE_WITHIN_S)
            self._loop.call_at(self._due, self._close_in_time)

    def _close_in_time(self) -> None:
        if monotonic() < self._due + _MAX_CLOSE_LAG_S:
            self.close_if_idle()

    def close_if_idle(self) -> None:
        """Close the connection unless a request or an answer is in progress."""
        if not (self._pieces or self._hanging or self._head or self._left > 0):
            self._transport.close()

    def reset_if_stalled(self) -> None:
        """Reset the connection if its answer was stalled."""
        if self._hanging:
            self._reset()

    def _reset(self) -> None:
        raw: socket.socket | None = self._transport.get_extra_info("socket")
        if raw is not None and not self._transport.is_closing():
            with socket.fromfd(raw.fileno(), raw.family, raw.type) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()


def _field(head: bytes, name: bytes) -> bytes:
    """Return the value of a header field; the router writes all names in lower case."""
    at = head.find(b"\r\n%b: " % name)
    return head[at + len(name) + 4 :].split(b"\r\n", 1)[0] if at >= 0 else b""


def _cut(pieces: Sequence[bytes], random: Random) -> list[bytes]:
    """Return none of an answer, or a beginning of random length."""
    total = sum(map(len, pieces))
    left = random.choice((0, random.randrange(total)))
    beginning = []
    for piece in pieces:
        if left <= 0:
            break
        beginning.append(piece[:left])
        left -= len(piece)
    return beginning


def serve(channel: "Connection[Any, Any]", port: int, book: Path, seed: int) -> None:
    """Run a worker in this process: send its port, obey orders, end when the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(channel, port, book, seed))


async def _serve(channel: "Connection[Any, Any]", port: int, book: Path, seed: int) -> None:
    loop = asyncio.get_running_loop()
    server = _Server(book, seed)
    port = await server.open(port)
    channel.send(port)
    ordered = asyncio.Event()
    loop.add_reader(channel.fileno(), ordered.set)
    while True:
        await ordered.wait()
        ordered.clear()
        try:
            while channel.poll():
                await _obey(server, channel.recv(), port)
                channel.send(port)
        except (EOFError, ConnectionError):
            return


async def _obey(server: _Server, order: SoakOrder, port: int) -> None:
    if order.kind is FaultKind.FREEZE:
        sleep(order.seconds)  # noqa: ASYNC251 - freezing is the purpose
        return
    was, server.kind = server.kind, order.kind
    if order.kind is FaultKind.REFUSE:
        server.close()
    elif was is FaultKind.REFUSE:
        await server.open(port)
    elif was is FaultKind.STALL:
        server.release()
