"""Sends long prompts at a fixed rate from its own process, and records how long each takes."""

import asyncio
import signal
import time
from array import array
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from tokenizers import Tokenizer

from benchmarks.harness.load import HEADERS
from benchmarks.harness.stub import MODEL
from benchmarks.prompts.texts import Texts, body

#: Seconds after which a request is given up.
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Long:
    """A job: where to send long prompts, how many, and for how long."""

    port: int
    rate: float
    """Prompts a second."""
    seconds: float


@dataclass(slots=True)
class Sent:
    """The result of a job."""

    took: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds from the first byte sent to the answer's head, for each answered request."""
    failed: int = 0


def send_long(pipe: "Connection[Any, Any]", folder: Path, tokens: int, count: int) -> None:
    """Make `count` different bodies of `tokens` tokens, then run the jobs received on the pipe.

    Sends the size of a body in bytes first, then the result of each job. When all bodies were sent
    it starts over, so `count` must be large enough, or the tokenizer has them in its cache.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = Texts(7, lambda text: len(tokenizer.encode(text).ids))
    bodies = [body(texts.conversation(tokens), MODEL) for _ in range(count)]
    pipe.send(len(bodies[0]))
    at = 0
    try:
        while True:
            job: Long = pipe.recv()
            wanted = int(job.rate * job.seconds)
            chosen = [bodies[(at + number) % count] for number in range(wanted)]
            at += wanted
            pipe.send(uvloop.run(_send(job, chosen)))
    except (EOFError, ConnectionError):
        return


async def _send(job: Long, bodies: list[bytes]) -> Sent:
    sent = Sent()
    began = time.perf_counter()

    async def one(number: int, body: bytes) -> None:
        await asyncio.sleep(began + number / job.rate - time.perf_counter())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                took = await _ask(job.port, body)
        except (OSError, TimeoutError, EOFError):
            sent.failed += 1
        else:
            sent.took.append(took)

    await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies)))
    return sent


async def _ask(port: int, body: bytes) -> float:
    """Send a request; return the seconds to the answer's head. Raises OSError, EOFError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        asked = time.perf_counter()
        writer.write((HEADERS % (port, len(body))).encode())
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
        took = time.perf_counter() - asked
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head[:100])
        return took
    finally:
        writer.transport.abort()
