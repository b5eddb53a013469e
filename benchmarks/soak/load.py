"""The soak's load: clients of all kinds arrive at a given rate (open loop)."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import uvloop

from benchmarks.soak.clients import Clients
from benchmarks.soak.requests import Source
from benchmarks.soak.tally import End, Tally

#: Most clients at once; beyond that, arrivals are skipped and counted as held back.
_MOST = 300
#: Seconds after which a client gives up and counts its request as hung.
PATIENCE_S = 60.0
#: Seconds that arrivals may lag behind schedule before the missed ones are skipped.
_LATE_S = 1.0

Visit = Callable[[], Awaitable[None]]


class Load:
    """Starts clients at a Poisson rate."""

    def __init__(self, port: int, seed: int) -> None:
        self.rate = 0.0
        """Clients a second."""
        self.begun = 0
        """Clients started so far."""
        self.tally = Tally()
        self._random = Random(seed)
        self._clients = Clients(port, Source(Random(seed + 1)), self.tally)
        self._kinds = list(self._clients.kinds)
        self._weights = list(self._clients.kinds.values())
        self._visits: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Start clients until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.rate:
                await asyncio.sleep(0.01)
                due = loop.time()
                continue
            due += self._random.expovariate(self.rate)
            now = loop.time()
            if due > now:
                await asyncio.sleep(due - now)
            elif now - due > _LATE_S:
                due = now
            if len(self._visits) >= _MOST:
                self.tally.held_back += 1
                continue
            visit = self._random.choices(self._kinds, self._weights)[0]
            self.begun += 1
            task = asyncio.create_task(self._visit(visit))
            self._visits.add(task)
            task.add_done_callback(self._visits.discard)

    async def _visit(self, visit: Visit) -> None:
        name = getattr(visit, "__name__", "")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await visit()
        except TimeoutError:
            self.tally.strange(name, End.HUNG, f"after {PATIENCE_S:.0f} s")
        except OSError as error:
            self.tally.strange(name, End.WRONG, f"{type(error).__name__}: {error}")

    async def finish(self) -> None:
        """Wait for all running clients, then close all connections."""
        await asyncio.gather(*self._visits)
        self._clients.close()


def serve(channel: "Connection[Any, Any]", port: int, seed: int) -> None:
    """Run the load in this process: rates come on the channel; None ends it, with the tally."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        uvloop.run(_serve(channel, Load(port, seed)))
    except (EOFError, ConnectionError):
        return


async def _serve(channel: "Connection[Any, Any]", load: Load) -> None:
    running = asyncio.create_task(load.run())
    while True:
        rate: float | None = await asyncio.to_thread(channel.recv)
        if rate is None:
            break
        load.rate = rate
        channel.send((load.begun, load.tally.ends))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await load.finish()
    channel.send(load.tally)
