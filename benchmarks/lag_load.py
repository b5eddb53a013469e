"""Long prompts at a fixed rate, from a process of their own; how long each took is of interest."""

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

from benchmarks.load import HEADERS
from benchmarks.prompts_texts import Texts, body
from benchmarks.stub import MODEL

#: Between sending a prompt and giving up on it.
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Long:
    """What to send where, for how long."""

    port: int
    rate: float
    """Prompts a second."""
    seconds: float


@dataclass(slots=True)
class Sent:
    """What became of them."""

    took: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds from the first byte sent to the answer's head, of each that was answered."""
    failed: int = 0


def send_long(pipe: "Connection[Any, Any]", folder: Path, tokens: int, count: int) -> None:
    """Make `count` bodies of so many tokens, all different; then send as told, one after another.

    Says how many bytes one has, and after each job what became of it. Starts over when all were
    sent: give it enough, or the tokenizer remembers them.
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
    """Send one and wait for its answer. Raises OSError, EOFError."""
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
