"""Admission control: how many requests a worker gets, and the queue of those that wait for room.

A worker is sent at most `limits.in_flight` requests at once. When every worker that could answer
has that many, a request queues: bounded in number and time, in fair order (`queue.py`). The bound
lets an overloaded fleet answer what it can and refuse the rest at once, instead of answering
everything too late. Requests that are held until a worker is about to be free (`holding.py`) came
before those in the queue, so as many places as they need are kept for them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import cast

from router.errors import Overrun, QueueFull
from router.fleet import Fleet
from router.pool import Pool
from router.queue import Queue, Ticket
from router.rests import Rests
from router.settings import Settings
from router.worker import Worker
from strategies.base import NOBODY

#: Seconds between two checks of the queue for requests past their deadline and for new workers.
TICK_S = 0.1
#: Seconds that a request may wait at least that had a place and has given it up to another.
AGAIN_S = 600.0

Waiter = asyncio.Future[None]
#: Names of a pool, a model and the only worker that will do; an empty worker name: any will do, but
#: for those named in the fourth place, if there is one.
_Line = tuple[str, str, str] | tuple[str, str, str, frozenset[str]]


@dataclass
class Wait:
    """One request's waiting, from the first time that it has to. Times are the loop's."""

    since: float
    """When it began; once it has queued, when it came into the queue."""
    late: float
    """When it is refused."""
    queued: bool = False
    """Whether it has been in the queue: then it has a place there."""
    held: float | None = None
    """When it was first held, by `monotonic`; None: never."""


class Admission:
    """Lets requests through to the workers. One instance for the whole router."""

    def __init__(self, settings: Settings, held: Callable[[Pool, str], int]) -> None:
        """`held` returns how many requests for a model are held in a pool."""
        self._held = held
        self.in_flight = 0
        """Requests being served, including those that wait."""
        self.waited = 0
        """Requests that had to wait."""
        self.queue: Queue[Waiter] = Queue(settings.limits.queue)
        self.rests = Rests()
        """Workers that said recently that they are full."""
        self._pools: dict[_Line, Pool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Apply new bounds to the requests to come."""
        self.most = settings.limits.in_flight
        """Requests in flight that each worker may have."""
        self._patience = settings.timeouts.queue
        self._overflow = settings.limits.overflow
        self.queue.limit = settings.limits.queue

    def follow(self, fleet: Fleet) -> None:
        """Take new pools. A line moves to the pool that now has its pool's name.

        If there is none, or its model goes to another one now, its requests are woken to find that;
        and those of a session, if another strategy need not keep them at one worker.
        """
        workers = list(fleet.workers)
        self.rests.keep(workers)
        for worker in workers:
            worker.most = self.most
        named = {pool.name: pool for pool in fleet.pools}
        for line in list(self._pools):
            pool = named.get(line[0])
            same = pool is self._pools[line] or not line[2]
            if pool is not None and same and fleet.answers_for(line[1], pool):
                self._pools[line] = pool
            else:
                while self._call(line):  # each looks for another pool
                    pass

    def room(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Return the workers that can take another request now.

        Empty also if all with room said that they are full, while others, which are at the limit,
        did not: waiting for one of those is better than being refused.
        """
        if self.in_flight >= self.most or len(self.queue):  # else no worker can be at the limit
            awake = self._awake(workers)
            workers = [worker for worker in workers if worker.load.here < self.most]
            if not any(worker in awake for worker in workers):
                return ()
        return workers

    def _awake(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Return the workers that did not say that they are full; all if every one did."""
        return self.rests.awake(workers, monotonic()) if self.rests else workers

    def wait(self) -> Wait:
        """Return the wait of a request that starts to wait now."""
        now = asyncio.get_running_loop().time()
        return Wait(now, now + self._patience)

    def wait_again(self, age: float) -> Wait:
        """Return the wait of a request of `age` seconds that had a place and has given it up.

        If it has to queue, it is not refused, however many wait, and has longer than others.
        """
        now = asyncio.get_running_loop().time()
        return Wait(now - age, now + max(self._patience, AGAIN_S), queued=True)

    def must_wait(
        self,
        pool: Pool,
        model: str,
        workers: Sequence[Worker],
        only: str = "",
        *,
        barred: Mapping[str, str] = NOBODY,
    ) -> bool:
        """Whether a request must queue: no worker has room, or others came first.

        `only` names the one worker that will do, if just one will; those `barred` will not.
        """
        room, line = self.room(workers), _line(pool, model, only, barred)
        if not room or self.queue.holds(line):
            return True
        kept = self._kept(pool, line)
        return kept > 0 and kept >= self._places(room)

    def turned_away(
        self,
        pool: Pool,
        model: str,
        tenant: str,
        only: str = "",
        *,
        barred: Mapping[str, str] = NOBODY,
    ) -> QueueFull | None:
        """Return the error that a request which must queue would get at once; None: it may."""
        line = _line(pool, model, only, barred)
        return None if self.queue.takes(tenant=tenant, pool=line) else self._full(pool, line)

    def _kept(self, pool: Pool, line: _Line) -> int:
        """Return how many places are kept for held requests, out of the line's reach."""
        # Held requests can go to any worker, so none is kept from a line that needs one worker.
        return 0 if line[2] else self._held(pool, line[1])

    def _places(self, workers: Sequence[Worker]) -> int:
        """Return how many more requests these workers may be sent in all."""
        return sum(max(0, self.most - worker.load.here) for worker in workers)

    async def turn(
        self,
        pool: Pool,
        model: str,
        tenant: str,
        wait: Wait,
        only: str = "",
        *,
        barred: Mapping[str, str] = NOBODY,
    ) -> None:
        """Wait for room on one of the pool's workers: not one of those `barred`, or only one.

        A request that queues again keeps its place. Raises QueueFull, Overrun.
        """
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        line = _line(pool, model, only, barred)
        ticket = self._enter(waiter, wait, tenant, pool, line)
        self._pools[line] = pool
        if self._timer is None:
            self._timer = loop.call_later(TICK_S, self._tick)
        try:
            await waiter
        finally:
            self.queue.leave(ticket)

    def _enter(
        self, waiter: Waiter, wait: Wait, tenant: str, pool: Pool, line: _Line
    ) -> Ticket[Waiter]:
        """Join the queue, and refuse whom that displaces. Raises QueueFull, Overrun."""
        now, late = asyncio.get_running_loop().time(), wait.late
        if now >= late:  # it was held until now: it must not displace others
            raise Overrun
        if wait.queued:
            return self.queue.come_back(waiter, wait.since, late, tenant=tenant, pool=line)
        ticket = self.queue.enter(waiter, now, late, tenant=tenant, pool=line)
        if ticket is None:
            raise self._full(pool, line)
        self.waited += 1
        wait.since, wait.queued = now, True
        if ticket.displaced is not None:
            displaced = cast("_Line", ticket.displaced.pool)
            _refuse(ticket.displaced, self._full(self._pools[displaced], displaced))
        return ticket

    def freed(self, worker: Worker) -> None:
        """Give the place of a request that ended on `worker` to the next in the queue."""
        if not len(self.queue) or worker.load.here >= self.most:
            return
        for line, pool in list(self._pools.items()):
            able = _able(pool, line) if _fits(worker, line) else []
            if worker not in self._awake(able):
                continue
            kept = self._kept(pool, line)
            if kept and kept >= self._places(able):
                continue
            if self._call(line):
                return

    def _fill(
        self, line: _Line, workers: Sequence[Worker], kept: int, left: dict[Worker, int]
    ) -> None:
        """Call as many requests as the workers have places that are not `kept`.

        `left` counts the places that no request was called for yet: those called are booked later.
        """
        for worker in workers:
            left.setdefault(worker, max(0, self.most - worker.load.here))
        free = sum(left[worker] for worker in workers) - kept
        for worker in workers:
            while free > 0 and left[worker] > 0:
                if not self._call(line):
                    return
                left[worker] -= 1
                free -= 1

    def _call(self, line: _Line) -> bool:
        ticket = self.queue.next(asyncio.get_running_loop().time(), line)
        if ticket is None:
            del self._pools[line]
            return False
        self._pools[line] = self._pools.pop(line)  # lines take turns
        if not ticket.waiter.done():
            ticket.waiter.set_result(None)
        return True

    def _full(self, pool: Pool, line: _Line) -> QueueFull:
        """Make the error for a full queue, in the form that `limits.overflow` sets.

        It counts the workers that could take the line's requests.
        """
        how, counts = self._overflow, None
        if how.body == "hyperpod":
            able = _able(pool, line)
            counts = {
                "max_concurrent": self.most * len(able),
                "max_queue_size": self.queue.limit,
                "current": sum(worker.load.here for worker in able),
            }
        return QueueFull(how.message, how.status, counts)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        left: dict[Worker, int] = {}  # lines may share workers, so none is called for a place twice
        for line, pool in list(self._pools.items()):
            able = _able(pool, line)
            self._fill(line, self._awake(able), self._kept(pool, line), left)
            if not able and line in self._pools:  # no worker is left: wake all to be told so
                while self._call(line):
                    pass
        for ticket in self.queue.expired(loop.time()):  # last, as `_call` may find more of them
            _refuse(ticket, Overrun())
        self._timer = loop.call_later(TICK_S, self._tick) if len(self.queue) else None


def _line(pool: Pool, model: str, only: str, barred: Mapping[str, str]) -> _Line:
    if barred and not only:
        return (pool.name, model, only, frozenset(barred))
    return (pool.name, model, only)


def _able(pool: Pool, line: _Line) -> list[Worker]:
    """Return the workers that a line's requests may go to now."""
    if line[2]:  # only a session that must stay waits for a worker that is draining or ejected
        only = pool.named.get(line[2])
        return [only] if only is not None and only.there and _fits(only, line) else []
    able = [worker for worker in pool.taking if worker.ready and _fits(worker, line)]
    if not pool.breakers.any_open:
        return able
    return pool.breakers.healthy(monotonic(), able) or able


def _fits(worker: Worker, line: _Line) -> bool:
    if len(line) == 4 and worker.name in line[3]:
        return False
    return line[1] in worker.models and line[2] in {"", worker.name}


def _refuse(ticket: Ticket[Waiter], error: Exception) -> None:
    if not ticket.waiter.done():
        ticket.waiter.set_exception(error)
