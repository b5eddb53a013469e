"""Several router processes within one test, which tell each other what they send."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Any

import pytest

from router.fleet.fleet import Fleet
from router.replicas.messages import Batch, Booked, Ended, News, Resync, decode, encode
from router.replicas.mirror import Mirror
from router.replicas.replication import Sharing
from router.replicas.sockets import MAX_DATAGRAM_BYTES, Wires, Wiring
from strategies.api import Outcome
from strategies.cost.load import Booking
from tests.fleet.fleets import choice, fleet, prompt

ENDED = Outcome(ok=True, cached_tokens=0, answer_tokens=5)


def flying(of: Fleet) -> list[int]:
    """Return the number of other processes' requests, by worker."""
    return [worker.load.in_flight - worker.load.here for worker in of.workers]


class Process:
    """One router process, simulated within the test's own."""

    def __init__(self, wiring: Wiring, place: int, **limits: Any) -> None:
        given = wiring.wires(place)
        inherited = Wires(os.dup(given.inbox), tuple(map(os.dup, given.outboxes)))
        self.fleet: Fleet = fleet()
        self.freed = 0
        self.asked: list[Booking] = []
        """The bookings that were to give way."""
        self.sharing = Sharing(
            inherited, place, self.fleet, self._count, self.asked.append, **limits
        )
        self.fleet.share(self.sharing)

    def _count(self) -> None:
        self.freed += 1

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
        return flying(self.fleet)


class Peer:
    """A process that writes and reads what the test says, and nothing else."""

    def __init__(self, stack: ExitStack, wiring: Wiring, place: int, pid: int = 7) -> None:
        given = wiring.wires(place)
        self._inbox = stack.enter_context(socket.socket(fileno=os.dup(given.inbox)))
        self._outboxes = given.outboxes
        self._place, self._pid = place, pid
        self.letters: list[bytes] = []
        """Those that it has read."""
        self._fleet = fleet()
        self._mirror = Mirror(self._fleet)

    def write(self, to: int, *news: News) -> None:
        """Write a letter to a process."""
        os.write(self._outboxes[to], encode(Batch(self._place, self._pid, news)))

    async def joins(self, count: int = 1) -> None:
        """Have the first `count` processes tell it what they send, from what is in flight on."""
        for to in range(count):
            self.write(to, Resync(asks=True))
        answers: list[News] = []

        def answered() -> bool:
            answers.extend(self.read())
            return answers.count(Resync(asks=False)) == count

        await until(answered)

    def book(self, to: int, number: int = 1, **more: Any) -> None:
        """Tell a process of a request to the first worker."""
        sizes: Any = (10, 10, False, 50.0, 0, 0, 0, 1.0, ())
        self.write(to, Booked(number, monotonic(), "p", "w0", *sizes, **more))

    def end(self, to: int, number: int = 1) -> None:
        """Tell a process that the request has ended."""
        self.write(to, Ended(number, monotonic(), True, True, None, None))

    def read(self) -> list[News]:
        """Read all that waits to be read, and take note of it."""
        found: list[News] = []
        while True:
            try:
                data = self._inbox.recv(MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return found
            self.letters.append(data)
            letter = decode(data)
            for news in letter.news:
                self._mirror.take(letter.place, news, monotonic())
                found.append(news)

    @property
    def flying(self) -> list[int]:
        """Read, and return the number of other processes' requests, by worker."""
        self.read()
        return flying(self._fleet)


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


def play(wiring: Wiring, count: int, script: Callable[..., Awaitable[None]], **limits: Any) -> None:
    """Run a script with the first `count` processes; the test plays those after them."""
    failed: list[dict[str, object]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
        with ExitStack() as stack:
            found = [Process(wiring, place, **limits) for place in range(count)]
            for one in found:
                stack.callback(one.sharing.close)
                one.sharing.begin()
            await script(*found)

    asyncio.run(run())
    assert not failed
