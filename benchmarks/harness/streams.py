"""Clients that hold streams open and measure delays, and a probe of the proxy's liveness endpoint.

Each runs in its own process. Workers stamp every event with the machine's monotonic clock, so that
its delay is known on arrival.
"""

import asyncio
import re
import signal
import time
from array import array
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any, Self, cast

import uvloop

from benchmarks.harness.bodies import chat_bodies
from benchmarks.harness.load import HEADERS
from benchmarks.harness.processes import child
from benchmarks.harness.stub import STAMP_ZERO

_STAMP = re.compile(rb'"created":(1\d{18}),')
#: Streams send their events at this many different times within the pause between two events.
PHASES = 10
#: Events of a stream: so many that it never ends during the measurement.
ENDLESS_EVENTS = 1_000_000
#: A core or the machine is busy above this share.
BUSY_ABOVE = 0.95
#: Seconds for which an idle proxy is probed.
_IDLE_PROBE_S = 2.0
#: Streams that one process opens at the same time, and time limit for all to begin.
_MAX_OPENING, _OPEN_TIMEOUT_S = 32, 60.0
#: Seconds between two liveness probes.
PROBE_INTERVAL_S = 0.02
_BODY_BYTES = 400


@dataclass(frozen=True, slots=True)
class StreamWatch:
    """Streams to hold at a port; or, for the probe, the paths to request in turn."""

    port: int
    streams: int = 0
    paths: Sequence[str] = ()


@dataclass(slots=True)
class Seen:
    """The measurements of one process."""

    events: int = 0
    delays: "array[float]" = field(default_factory=lambda: array("d"))
    """Delays of events in seconds."""
    cpu: float = 0.0
    wall: float = 0.0
    broken: int = 0
    """Streams that ended, or were refused."""
    answers: "dict[str, array[float]]" = field(default_factory=dict)
    """Seconds until an answer, by path."""


class _Stream(asyncio.Protocol):
    """One stream; it has begun once an event has arrived. Its delays are added to `seen`."""

    def __init__(self, request: bytes, seen: Seen) -> None:
        self._request = request
        self._seen = seen
        self._left = False
        self._transport: asyncio.Transport | None = None
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read the timestamps of all events in the data."""
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
        """Count the stream as broken, unless this client left."""
        if not self._left:
            self._seen.broken += 1
        if not self.begun.done():
            self.begun.set_result(False)

    def leave(self) -> None:
        """Disconnect in mid-stream, as clients do."""
        self._left = True
        if self._transport is not None:
            self._transport.abort()


class Watchers:
    """The client processes, and a process that probes the proxy's latency."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        children = [self._stack.enter_context(child(watch_streams)) for _ in range(self._clients)]
        self._streams = [pipe for pipe, _ in children]
        self._probe, _ = self._stack.enter_context(child(watch_probe))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def idle(self, path: str, port: int) -> Seen:
        """Probe `path` of an idle proxy."""
        self._probe.send(StreamWatch(port, paths=(path,)))
        self._probe.recv()
        self._probe.send(_IDLE_PROBE_S)
        seen: Seen = self._probe.recv()
        return seen

    def hold(self, port: int, count: int) -> int:
        """Open `count` streams, spread over the clients; return how many began."""
        shares = [
            count * (number + 1) // self._clients - count * number // self._clients
            for number in range(self._clients)
        ]
        for pipe, share in zip(self._streams, shares, strict=True):
            pipe.send(StreamWatch(port, streams=share))
        return sum(pipe.recv() for pipe in self._streams)

    def look(self, paths: Sequence[str], port: int, seconds: float) -> None:
        """Start measuring for `seconds` in all clients and in the probe, which requests `paths`."""
        self._probe.send(StreamWatch(port, paths=paths))
        self._probe.recv()
        for pipe in (*self._streams, self._probe):
            pipe.send(seconds)

    def seen(self) -> tuple[Seen, list[Seen]]:
        """Wait for and return the results of the probe and all clients, which then disconnect."""
        return self._probe.recv(), [pipe.recv() for pipe in self._streams]


def watch_streams(pipe: "Connection[Any, Any]") -> None:
    """Hold streams, in rounds of messages on the pipe.

    A round receives a Watch, sends how many streams began, receives how long to measure, and sends
    a Seen.
    """
    _run(_watch_streams(pipe))


def watch_probe(pipe: "Connection[Any, Any]") -> None:
    """Probe the proxy repeatedly on one connection; same messages as `watch_streams`."""
    _run(_watch_probe(pipe))


def _run(work: Coroutine[Any, Any, None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        uvloop.run(work)
    except (EOFError, ConnectionError):
        return


async def _watch_streams(pipe: "Connection[Any, Any]") -> None:
    while True:
        watch: StreamWatch = await asyncio.to_thread(pipe.recv)
        seen = Seen()
        streams = await _open(watch, seen)
        pipe.send(len(streams))
        seconds: float = await asyncio.to_thread(pipe.recv)
        seen.events, seen.delays = 0, array("d")
        began = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        seen.wall, seen.cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        # A copy, because events that arrive while the streams are closed must not count.
        pipe.send(Seen(seen.events, seen.delays[:], seen.cpu, seen.wall, seen.broken))
        for stream in streams:
            stream.leave()


async def _open(watch: StreamWatch, seen: Seen) -> list[_Stream]:
    """Open all streams, `_MAX_OPENING` at a time; return those that began."""
    bodies = chat_bodies(_BODY_BYTES, watch.streams, watch.port, stream=True)
    loop = asyncio.get_running_loop()
    gate, deadline = asyncio.Semaphore(_MAX_OPENING), loop.time() + _OPEN_TIMEOUT_S

    async def open_stream(body: bytes) -> _Stream | None:
        stream = _Stream((HEADERS % (watch.port, len(body))).encode() + body, seen)
        try:
            async with asyncio.timeout_at(deadline), gate:
                await loop.create_connection(lambda: stream, "127.0.0.1", watch.port)
                return stream if await stream.begun else None
        except (OSError, TimeoutError):
            stream.leave()
            return None

    return [
        stream for stream in await asyncio.gather(*map(open_stream, bodies)) if stream is not None
    ]


async def _watch_probe(pipe: "Connection[Any, Any]") -> None:
    while True:
        watch: StreamWatch = await asyncio.to_thread(pipe.recv)
        reader, writer = await asyncio.open_connection("127.0.0.1", watch.port)
        end = f" HTTP/1.1\r\nHost: 127.0.0.1:{watch.port}\r\n\r\n"
        seen = Seen(answers={path: array("d") for path in watch.paths})
        paths = cycle(seen.answers.items())
        pipe.send(0)
        seconds: float = await asyncio.to_thread(pipe.recv)
        began = time.perf_counter(), time.process_time()
        while (sent_at := time.perf_counter()) < began[0] + seconds:
            path, delays = next(paths)
            writer.write(f"GET {path}{end}".encode())
            await _answer(reader)
            waited = time.perf_counter() - sent_at
            # Probes due during a stall would have waited too: count them, so that long stalls weigh
            # by their length (avoids coordinated omission).
            missed = int(waited / PROBE_INTERVAL_S)
            delays.extend(waited - number * PROBE_INTERVAL_S for number in range(missed + 1))
            await asyncio.sleep(max(PROBE_INTERVAL_S - waited, 0.0))
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
