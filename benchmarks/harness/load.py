"""The load generator: a fixed number of connections, each sending as soon as it has an answer.

It runs in its own process and knows just enough HTTP/1.1 to see where an answer ends. It reads the
CPU clocks of the other processes together with its own, so the counts cover the same interval.
"""

import asyncio
import gc
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import cast

import uvloop

from benchmarks.harness.bodies import chat_bodies
from benchmarks.harness.processes import cpu_seconds, machine_seconds

#: The headers of OpenAI's Python client; port and body length are filled in.
HEADERS = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
    "Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nAccept: application/json\r\n"
    "Content-Type: application/json\r\nUser-Agent: OpenAI/Python 1.60.0\r\n"
    "X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.60.0\r\nX-Stainless-OS: Linux\r\n"
    "X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n"
    "X-Stainless-Runtime-Version: 3.12.1\r\nAuthorization: Bearer sk-benchmark\r\n"
    "X-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n"
    "Content-Length: %d\r\n\r\n"
)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile at `share` of sorted values; 0 if there are none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def quantile_ms(ordered: Sequence[float], share: float) -> float:
    """Return the quantile at `share` of sorted seconds, in milliseconds."""
    return 1e3 * quantile(ordered, share)


@dataclass(frozen=True, slots=True)
class Job:
    """What to send, where to, and what to measure."""

    port: int
    size: int
    count: int
    """Requests to measure, after `warm` requests that are not measured."""
    warm: int
    concurrency: int
    seed: int
    stream: bool = False
    bursts: bool = False
    """Whether stubs write several events of a stream at once."""
    events: int = 0
    """Fewest `data:` lines that every stream must have."""
    watched: Sequence[int] = ()
    """Ids of the proxy's processes, whose CPU time is measured."""
    stubs: Sequence[int] = ()
    limit_s: float = 30.0
    """Seconds after which the job ends early, with what was done by then."""


@dataclass(slots=True)
class Result:
    """The result of a job; times in seconds."""

    done: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    """CPU time of the watched processes."""
    stub_cpu: float = 0.0
    """CPU time of the busiest stub."""
    load_cpu: float = 0.0
    other_cpu: float = 0.0
    """CPU time of everything else on the machine."""
    latencies: list[float] = field(default_factory=list)
    """Times from sending a request to the end of its answer; for streams to its first byte."""
    problem: str = ""


class _Clocks:
    """Readings of all clocks at one instant."""

    def __init__(self, job: Job) -> None:
        self.machine = machine_seconds()
        self.watched = sum(map(cpu_seconds, job.watched))
        self.stubs = [cpu_seconds(pid) for pid in job.stubs]
        self.own = process_time()
        self.wall = perf_counter()


class _Run:
    """State of a running job, shared by its connections."""

    def __init__(self, job: Job, requests: Iterator[tuple[bytes, bytes]]) -> None:
        self.requests = requests
        self.result = Result()
        self.over = asyncio.get_running_loop().create_future()
        self.measuring = False
        self.job = job
        self._answers = 0
        self._began = _Clocks(job)

    def answered(self) -> None:
        """Count an answer, and begin or end measuring if it is the one to do so."""
        self._answers += 1
        if self._answers == self.job.warm:
            self._began = _Clocks(self.job)
            self.measuring = True
        elif self._answers == self.job.warm + self.job.count:
            self.end()

    def fail(self, problem: str) -> None:
        """End the job with a problem."""
        self.result.problem = self.result.problem or problem
        self.end()

    def end(self) -> None:
        """Stop measuring, and compute the result."""
        if self.over.done():
            return
        self.over.set_result(None)
        if not self.measuring:
            self.result.problem = self.result.problem or "too slow to be measured"
            return
        self.measuring = False
        result, now, began = self.result, _Clocks(self.job), self._began
        result.done = self._answers - self.job.warm
        result.wall = now.wall - began.wall
        result.cpu = now.watched - began.watched
        stubs = [after - before for after, before in zip(now.stubs, began.stubs, strict=True)]
        result.stub_cpu = max(stubs, default=0.0)
        result.load_cpu = now.own - began.own
        known = result.cpu + sum(stubs) + result.load_cpu
        result.other_cpu = max(now.machine - began.machine - known, 0.0)


class _Client(asyncio.Protocol):
    """One kept connection."""

    _transport: asyncio.Transport

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._head = b""
        self._left = 0
        """Remaining bytes of the body, if its length is known."""
        self._chunked = False
        self._end = b""
        self._events = 0
        self._sent_at = self._first_at = 0.0
        self._counts = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Fail the job: no proxy should close a connection during it."""
        if not self._run.over.done():
            self._run.fail("a connection was closed")

    def _send(self) -> None:
        request = next(self._run.requests, None)
        if request is None or self._run.over.done():
            self._transport.abort()
            return
        self._head = b""
        self._events = 0
        self._first_at = 0.0
        self._counts = self._run.measuring
        self._sent_at = perf_counter()
        self._transport.writelines(request)

    def data_received(self, data: bytes) -> None:
        """Check whether the answer ends with this data."""
        if not self._first_at:
            self._first_at = perf_counter()
            data = self._begin(data)
            if not self._first_at:
                return
        if self._chunked:
            # Keep the last five bytes, to count events that two reads cut in two. They are too
            # short to hold a whole `data: `, so none counts twice.
            self._events += (self._end + data).count(b"data: ")
            self._end = (self._end + data[-5:])[-5:]
            if self._end != b"0\r\n\r\n":
                return
        else:
            self._left -= len(data)
            if self._left > 0:
                return
        self._complete()

    def _begin(self, data: bytes) -> bytes:
        """Read the head; return what follows it. Until it is complete, `_first_at` stays 0."""
        self._head += data
        head, separator, rest = self._head.partition(b"\r\n\r\n")
        if not separator:
            self._first_at = 0.0
            return b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._run.fail(self._head[:400].decode(errors="replace"))
        fields = head.lower()
        at = fields.find(b"\r\ncontent-length:")
        self._chunked = at < 0
        self._end = b""
        if not self._chunked:
            self._left = int(fields[at + 17 :].split(b"\r\n", 1)[0])
        return rest

    def _complete(self) -> None:
        run = self._run
        if self._counts and run.measuring:
            until = self._first_at if run.job.stream else perf_counter()
            run.result.latencies.append(until - self._sent_at)
        if self._events < run.job.events:
            run.fail(f"a stream of {self._events} events")
        run.answered()
        self._send()


async def _run(job: Job, requests: Iterator[tuple[bytes, bytes]]) -> Result:
    loop = asyncio.get_running_loop()
    run = _Run(job, requests)
    gc.collect()
    gc.freeze()
    clients = [
        await loop.create_connection(lambda: _Client(run), "127.0.0.1", job.port)
        for _ in range(job.concurrency)
    ]
    try:
        async with asyncio.timeout(job.limit_s):
            await asyncio.shield(run.over)
    except TimeoutError:
        run.end()
    for transport, _ in clients:
        transport.abort()
    gc.unfreeze()
    return run.result


@lru_cache(maxsize=1)
def _bodies(size: int, count: int, seed: int, stream: bool, bursts: bool) -> list[bytes]:
    """Cached, because one proxy after the other gets the same bodies."""
    return chat_bodies(size, count, seed, stream=stream, bursts=bursts)


def run(job: Job) -> Result:
    """Run one job."""
    # Enough to keep all connections busy until the last measured request is answered.
    count = job.warm + job.count + job.concurrency
    bodies = _bodies(job.size, count, job.seed, job.stream, job.bursts)
    requests = [((HEADERS % (job.port, len(body))).encode(), body) for body in bodies]
    try:
        return uvloop.run(_run(job, iter(requests)))
    except OSError as error:
        return Result(problem=str(error))


def serve(channel: "Connection[Result, Job]") -> None:
    """Run jobs received on the channel until it closes; the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            channel.send(run(channel.recv()))
    except (EOFError, ConnectionError):
        return
