"""The cost that a session adds to a request: CPU time of the router with and without, in turns.

The same requests go to the same router, in front of two stub workers that use next to no CPU. One
kind of requests names a session; every client uses one session after the other.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.harness.bench import child
from benchmarks.harness.processes import cpu_seconds
from benchmarks.harness.router import Router, router
from benchmarks.harness.stub import MODEL, StubSettings, serve

#: Kept connections, and requests that each sends in a session before it starts the next.
AT_ONCE, TURNS = 16, 10
_WORDS = "Why is the sky blue, and the sea, and what of the land? " * 5
_BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": _WORDS}]}).encode()


class PathCost(NamedTuple):
    """CPU microseconds of the router per request, medians over rounds."""

    without: float
    within: float

    @property
    def ratio(self) -> float:
        """The cost of a request in a session, as a multiple of the cost without."""
        return self.within / self.without


@contextmanager
def stage(redis: str | None = None) -> Iterator[Router]:
    """Run a router with strategy `session` over `leastload`, in front of two workers."""
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
    """Send `requests` of each kind in every round; the kinds take turns at being first."""
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for named in (False, True) if number % 2 else (True, False):
            before = sum(map(cpu_seconds, running.pids))
            asyncio.run(_load(running.port, requests, named=named))
            spent = sum(map(cpu_seconds, running.pids)) - before
            if number:  # the first round, in which sessions and connections begin, is not counted
                took[named].append(spent * 1e6 / requests)
    return PathCost(median(took[False]), median(took[True]))


async def _load(port: int, requests: int, *, named: bool) -> None:
    numbers = iter(range(requests))
    clients = range(AT_ONCE)
    await asyncio.gather(*(_ask(port, client, numbers, named=named) for client in clients))


async def _ask(port: int, client: int, numbers: Iterator[int], *, named: bool) -> None:
    """Send requests one by one on a connection. Raises RuntimeError for an unexpected answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn, _ in enumerate(numbers):
        field = b"x-session-id: s-%d-%d\r\n" % (client, turn // TURNS) if named else b""
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
