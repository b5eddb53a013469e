"""Moves requests away from workers that are stuck: asyncio around `strategies/hold/stuck.py`.

While requests wait that may be taken back (`preempting.py`), their workers are looked at every
`TICK_S`. Each other worker is given at most one of them per look, and the next look follows soon,
so that each is decided and booked before another one is compared with it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Final

from router.api.errors import DoorError
from router.dispatch.preemption import Preempting, Running
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from strategies.api import Candidate, Decision, Prompt, WorkerView
from strategies.cost.booking import Booking
from strategies.hold.stuck import better, hangs, stranded

log = logging.getLogger("warmroute.fleet")

#: Seconds between two looks; the same if some requests were moved, as others may follow.
TICK_S, SOON_S = 1.0, 0.05
#: How many requests of one worker and model are compared per look, oldest first.
LOOKED_AT: Final = 16

#: Ranks the workers of a pool that have room for a prompt now; None if none has.
Rank = Callable[[Pool, Prompt, Sequence[Worker]], Decision | None]


class Rescue:
    """Looks for requests that wait in vain. One instance for the whole router."""

    def __init__(self, preempting: Preempting, rank: Rank) -> None:
        self._preempting = preempting
        self._rank = rank
        self._looking: asyncio.TimerHandle | None = None
        preempting.begun = self._watch

    def _watch(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(TICK_S, self._look)

    def _look(self) -> None:
        now, given = monotonic(), set[WorkerView]()
        for worker in self._preempting.workers():
            try:
                self._relieve(worker, now, given)
            except Exception:
                log.exception("worker %s: what waits there could not be moved", worker.name)
        self._looking = None
        if len(self._preempting):
            next_s = SOON_S if given else TICK_S
            self._looking = asyncio.get_running_loop().call_later(next_s, self._look)

    def _relieve(self, worker: WorkerView, now: float, given: set[WorkerView]) -> None:
        """Move what waits there in vain, each request to a worker that is not among `given`."""
        load, before = worker.load, len(given)
        waiting = stranded(load, worker.pace, now)
        found_before, late = load.late_until > now, load.late(now)
        found = ((booking, self._preempting.of(booking)) for booking in waiting)
        movable = ((booking, running) for booking, running in found if running is not None)
        compared = Counter[str]()
        for booking, running in movable:
            model = running.job.prompt.model
            compared[model] += 1
            if compared[model] <= LOOKED_AT:
                self._move(booking, running, now, given)
        moved = len(given) - before
        if moved and not found_before:
            log.warning(
                "worker %s is stuck: its oldest request is %.1f s later than predicted; %d of %d"
                " that wait there sent elsewhere, and more as soon as other workers take them",
                *(worker.name, late, moved, len(waiting)),
            )

    def _move(self, booking: Booking, running: Running, now: float, given: set[WorkerView]) -> None:
        """Take a request back if another worker takes it at once, and add that one to `given`."""
        there = running.choice
        load, pace = there.worker.load, there.worker.pace
        suspected = booking is next(iter(load.pending)) and hangs(load, pace, now)
        if suspected and running.job.suspected:
            return
        best = self._elsewhere(running, now, given)
        if best is not None:
            given.add(best.worker)
            self._preempting.rescue(booking, running, now, suspected=suspected)

    def _elsewhere(
        self, running: Running, now: float, given: Collection[WorkerView]
    ) -> Candidate | None:
        """Return the best of the workers that are neither late nor `given` one, if it takes the
        request at once."""
        pool, prompt = running.job.pool, running.job.prompt
        try:
            able = pool.eligible(prompt.model, prompt.barred)
        except DoorError:
            return None
        others = [one for one in able if one not in given and not one.load.late(now)]
        decision = self._rank(pool, prompt, others) if others else None
        return None if decision is None else better(running.choice, decision, now)
