"""Room on the workers, and the line of those who wait for it.

A worker is sent no more than `limits.in_flight` requests at once. When all that could answer have
so many, a request waits: bounded in number and time, in fair order (`queue.py`). The bound is
there so that a fleet that is overrun answers what it can and refuses the rest at once, instead of
answering everybody too late. Those held until a worker is about to be free (`holding.py`) came
before those in the line: as many places as they need are kept for them.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from router.errors import Overrun, QueueFull
from router.fleet import Fleet
from router.pool import Pool
from router.queue import Queue, Ticket
from router.rests import Rests
from router.settings import Settings
from router.worker import Worker

#: Seconds between two looks at the line: who has waited too long, and whether a worker has joined.
TICK_S = 0.1

Waiter = asyncio.Future[None]
#: Names of a pool and a model, and of the one worker that will do; empty: any will.
_Line = tuple[str, str, str]


class Admission:
    """Lets requests through to the workers. One for the whole router."""

    def __init__(self, settings: Settings, held: Callable[[Pool, str], int]) -> None:
        """`held` tells how many of a pool are held that ask for a model."""
        self._held = held
        self.in_flight = 0
        """Requests that are being served, waiting ones too."""
        self.waited = 0
        """Requests that had to wait."""
        self.queue: Queue[Waiter] = Queue(settings.limits.queue)
        self.rests = Rests()
        """Workers that said they are full."""
        self._pools: dict[_Line, Pool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Other bounds, for the requests to come."""
        self._most = settings.limits.in_flight
        self._patience = settings.timeouts.queue
        self._overflow = settings.limits.overflow
        self.queue.limit = settings.limits.queue

    def follow(self, fleet: Fleet) -> None:
        """Other pools: a line waits for the one that has its pool's name now, or for none."""
        self.rests.keep(list(fleet.workers))
        named = {pool.name: pool for pool in fleet.pools}
        for line in list(self._pools):
            if line[0] in named:
                self._pools[line] = named[line[0]]
            else:
                while self._call(line):  # they look for another one
                    pass

    def room(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Those that can take another request now.

        None if all of them said that they are full, and others did not: it is better to wait for
        one of those than to be refused.
        """
        if self.in_flight > self._most or len(self.queue):  # else none could have too many
            awake = self._awake(workers)
            workers = [worker for worker in workers if worker.load.here < self._most]
            if not any(worker in awake for worker in workers):
                return ()
        return workers

    def _awake(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Those that did not say that they are full."""
        return self.rests.awake(workers, monotonic()) if self.rests else workers

    def until(self) -> float:
        """When whoever comes now has waited too long, by the loop's clock."""
        return asyncio.get_running_loop().time() + self._patience

    def must_wait(self, pool: Pool, model: str, workers: Sequence[Worker], only: str = "") -> bool:
        """Nobody has room, or others came first. `only` one worker will do, if it is named."""
        room, line = self.room(workers), (pool.name, model, only)
        if not room or self.queue.holds(line):
            return True
        kept = self._kept(pool, line)
        return kept > 0 and kept >= self._places(room)

    def _kept(self, pool: Pool, line: _Line) -> int:
        """Places that are kept from the line for those who are held."""
        # (These go wherever they can: the only worker of a session is not for them.)
        return 0 if line[2] else self._held(pool, line[1])

    def _places(self, workers: Sequence[Worker]) -> int:
        """How many requests more they may be sent."""
        return sum(max(0, self._most - worker.load.here) for worker in workers)

    async def turn(
        self, pool: Pool, model: str, tenant: str, only: str = "", until: float | None = None
    ) -> None:
        """Wait for room on one of the pool's workers, or on `only` one of them; who waits once
        more, `until` the time of the first wait. Raises QueueFull, Overrun."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        now = loop.time()
        line = (pool.name, model, only)
        late = now + self._patience if until is None else until
        ticket = self.queue.enter(waiter, now, late, tenant=tenant, pool=line)
        if ticket is None:
            raise self._full(pool)
        self.waited += 1
        self._pools[line] = pool
        if ticket.displaced is not None:
            _refuse(ticket.displaced, self._full(pool))
        if self._timer is None:
            self._timer = loop.call_later(TICK_S, self._tick)
        try:
            await waiter
        finally:
            self.queue.leave(ticket)

    def freed(self, worker: Worker) -> None:
        """A request has ended there: whoever is next takes its place."""
        if not len(self.queue):
            return
        for line, pool in list(self._pools.items()):
            if worker in pool.workers and _fits(worker, line):
                if worker.load.here >= self._most:
                    return
                if line[2] != worker.name and worker not in self._awake(pool.workers):
                    continue
                kept = self._kept(pool, line)
                if kept and kept >= self._places(_able(pool, line)):
                    continue
                if self._call(line):
                    return

    def _call(self, line: _Line) -> bool:
        ticket = self.queue.next(asyncio.get_running_loop().time(), line)
        if ticket is None:
            del self._pools[line]
            return False
        self._pools[line] = self._pools.pop(line)  # lines take turns
        if not ticket.waiter.done():
            ticket.waiter.set_result(None)
        return True

    def _full(self, pool: Pool) -> QueueFull:
        """Tell that there is no room, not even to wait, as the settings say it is told."""
        how, counts = self._overflow, None
        if how.body == "hyperpod":
            counts = {
                "max_concurrent": self._most * len(pool.workers),
                "max_queue_size": self.queue.limit,
                "current": sum(worker.load.here for worker in pool.workers),
            }
        return QueueFull(how.message, how.status, counts)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for ticket in self.queue.expired(loop.time()):
            _refuse(ticket, Overrun())
        for line, pool in list(self._pools.items()):
            able = _able(pool, line)
            free = self._places(self._awake(able)) - self._kept(pool, line)
            for _ in range(free):
                if not self._call(line):
                    break
            if not able and line in self._pools:  # nobody is left: they are told so at once
                while self._call(line):
                    pass
        self._timer = loop.call_later(TICK_S, self._tick) if len(self.queue) else None


def _able(pool: Pool, line: _Line) -> list[Worker]:
    return [worker for worker in pool.workers if worker.ready and _fits(worker, line)]


def _fits(worker: Worker, line: _Line) -> bool:
    return line[1] in worker.models and line[2] in {"", worker.name}


def _refuse(ticket: Ticket[Waiter], error: Exception) -> None:
    if not ticket.waiter.done():
        ticket.waiter.set_exception(error)
