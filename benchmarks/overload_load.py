"""Clients that come whether or not those before them were answered."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random
from time import monotonic
from typing import Any, NamedTuple

import uvloop

from benchmarks.bodies import chat_bodies
from benchmarks.load import HEADERS
from benchmarks.soak_line import Line

#: Seconds that a client waits at most, and for which a connection that nobody uses is kept.
_PATIENCE_S, _IDLE_S = 30.0, 10.0
_BODIES, _BYTES = 500, 1_500


@dataclass(frozen=True, slots=True)
class Level:
    """How many come."""

    port: int
    rate: float
    """A second."""
    seconds: float
    seed: int


class Visit(NamedTuple):
    """One client's request."""

    at: float
    """When it came, in seconds from the first one."""
    took: float
    """Until the end of its answer."""
    status: int
    """0: there was none."""


class _Crowd:
    """All clients of one level."""

    def __init__(self, level: Level) -> None:
        self._level = level
        bodies = chat_bodies(_BYTES, _BODIES, level.seed)
        self._requests = [(HEADERS % (level.port, len(body))).encode() + body for body in bodies]
        self._kept: list[Line] = []
        self.visits: list[Visit] = []

    async def run(self) -> None:
        """Let all of them come; return when the last one has left."""
        level, random = self._level, Random(self._level.seed)
        loop = asyncio.get_running_loop()
        start = due = loop.time()
        async with asyncio.TaskGroup() as group:
            while due < start + level.seconds:
                await asyncio.sleep(due - loop.time())
                group.create_task(self._visit(due - start, random.choice(self._requests)))
                due += random.expovariate(level.rate)
        for line in self._kept:
            line.leave()

    async def _visit(self, at: float, request: bytes) -> None:
        asked, status = monotonic(), 0
        try:
            line = await self._line()
            line.send(request)
            async with asyncio.timeout(_PATIENCE_S):
                reply = await line.reply()
            status = reply.status if reply.complete else 0
            line.used_at = monotonic()
            self._kept.append(line)
        except (OSError, TimeoutError):
            status = 0
        self.visits.append(Visit(at, monotonic() - asked, status))

    async def _line(self) -> Line:
        while self._kept:
            line = self._kept.pop()
            if line.open_still and monotonic() < line.used_at + _IDLE_S:
                return line
            line.leave()
        return await Line.open(self._level.port)


def serve(channel: "Connection[Sequence[Visit], Level]") -> None:
    """Do levels, in a process of its own, until nobody sends any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            crowd = _Crowd(channel.recv())
            uvloop.run(crowd.run())
            channel.send(crowd.visits)
    except (EOFError, ConnectionError):
        return


def done(channel: "Connection[Any, Any]", level: Level) -> Sequence[Visit]:
    """Have a level done. Raises EOFError if the process has ended."""
    channel.send(level)
    visits: Sequence[Visit] = channel.recv()
    return visits
