"""Open-loop load, and its results in one row per level.

Requests arrive at a given rate, whether or not earlier ones were answered.
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random
from time import monotonic
from typing import Any, NamedTuple

import uvloop

from benchmarks.harness.bodies import chat_bodies
from benchmarks.harness.connection import BenchConnection
from benchmarks.harness.load import HEADERS, quantile

#: Most seconds that a client waits for an answer, and that an idle connection is kept.
_TIMEOUT_S, _IDLE_TIMEOUT_S = 30.0, 10.0
_BODY_COUNT, _BODY_BYTES = 500, 1_500
#: The share of the peak that must be left at the highest load.
MIN_GOODPUT_SHARE = 0.9
#: Share of a level's time that is not counted at its start, because the queue must build up.
WARM_UP_SHARE = 0.2
#: How the router refuses: 429 if the queue is full, 503 if a request waited there too long.
_REFUSALS = (429, 503)


@dataclass(frozen=True, slots=True)
class Level:
    """One load level: the arrival rate and duration."""

    port: int
    rate: float
    """Requests a second."""
    seconds: float
    seed: int


class Visit(NamedTuple):
    """One client's request."""

    at: float
    """When it arrived, in seconds since the level began."""
    seconds: float
    """Seconds to the end of its answer."""
    status: int
    """HTTP status; 0 if there was no complete answer."""


class _Clients:
    """All clients of one level."""

    def __init__(self, level: Level) -> None:
        self._level = level
        bodies = chat_bodies(_BODY_BYTES, _BODY_COUNT, level.seed)
        self._requests = [(HEADERS % (level.port, len(body))).encode() + body for body in bodies]
        self._kept: list[BenchConnection] = []
        self.visits: list[Visit] = []

    async def run(self) -> None:
        """Send all requests of the level; return when the last one has ended."""
        level, random = self._level, Random(self._level.seed)
        loop = asyncio.get_running_loop()
        start = due = loop.time()
        async with asyncio.TaskGroup() as group:
            while due < start + level.seconds:
                await asyncio.sleep(due - loop.time())
                group.create_task(self._visit(due - start, random.choice(self._requests)))
                due += random.expovariate(level.rate)
        for connection in self._kept:
            connection.abort()

    async def _visit(self, at: float, request: bytes) -> None:
        sent_at, status = monotonic(), 0
        try:
            connection = await self._kept_or_new()
            connection.send(request)
            async with asyncio.timeout(_TIMEOUT_S):
                reply = await connection.reply()
            status = reply.status if reply.complete else 0
            connection.used_at = monotonic()
            self._kept.append(connection)
        except (OSError, TimeoutError):
            status = 0
        self.visits.append(Visit(at, monotonic() - sent_at, status))

    async def _kept_or_new(self) -> BenchConnection:
        while self._kept:
            connection = self._kept.pop()
            if connection.is_open and monotonic() < connection.used_at + _IDLE_TIMEOUT_S:
                return connection
            connection.abort()
        return await BenchConnection.open(self._level.port)


def serve(channel: "Connection[Sequence[Visit], Level]") -> None:
    """Run levels received on the channel until it closes; the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            clients = _Clients(channel.recv())
            uvloop.run(clients.run())
            channel.send(clients.visits)
    except (EOFError, ConnectionError):
        return


def run_level(channel: "Connection[Any, Any]", level: Level) -> Sequence[Visit]:
    """Run one level in the load process. Raises EOFError if that process has ended."""
    channel.send(level)
    visits: Sequence[Visit] = channel.recv()
    return visits


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One load level; shares are of the requests counted, times in seconds."""

    load: float
    """As a multiple of the workers' capacity."""
    offered: float
    """Requests a second that arrived."""
    goodput: float
    """Answers a second within the deadline."""
    late: float
    """Share answered after the deadline."""
    refused_429: float
    refused_503: float
    """Share refused, like the one before it."""
    failed: float
    """Share that ended in any other way."""
    p50: float
    p99: float
    """Time of an answer, from the request to its end, like the one before it."""
    refusal_p99: float
    """Time to a refusal."""
    router_share: float = 0.0
    """CPU use of the router, as a share of a core."""


def row(
    load: float, visits: Sequence[Visit], seconds: float, deadline: float, share: float = 0.0
) -> LevelResult:
    """Summarize a level that lasted `seconds`."""
    counted = [visit for visit in visits if visit.at >= WARM_UP_SHARE * seconds]
    span, count = (1 - WARM_UP_SHARE) * seconds, max(len(counted), 1)
    answers = sorted(visit.seconds for visit in counted if visit.status == 200)
    refusals = sorted(visit.seconds for visit in counted if visit.status in _REFUSALS)
    good = sum(waited <= deadline for waited in answers)
    return LevelResult(
        load=load,
        offered=len(counted) / span,
        goodput=good / span,
        late=(len(answers) - good) / count,
        refused_429=sum(visit.status == 429 for visit in counted) / count,
        refused_503=sum(visit.status == 503 for visit in counted) / count,
        failed=(len(counted) - len(answers) - len(refusals)) / count,
        p50=quantile(answers, 0.5),
        p99=quantile(answers, 0.99),
        refusal_p99=quantile(refusals, 0.99),
        router_share=share,
    )


def peak(rows: Sequence[LevelResult]) -> float:
    """Return the highest goodput of all levels."""
    return max((level.goodput for level in rows), default=0.0)


def kept(rows: Sequence[LevelResult]) -> float:
    """Return the goodput at the highest load as a share of the peak."""
    highest = max(rows, key=lambda level: level.load)
    return highest.goodput / peak(rows) if peak(rows) else 0.0
