"""Several router processes within one test, which tell each other what they send."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from time import monotonic

import pytest

from router.fleet.fleet import Fleet
from router.replicas.replication import Sharing
from router.replicas.sockets import Line, Wires, Wiring
from strategies.api import Outcome
from strategies.cost.booking import Booking
from tests.router.fleets import choice, fleet, prompt

ENDED = Outcome(ok=True, cached_tokens=0, answer_tokens=5)


class Process:
    """One router process, simulated within the test's own."""

    def __init__(self, wiring: Wiring, place: int) -> None:
        given = wiring.wires(place)
        inherited = Wires(os.dup(given.inbox), tuple(map(os.dup, given.outboxes)))
        self.fleet: Fleet = fleet()
        self.freed = 0
        self.asked: list[Booking] = []
        """The bookings that were to give way."""
        self.sharing = Sharing(inherited, place, self.fleet, self._count, self._gives_way)
        self.fleet.share(self.sharing)
        self.place = place

    def _count(self) -> None:
        self.freed += 1

    def _gives_way(self, booking: Booking) -> None:
        self.asked.append(booking)

    @property
    def pid(self) -> int:
        """Its identity for the other processes."""
        return self.sharing._pid

    @pid.setter
    def pid(self, pid: int) -> None:
        self.sharing._pid = pid

    def send(self, text: str = "text", worker: int = 0) -> int:
        """Report a new request, and return its number."""
        pool = self.fleet.pools[0]
        return self.sharing.booked(pool, prompt(text), choice(self.fleet, worker), 0.0)

    def book(self, text: str, since_s: float = 0.0) -> tuple[int, Booking]:
        """Book a long request that may be preempted, and report it; return its number as well.

        It is computed since so many seconds ago.
        """
        pool, there = self.fleet.pools[0], choice(self.fleet, 0, prefill_s=50.0)
        now = monotonic() - since_s
        booking = pool.book(prompt(text), there, now, since=now)
        return self.sharing.booked(pool, prompt(text), there, now, booking), booking

    @property
    def theirs(self) -> list[Booking]:
        """Return what other processes have booked on the first worker and is not computed."""
        return [one for one in self.fleet.pools[0].workers[0].load.pending if one.elsewhere]

    def end(self, number: int) -> None:
        """Report the end of a request."""
        self.sharing.ended(number, ENDED, 1.0)

    @property
    def flying(self) -> list[int]:
        """Return the number of other processes' requests, by worker."""
        return [worker.load.in_flight - worker.load.here for worker in self.fleet.workers]


@pytest.fixture
def wiring() -> Iterator[Wiring]:
    """The sockets of three processes."""
    found = Wiring(3)
    yield found
    found.close()


async def until(what: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after 10 seconds."""
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110 - other processes bring it about
            await asyncio.sleep(0.001)


def play(wiring: Wiring, count: int, script: Callable[..., Awaitable[None]]) -> None:
    """Run a script with the first `count` processes, once they all have contact."""

    failed: list[dict[str, object]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
        with ExitStack() as stack:
            found = [Process(wiring, place) for place in range(count)]
            for one in found:
                stack.callback(one.sharing.close)
                one.sharing.begin()
            lines = [one.sharing._outboxes[to] for one in found for to in range(count)
                     if to != one.place]  # fmt: skip
            await until(lambda: all(line.line is Line.OPEN for line in lines))
            await script(*found)

    asyncio.run(run())
    assert not failed
