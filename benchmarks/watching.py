"""Clients that hold streams open and look at the clock, and one that asks whether the proxy lives.

Each runs in a process of its own. Workers stamp every event with the machine's monotonic clock, so
that the delay of each is known where it arrives.
"""

import asyncio
import re
import signal
import time
from array import array
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any, cast

import uvloop

from benchmarks.bodies import chat_bodies
from benchmarks.load import HEADERS
from benchmarks.stub import STAMP_ZERO

_STAMP = re.compile(rb'"created":(1\d{18}),')
#: Streams opened at the same moment by one process, and how long all may take to begin.
_OPENING, _OPEN_S = 32, 60.0
#: Between two questions whether the proxy lives.
PROBE_S = 0.02
_BYTES = 400


@dataclass(frozen=True, slots=True)
class Watch:
    """How many streams to hold at which port; or, without any, what to ask for, by turns."""

    port: int
    streams: int = 0
    paths: Sequence[str] = ()


@dataclass(slots=True)
class Seen:
    """What a process of clients saw in the time it was told to look."""

    events: int = 0
    delays: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds: of events."""
    cpu: float = 0.0
    wall: float = 0.0
    broken: int = 0
    """Streams that ended, or were refused."""
    answers: "dict[str, array[float]]" = field(default_factory=dict)
    """Seconds until an answer, by path."""


class _Stream(asyncio.Protocol):
    """One stream: begins when an event has come, and is looked at from `seen` on."""

    def __init__(self, request: bytes, seen: Seen) -> None:
        self._request = request
        self._seen = seen
        self._left = False
        self._transport: asyncio.Transport | None = None
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read the stamps of all events that came."""
        now = time.monotonic_ns()
        stamps = _STAMP.findall(data)
        if stamps:
            seen = self._seen
            seen.events += len(stamps)
            for stamp in stamps:
                seen.delays.append((now - int(stamp) + STAMP_ZERO) * 1e-9)
            if not self.begun.done():
                self.begun.set_result(True)

    def connection_lost(self, _exc: Exception | None) -> None:
        """No stream ends by itself."""
        if not self._left:
            self._seen.broken += 1
        if not self.begun.done():
            self.begun.set_result(False)

    def leave(self) -> None:
        """Go without waiting for the end, as clients do."""
        self._left = True
        if self._transport is not None:
            self._transport.abort()


def watch_streams(pipe: "Connection[Any, Any]") -> None:
    """Hold streams: is told which, says how many began, is told how long to look, says what."""
    _run(_watch_streams(pipe))


def watch_probe(pipe: "Connection[Any, Any]") -> None:
    """Ask the proxy whether it lives, again and again, on one connection."""
    _run(_watch_probe(pipe))


def _run(work: Coroutine[Any, Any, None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        uvloop.run(work)
    except (EOFError, ConnectionError):
        return


async def _watch_streams(pipe: "Connection[Any, Any]") -> None:
    while True:
        watch: Watch = await asyncio.to_thread(pipe.recv)
        seen = Seen()
        streams = await _open(watch, seen)
        pipe.send(len(streams))
        seconds: float = await asyncio.to_thread(pipe.recv)
        seen.events, seen.delays = 0, array("d")
        began = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        seen.wall, seen.cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        # What comes while the streams are left does not count.
        pipe.send(Seen(seen.events, seen.delays[:], seen.cpu, seen.wall, seen.broken))
        for stream in streams:
            stream.leave()


async def _open(watch: Watch, seen: Seen) -> list[_Stream]:
    """Open all streams, some at a time; return those that began."""
    bodies = chat_bodies(_BYTES, watch.streams, watch.port, stream=True)
    loop = asyncio.get_running_loop()
    gate, deadline = asyncio.Semaphore(_OPENING), loop.time() + _OPEN_S

    async def one(body: bytes) -> _Stream | None:
        stream = _Stream((HEADERS % (watch.port, len(body))).encode() + body, seen)
        try:
            async with asyncio.timeout_at(deadline), gate:
                await loop.create_connection(lambda: stream, "127.0.0.1", watch.port)
                return stream if await stream.begun else None
        except (OSError, TimeoutError):
            stream.leave()
            return None

    return [stream for stream in await asyncio.gather(*map(one, bodies)) if stream is not None]


async def _watch_probe(pipe: "Connection[Any, Any]") -> None:
    while True:
        watch: Watch = await asyncio.to_thread(pipe.recv)
        reader, writer = await asyncio.open_connection("127.0.0.1", watch.port)
        end = f" HTTP/1.1\r\nHost: 127.0.0.1:{watch.port}\r\n\r\n"
        seen = Seen(answers={path: array("d") for path in watch.paths})
        paths = cycle(seen.answers.items())
        pipe.send(0)
        seconds: float = await asyncio.to_thread(pipe.recv)
        began = time.perf_counter(), time.process_time()
        while (asked := time.perf_counter()) < began[0] + seconds:
            path, delays = next(paths)
            writer.write(f"GET {path}{end}".encode())
            await _answer(reader)
            took = time.perf_counter() - asked
            # Had others asked meanwhile, they would have waited too: a stall counts by its length.
            missed = int(took / PROBE_S)
            delays.extend(took - number * PROBE_S for number in range(missed + 1))
            await asyncio.sleep(max(PROBE_S - took, 0.0))
        seen.wall, seen.cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        pipe.send(seen)
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        await reader.readexactly(int(head[at + 17 :].split(b"\r\n", 1)[0]))
    else:
        await reader.readuntil(b"0\r\n\r\n")
