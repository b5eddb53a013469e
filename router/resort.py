"""A last resort: where all are full, one that was left out for its failures is asked.

A refusal is certain otherwise. Its trial comes before its time then, and one at a time: whom
others refused meanwhile waits for how it ends, but not for long, and with the refusal at hand.
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

#: Seconds between two looks at somebody else's trial.
_LOOK_S = 0.02


class Resort:
    """Finds it. One for the whole router."""

    def __init__(self, admission: Admission, budget: Budget) -> None:
        self._admission = admission
        self._budget = budget

    async def found(self, job: Job) -> bool:
        """Whether the job has one candidate more, and a part of the retry budget for it."""
        end = monotonic() + TRIAL_S
        while outside := self._outside(job):
            if self._add(job, outside):
                return True
            if monotonic() >= end:
                break
            await asyncio.sleep(_LOOK_S)
        return False

    def _outside(self, job: Job) -> Sequence[Worker]:
        """Those that could answer and are no candidates."""
        pool, decision = job.pool, job.decision
        if job.visit is not None or decision.stays or len(self._admission.queue):
            return ()  # who stands in line comes first
        now, among = monotonic(), {candidate.worker for candidate in decision.candidates}
        outside = [
            worker
            for worker in pool.taking
            if worker not in among
            and pool.serves(worker, job.prompt.model)
            and worker.breaker.near(now)
        ]
        return self._admission.room(outside)

    def _add(self, job: Job, outside: Sequence[Worker]) -> bool:
        """The first that may be asked now; nothing is waited for from here to its trial."""
        took = not job.retrying and self._budget.take(self._admission.in_flight)
        if not (took or job.retrying):
            return False
        now, decision, worker = monotonic(), job.decision, None
        try:
            worker = next((worker for worker in outside if worker.breaker.hasten(now)), None)
            if worker is not None:
                more = job.pool.strategy.rank(job.prompt, [worker], now).candidates
                job.decision = Decision([*decision.candidates, *more], decision.reason)
                job.retrying = True
        finally:
            if took and not job.retrying:
                self._budget.give_back()
        return worker is not None
