"""The only place where a request waits: asyncio around `strategies/hold/queue.py`.

A worker is sent at most `limits.in_flight` requests at once, and none while it backs off after a
503. A request goes on if a worker accepts it that is about to be free; otherwise it waits here,
bounded in number (`limits.queue`) and time (`timeouts.queue`). One that is taken back from its
worker, that every worker asked refuses, or for which there is no retry, waits here again with its
age.

One request is released at a time: it is decided again and booked before the next is considered, so
that each sees the bookings before it. Those that wait are looked at whenever something has ended
somewhere, and every `TICK_S`, because predicted work also passes with time, workers join, and what
they back off from ends.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from router.api.errors import APIError, Overrun, QueueFull
from router.dispatch.retry import RetryBudget
from router.fleet.breaker import Backoffs
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.settings.model import Settings
from strategies.api import Decision, Prompt
from strategies.cost.load import Load
from strategies.hold.queue import Entry, Line, Queue, Wait, checked, line_of, to_displace

log = logging.getLogger("warmroute.fleet")

#: Seconds between two looks at what waits.
TICK_S = 0.05

#: Ranks workers of a pool for a prompt.
Rank = Callable[[Pool, Prompt, Sequence[Worker]], Decision]


class Waiter(NamedTuple):
    """What waits here. The result says whether its turn has come, or it is only let go."""

    turn: asyncio.Future[bool]
    pool: Pool
    retries: bool
    """It goes only if there is a retry for it."""


class Scheduler:
    """Lets requests through to the workers. One instance for the whole router."""

    def __init__(self, settings: Settings, budget: RetryBudget, rank: Rank) -> None:
        self._budget = budget
        self._rank = rank
        self.in_flight = 0
        """Requests being served, including those that wait."""
        self.queued = 0
        """Requests that had to wait."""
        self.refused = 0
        """Requests that found the queue full."""
        self.rests = Backoffs()
        """Workers that said recently that they are full."""
        self._queues: dict[Pool, Queue[Waiter]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._set(settings)

    def _set(self, settings: Settings) -> None:
        self.max_in_flight = settings.limits.in_flight
        """Requests in flight that each worker may have."""
        self.limit = settings.limits.queue
        """How many may wait."""
        self._queue_timeout_s = settings.timeouts.queue
        self._overflow = settings.limits.overflow

    def change(self, settings: Settings, fleet: Fleet) -> None:
        """Apply new bounds and take new pools; those that wait are decided again."""
        self._set(settings)
        workers = list(fleet.workers)
        self.rests.keep(workers)
        for worker in workers:
            worker.max_in_flight = self.max_in_flight
        # All at once, so that no queue takes back what another has promised by then of a worker
        # that was its own.
        for queue in self._queues.values():
            for entry in queue.let_go():
                _wake(entry, called=False)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._queues.values()))

    def may_wait(self, *, bound: bool) -> bool:
        """Return true if a request that full workers refuse may wait for its turn.

        One that is `bound` may not: only one worker will do.
        """
        return not bound and self.limit > 0

    def room(self, workers: Sequence[Worker], *, bound: bool = False) -> Sequence[Worker]:
        """Return the workers that can take another request now.

        One that is `bound` does not leave its worker for saying that it is full: only that holds
        its session or its response.
        """
        if self.in_flight < self.max_in_flight and (bound or not self.rests):
            return workers  # none can be at its limit
        now = monotonic()
        return [worker for worker in workers if self._places(worker, now, bound=bound) > 0]

    def _places(self, worker: Worker, now: float, *, bound: bool) -> int:
        """Return how many more requests a worker may be sent."""
        asks = bound or self.limit == 0  # where none may wait, the worker is to say it itself
        allowed = self.rests.most(worker, now) if self.rests and not asks else None
        most = self.max_in_flight if allowed is None else min(allowed, self.max_in_flight)
        return most - worker.load.here

    def must_wait(self, pool: Pool, workers: Sequence[Worker], *, bound: bool) -> bool:
        """Whether a request must wait: no worker has room, or those that wait will take it.

        `bound` is as in `room`.
        """
        if self.in_flight < self.max_in_flight and not (self.rests or self._queues):
            return False
        room, queue = self.room(workers, bound=bound), self._queues.get(pool)
        if not room or queue is None:
            return not room
        places, now = 0, monotonic()
        for worker in room:
            places += self._places(worker, now, bound=bound)
            if places > len(queue):
                return False
        return places <= queue.count(lambda line: any(_fits(line, worker) for worker in room))

    def holds(self, decision: Decision, wait: Wait | None = None) -> bool:
        """Whether a request is to wait until its worker is about to be free.

        If the queue is full, or its time is over, it is sent at once: its worker has room.
        """
        now = monotonic()
        if not Queue.must_hold(decision, now):
            return False
        return self.waiting < self.limit if wait is None else now < wait.deadline

    def wait(self, since: float) -> Wait:
        """Return the waiting of a request that came at `since` and begins to wait now."""
        now = monotonic()
        return Wait(since, now, now + self._queue_timeout_s)

    def turned_away(
        self, pool: Pool, prompt: Prompt, tenant: str, only: str = ""
    ) -> QueueFull | None:
        """Return the error that a request which must wait would get at once; None: it may."""
        if self.waiting < self.limit or self._to_displace(pool, prompt, tenant, only):
            return None
        return self._full(pool, prompt, only)

    async def turn(
        self,
        pool: Pool,
        prompt: Prompt,
        decision: Decision,
        tenant: str,
        wait: Wait,
        *,
        only: str = "",
        bound: bool = False,
        retries: bool = False,
    ) -> bool:
        """Wait until a request should be decided again, at the latest when its wait is over.

        `only` names the one worker that will do, if just one will. One that is `bound` waits for
        room alone; one that `retries`, for a retry too. Returns False if its turn has not come: new
        settings have let all go. May be cancelled at any time. Raises QueueFull, Overrun.
        """
        if monotonic() >= wait.deadline:
            raise Overrun
        if not (wait.queued or wait.called):
            self._make_room(pool, prompt, tenant, only)
        self.queued += not wait.queued
        wait.queued = True
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), pool, retries)
        queue = self._queues.get(pool)
        if queue is None:
            queue = Queue(pool.waits)
        entry = queue.enter(
            waiter, prompt, decision, monotonic(), tenant, wait=wait, only=only, bound=bound
        )
        self._queues[pool] = queue
        if self._timer is None:
            self._timer = loop.call_later(TICK_S, self._tick)
        self.freed()
        try:
            return await waiter.turn
        finally:
            queue.leave(entry)
            if not len(queue) and self._queues.get(pool) is queue:
                del self._queues[pool]
            self.freed()  # the next look follows once this request is booked, or has gone

    def _make_room(self, pool: Pool, prompt: Prompt, tenant: str, only: str) -> None:
        """Let a newcomer to a full queue displace another. Raises QueueFull."""
        if self.waiting < self.limit:
            return
        self.refused += 1
        displaced = self._to_displace(pool, prompt, tenant, only)
        if displaced is None:
            raise self._full(pool, prompt, only)
        theirs = displaced.item
        self._queues[theirs.pool].leave(displaced)
        if not theirs.turn.done():
            theirs.turn.set_exception(self._full(theirs.pool, displaced.prompt, displaced.only))

    def _to_displace(
        self, pool: Pool, prompt: Prompt, tenant: str, only: str
    ) -> Entry[Waiter] | None:
        queue = self._queues.get(pool)
        own = 0 if queue is None else queue.length(line_of(prompt, tenant, only))
        return to_displace(self._queues.values(), own)

    def _full(self, pool: Pool, prompt: Prompt, only: str) -> QueueFull:
        """Make the error for a full queue, in the form that `limits.overflow` sets.

        It counts the workers that could take the request.
        """
        how, counts = self._overflow, None
        if how.body == "hyperpod":
            able = self._able(pool, prompt, only) or ()
            counts = {
                "max_concurrent": self.max_in_flight * len(able),
                "max_queue_size": self.limit,
                "current": sum(worker.load.here for worker in able),
            }
        return QueueFull(how.message, how.status, counts)

    def freed(self) -> None:
        """Look soon: a prefill or an answer has ended, or a request is to be booked first."""
        if self._queues and self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._look)

    def _tick(self) -> None:
        self._timer, now = None, monotonic()
        for pool, queue in self._queues.items():
            left: dict[Line, bool] = {}
            for entry in queue:
                kind = ("", *entry.line[1:])
                if kind not in left:
                    left[kind] = any(_is_left(worker, kind) for worker in pool.workers)
                if not left[kind] or entry.wait.deadline <= now:
                    _wake(entry)  # it is told so, or goes where there is room
        if self._queues:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
            self.freed()

    def _look(self) -> None:
        self._soon, now = None, monotonic()
        for pool, queue in self._queues.items():
            try:
                loads = self._loads(pool, bound=queue.bound > 0)
                released = queue.release(partial(self._ranked, pool), now, loads)
            except Exception:
                log.exception("pool %s: its strategy raised an error", pool.name)
                for entry in queue:
                    _wake(entry)
            else:
                if released is not None:
                    _wake(released[0])

    def _loads(self, pool: Pool, *, bound: bool) -> list[Load]:
        """Return the loads of the workers that accept more, those included that drain."""
        return [worker.load for worker in self.room(pool.workers, bound=bound) if worker.there]

    def _ranked(self, pool: Pool, entry: Entry[Waiter]) -> Decision | None:
        if entry.item.retries and not self._budget.allows(self.in_flight):
            return None
        able = self._able(pool, entry.prompt, entry.only)
        room = self.room(able, bound=entry.bound)
        if not room:
            return None
        try:
            return checked(self._rank(pool, entry.prompt, room))
        except Exception:
            log.exception("pool %s: its strategy raised an error", pool.name)
            _wake(entry)  # it is told so; the others go on
            return None

    def _able(self, pool: Pool, prompt: Prompt, only: str) -> Sequence[Worker]:
        """Return the workers that a request may go to now, with or without room."""
        if only:  # a session or a response waits even for one that is draining or ejected
            worker = pool.named.get(only)
            return [worker] if worker is not None and pool.serves(worker, prompt.model) else ()
        try:
            return pool.eligible(prompt.model, prompt.barred)
        except APIError:  # the request is woken, and finds out why
            return ()


def _fits(line: Line, worker: Worker) -> bool:
    """Whether requests of a line may go to a worker."""
    _, model, only, barred = line
    able = worker.name == only if only else worker.name not in barred
    return able and model in worker.models


def _is_left(worker: Worker, line: Line) -> bool:
    """Whether requests of a line may still go to a worker, sooner or later."""
    there = worker.there if line[2] else worker.takes_new
    return there and _fits(line, worker)


def _wake(entry: Entry[Waiter], *, called: bool = True) -> None:
    if not entry.item.turn.done():
        entry.item.turn.set_result(called)
