"""What a session costs a request: CPU time of the router with one and without, in turns.

The same requests to the same router, in front of a worker that costs next to nothing; those of one
kind name a session, of which there are many, each in its turn.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.bench import child
from benchmarks.guarded import Router, router
from benchmarks.processes import cpu_seconds
from benchmarks.stub import MODEL, StubSettings, serve

#: Kept connections, and sessions that requests name in turn.
AT_ONCE, SESSIONS = 16, 1000
_WORDS = "Why is the sky blue, and the sea, and what of the land? " * 5
_BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": _WORDS}]}).encode()


class PathCost(NamedTuple):
    """CPU microseconds of the router a request, medians over rounds."""

    without: float
    within: float

    @property
    def ratio(self) -> float:
        """What a request costs in a session, as a multiple of what it costs without."""
        return self.within / self.without


@contextmanager
def stage(redis: str | None = None) -> Iterator[Router]:
    """Run a router that keeps sessions, over `leastload`, in front of two workers."""
    with (
        TemporaryDirectory() as folder,
        child(serve, StubSettings()) as (one, _),
        child(serve, StubSettings()) as (other, _),
    ):
        workers = [f"http://127.0.0.1:{channel.recv()}" for channel in (one, other)]
        session = {"redis": {"url": redis}} if redis else {}
        strategy = {"name": "session", "over": "leastload"}
        told = {"workers": workers, "strategy": strategy, "session": session}
        with router(Path(folder), told) as running:
            yield running


def path_cost(running: Router, requests: int, rounds: int) -> PathCost:
    """Send so many of each kind in every round, one kind after the other."""
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for named in (False, True):
            before = sum(map(cpu_seconds, running.pids))
            asyncio.run(_load(running.port, requests, named=named))
            spent = sum(map(cpu_seconds, running.pids)) - before
            if number:  # in the first one sessions begin, and connections
                took[named].append(spent * 1e6 / requests)
    return PathCost(median(took[False]), median(took[True]))


async def _load(port: int, requests: int, *, named: bool) -> None:
    numbers = iter(range(requests))
    await asyncio.gather(*(_ask(port, numbers, named=named) for _ in range(AT_ONCE)))


async def _ask(port: int, numbers: Iterator[int], *, named: bool) -> None:
    """Send one after the other on a connection of its own. Raises RuntimeError at an error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in numbers:
        field = b"x-session-id: s-%d\r\n" % (number % SESSIONS) if named else b""
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"%bcontent-length: %d\r\n\r\n%b" % (field, len(_BODY), _BODY)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head[:15] or (b"x-warmroute-session" in head) is not named:
            raise RuntimeError(f"an answer that was not expected: {head[:200]!r}")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
    writer.close()
    await writer.wait_closed()
