"""The last resort: if all other workers refuse a request, an ejected worker is tried.

Otherwise the client would certainly be refused. The ejected worker's trial is moved forward, one
trial at a time. Other requests that were refused meanwhile wait for its end, but not for long; if
it fails, they return the refusal that they already have. Requests in the queue come after those
that were refused: they wait for other workers, and have their turn there first.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic

from router.admission import Admission
from router.breaker import TRIAL_S
from router.job import Job
from router.retries import Budget
from router.worker import Worker
from strategies.base import Decision

#: Seconds between two checks whether another request's trial has ended.
_LOOK_S = 0.02


class Resort:
    """Finds an ejected worker to try. One for the whole router."""

    def __init__(self, admission: Admission, budget: Budget) -> None:
        self._admission = admission
        self._budget = budget

    async def found(self, job: Job) -> bool:
        """Add a candidate to the job, with a retry from the budget; return whether it could."""
        end = monotonic() + TRIAL_S
        while outside := self._outside(job):
            if self._add(job, outside):
                return True
            if monotonic() >= end or len(self._admission.queue):
                break  # while it waits, it keeps its place at the worker that refused it
            await asyncio.sleep(_LOOK_S)
        return False

    def _outside(self, job: Job) -> Sequence[Worker]:
        """Return workers with room that are no candidates yet, and could answer or be tried."""
        pool, decision = job.pool, job.decision
        if job.visit is not None or decision.stays:
            return ()  # sessions may have to stay at their worker
        now, among = monotonic(), {candidate.worker for candidate in decision.candidates}
        outside = [
            worker
            for worker in pool.taking
            if worker not in among
            and pool.serves(worker, job.prompt.model)
            and worker.name not in job.prompt.barred
            and worker.breaker.near(now)
        ]
        return self._admission.room(outside)

    def _add(self, job: Job, outside: Sequence[Worker]) -> bool:
        """Add the first worker whose trial may begin now, without an await before the trial."""
        took = not job.retrying and self._budget.take(self._admission.in_flight)
        if not (took or job.retrying):
            return False
        now, decision, worker = monotonic(), job.decision, None
        try:
            worker = next((worker for worker in outside if worker.breaker.hasten(now)), None)
            if worker is not None:
                more = job.pool.strategy.rank(job.prompt, [worker], now).candidates
                candidates, aside = [*decision.candidates, *more], decision.aside + 1
                job.decision = Decision(
                    candidates, decision.reason, aside=aside, drawn=decision.drawn
                )
                job.retrying = True
        finally:
            if took and not job.retrying:
                self._budget.give_back()
        return worker is not None
