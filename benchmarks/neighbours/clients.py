"""The two clients of `benchmarks.neighbours`, each in a process of its own."""

import asyncio
import os
import signal
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from benchmarks.neighbours.requests import NEIGHBOURS, NeighbourRequest, small

#: Seconds after which a request is given up.
_TIMEOUT_S = 20.0
#: How much the neighbour's own process gives way: it is to wait for the router, not to delay it.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class ClientJob:
    """A job: what to send where, on how many connections, and for how long."""

    port: int
    seconds: float
    name: str = ""
    at_once: int = 1
    pause: float = 0.0
    """Seconds between the starts of two requests on one connection."""


@dataclass(slots=True)
class ProbeAnswers:
    """The result of a job."""

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds to each answer."""
    statuses: dict[int, int] = field(default_factory=dict)


def send(pipe: "Connection[Any, Any]", nice: int = 0) -> None:
    """Run the jobs received on the pipe; send back the result of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice)
    requests: dict[str, NeighbourRequest] = {}
    try:
        while True:
            job: ClientJob = pipe.recv()
            if job.name not in requests:
                requests.clear()
                requests[job.name] = NEIGHBOURS[job.name]() if job.name else small()
            if job.seconds == 0:
                pipe.send(len(requests[job.name].body))
            else:
                pipe.send(uvloop.run(_run(job, requests[job.name])))
    except (EOFError, ConnectionError):
        return


def send_nicely(pipe: "Connection[Any, Any]") -> None:
    """Do the same with a low priority."""
    send(pipe, _NICENESS)


async def _run(job: ClientJob, request: NeighbourRequest) -> ProbeAnswers:
    answers = ProbeAnswers()
    end = time.perf_counter() + job.seconds
    head = (
        f"POST {request.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(request.body)}\r\n\r\n"
    ).encode()
    await asyncio.gather(
        *(_connection(job, head, request.body, end, answers) for _ in range(job.at_once))
    )
    return answers


async def _connection(
    job: ClientJob, head: bytes, body: bytes, end: float, answers: ProbeAnswers
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
    due = time.perf_counter()
    try:
        while due < end:
            sent_at = time.perf_counter()
            writer.writelines((head, body))
            async with asyncio.timeout(_TIMEOUT_S):
                status = await _answer(reader)
            answers.seconds.append(time.perf_counter() - sent_at)
            answers.statuses[status] = answers.statuses.get(status, 0) + 1
            if status >= 400:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
            due = max(due + job.pause, time.perf_counter() if not job.pause else 0.0)
            await asyncio.sleep(due - time.perf_counter())
    except (OSError, EOFError, TimeoutError):
        answers.statuses[0] = answers.statuses.get(0, 0) + 1
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read an answer and return its status. Raises EOFError."""
    head = await reader.readuntil(b"\r\n\r\n")
    at = head.lower().find(b"\r\ncontent-length:")
    await reader.readexactly(int(head[at + 17 :].split(b"\r\n", 1)[0]))
    return int(head.split(b" ", 2)[1])
