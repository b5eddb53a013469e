"""The load generator: a fixed number of kept connections, each sending as soon as it has an answer.

It lives in a process of its own, knows just enough HTTP/1.1 to see where an answer ends, and reads
the CPU clocks of other processes at the same instants as its own: no hand-shake blurs a count.
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

from benchmarks.bodies import chat_bodies
from benchmarks.processes import cpu_seconds, machine_seconds

#: The headers of the official Python client, but for the length.
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


@dataclass(frozen=True, slots=True)
class Job:
    """What to send where."""

    port: int
    size: int
    count: int
    """Requests that are measured, after as many as `warm` that are not."""
    warm: int
    concurrency: int
    seed: int
    stream: bool = False
    hurried: bool = False
    """Streams come as fast as they can be sent."""
    events: int = 0
    """`data:` lines that every stream must have."""
    watched: Sequence[int] = ()
    """Processes whose CPU time is read: those of the proxy."""
    stubs: Sequence[int] = ()
    limit_s: float = 30.0
    """Seconds after which the rest is left out."""


@dataclass(slots=True)
class Result:
    """What came of it; times in seconds."""

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
    """From the request to the end of the answer; to its first byte for streams."""
    problem: str = ""


class _Clocks:
    """All clocks at one instant."""

    def __init__(self, job: Job) -> None:
        self.machine = machine_seconds()
        self.watched = sum(map(cpu_seconds, job.watched))
        self.stubs = [cpu_seconds(pid) for pid in job.stubs]
        self.own = process_time()
        self.wall = perf_counter()


class _Run:
    """One job under way: what its connections share."""

    def __init__(self, job: Job, requests: Iterator[tuple[bytes, bytes]]) -> None:
        self.requests = requests
        self.result = Result()
        self.over = asyncio.get_running_loop().create_future()
        self.measuring = False
        self.job = job
        self._answers = 0
        self._began = _Clocks(job)

    def answered(self) -> None:
        """Count one answer more, and begin or end measuring with it."""
        self._answers += 1
        if self._answers == self.job.warm:
            self._began = _Clocks(self.job)
            self.measuring = True
        elif self._answers == self.job.warm + self.job.count:
            self.end()

    def fail(self, problem: str) -> None:
        """Give up."""
        self.result.problem = self.result.problem or problem
        self.end()

    def end(self) -> None:
        """Stop measuring."""
        if self.over.done():
            return
        self.over.set_result(None)
        if not self.measuring:
            self.result.problem = self.result.problem or "too slow to be measured"
            return
        self.measuring = False
        result, now, then = self.result, _Clocks(self.job), self._began
        result.done = self._answers - self.job.warm
        result.wall = now.wall - then.wall
        result.cpu = now.watched - then.watched
        stubs = [after - before for after, before in zip(now.stubs, then.stubs, strict=True)]
        result.stub_cpu = max(stubs, default=0.0)
        result.load_cpu = now.own - then.own
        ours = result.cpu + sum(stubs) + result.load_cpu
        result.other_cpu = max(now.machine - then.machine - ours, 0.0)


class _Client(asyncio.Protocol):
    """One kept connection."""

    _transport: asyncio.Transport

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._head = b""
        self._left = 0
        """Bytes of the body still to come, when its length is known."""
        self._chunked = False
        self._end = b""
        self._events = 0
        self._sent_at = self._first_at = 0.0
        self._counts = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def connection_lost(self, _exc: Exception | None) -> None:
        """No server of ours or of the peers should do that here."""
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
        """See whether the answer ends here."""
        if not self._first_at:
            self._first_at = perf_counter()
            data = self._begin(data)
            if not self._first_at:
                return
        if self._chunked:
            # One that is cut in two by the reads counts too: five bytes hold none whole.
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
        """Read the head; return what follows it. Without all of it, there is no first byte yet."""
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if not found:
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
def _bodies(size: int, count: int, seed: int, stream: bool, hurried: bool) -> list[bytes]:
    """One proxy after the other gets the same."""
    return chat_bodies(size, count, seed, stream=stream, hurried=hurried)


def run(job: Job) -> Result:
    """Do one job."""
    # Enough that connections are still busy when the last request that counts is answered.
    count = job.warm + job.count + job.concurrency
    bodies = _bodies(job.size, count, job.seed, job.stream, job.hurried)
    requests = [((HEADERS % (job.port, len(body))).encode(), body) for body in bodies]
    try:
        return uvloop.run(_run(job, iter(requests)))
    except OSError as error:
        return Result(problem=str(error))


def serve(channel: "Connection[Result, Job]") -> None:
    """Do jobs, in a process of its own, until nobody sends any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            channel.send(run(channel.recv()))
    except (EOFError, ConnectionError):
        return
