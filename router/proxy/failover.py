"""Sends a decided request to its candidate workers, one after the other, until one answers.

    book → send → relay → settle (`sending.py`)

Each attempt is booked on its worker before a byte is sent, and released whatever happens. Only a
request that certainly did not start on one worker is sent to another.

What has come of asking workers for one request, and whether another may still be asked.
"""

from collections.abc import Iterable, Sequence
from time import monotonic

from router.api.errors import DoorError, NoWorker, Overrun
from router.dispatch.preemption import Preempting
from router.dispatch.request import Job
from router.dispatch.retry import Budget
from router.dispatch.scheduler import Scheduler
from router.fleet.worker import Worker
from router.proxy.attempt import Attempt
from router.proxy.send import Sending
from router.responses.owners import Responses
from router.settings.model import Settings
from router.upstream.errors import Refused, Stale, WorkerError, answer_for
from router.upstream.faults import BAD_REQUEST, MissingAtWorker
from strategies.api import Candidate


class Tally:
    """The workers that were asked so far, and what the last one said."""

    __slots__ = ("_lacking", "_vanished", "asked", "error", "full", "without")

    def __init__(self) -> None:
        self.asked = 0
        """Not those that refused the connection: nothing was sent there."""
        self.error: DoorError | None = None
        """What the client would get now; None while nothing has gone wrong."""
        self.full = False
        """A worker was full."""
        self.without: list[Worker] = []
        """Those that have no chat template, as they say."""
        self._vanished = self._lacking = False

    def passed(self, worker: Worker, missing: MissingAtWorker | None) -> None:
        """Note that a worker accepts no more, or that what was asked for is `missing` there."""
        self.asked += 1
        self.full = self.full or missing is None
        if missing is MissingAtWorker.TEMPLATE:
            self.without.append(worker)
        lacks = "has not got what was asked for" if missing else "is full"
        self.error = NoWorker(f"Every worker that was asked {lacks}; please try again.")

    def failed(self, failure: WorkerError, worker: str) -> bool:
        """Note a failure; return whether another worker may be asked."""
        self.error = answer_for(failure, worker)
        stale = isinstance(failure, Stale)
        # Two workers that vanish in a row: this request may be what kills them.
        if not failure.safe or (self._vanished and stale):
            return False
        self._vanished = self._vanished or stale
        self._lacking = self._lacking or (isinstance(failure, Refused) and failure.ours)
        self.asked += stale
        return True

    @property
    def reached_none(self) -> bool:
        """Whether no worker was asked; but not if the router lacked descriptors or ports."""
        return not self.asked and not self._lacking

    def said(self) -> DoorError:
        """Return what the client gets if no other worker is asked."""
        return self.error or NoWorker("No worker is ready any more; please try again.")


class Failover:
    """Gets decided requests answered. One instance for the whole router."""

    def __init__(self, scheduler: Scheduler, budget: Budget, responses: Responses) -> None:
        """`scheduler` is told of every place that is free again."""
        self._scheduler = scheduler
        self._budget = budget
        self.preempting = Preempting()
        """The requests that may be taken back from their workers."""
        self._sending = Sending(scheduler, responses)

    def change(self, settings: Settings) -> None:
        """Apply new settings to the requests to come."""
        self._attempts = settings.limits.attempts
        self.preempting.change(settings.limits.preemptions)
        self._sending.change(settings)

    async def answer(self, job: Job, *, others: bool = False) -> bool:
        """Try the candidates in order until one answers, as long as none may have started.

        A refused connection costs nothing, as nothing was sent. A worker that is full, or has not
        got what others may have (`missing.py`), counts as asked: at most `limits.attempts` are
        asked, each after the first out of the retry budget. One that has no room any more counts
        as full, but is not asked.

        Returns False if the job is to be decided again. That is so if it may wait, and all that
        were asked are full, or no retry is left. Or if no worker was asked and there are `others`,
        which had no room at the time of the decision; but not if the router lacked descriptors or
        ports, as it would at once lack them again. Raises DoorError (Overrun if it has waited for
        long enough), CutShort, Elsewhere, Preempted.
        """
        tally, denied = Tally(), False
        candidates = job.decision.candidates
        left = list(range(len(candidates)))
        try:
            while left:
                job.exchange.asked = False
                if (tally.asked or job.retries) and not self._may_retry(job):
                    denied = True
                    break
                first = len(left) == len(candidates)
                ranked = candidates[left.pop(0 if first else self._next(candidates, left))]
                if not _still(job, ranked, again=tally.error is not None):
                    continue  # others may have been asked for long
                worker: Worker = ranked.worker  # type: ignore[assignment]  # our fleet's own
                if not first and self._fills(job, worker, tally):
                    tally.full = True
                    continue
                stays = first and job.decision.stays
                more = bool(left) and not stays and tally.asked + 1 < self._attempts
                # Books at once, before others can.
                attempt = Attempt(job, worker, ranked, self.preempting)
                job.exchange.asked = True
                try:
                    if await self._sending.send(attempt, others=more):
                        _learn(job, tally.without if attempt.status < BAD_REQUEST else ())
                        return True
                    tally.passed(worker, attempt.missing)
                    if not more:
                        left.clear()  # (compiled code cannot break out of a `try`)
                except WorkerError as failure:
                    if not tally.failed(failure, worker.name):
                        raise tally.said() from None
                finally:
                    attempt.release()
                    self._scheduler.freed()
            job.exchange.asked = False
            return self._again(job, tally, denied=denied, others=others)
        finally:
            tally.error = None  # breaks a reference cycle: its traceback holds this frame
            if job.retrying:
                self._budget.give_back()

    def _again(self, job: Job, tally: Tally, *, denied: bool, others: bool) -> bool:
        """Return False if the job, which nobody has answered, is to be decided again.

        Raises DoorError if it is not.
        """
        waits = self._budget.least > 0 if denied else tally.full
        if waits and self._sending.may_wait(job):
            if job.wait is not None and monotonic() >= job.wait.deadline:
                raise Overrun
            job.refused, job.retries = True, denied
            return False
        if others and tally.reached_none:
            return False
        self._budget.denied += denied
        raise tally.said()

    def _may_retry(self, job: Job) -> bool:
        """Return whether another attempt may be made, by a part of the retry budget."""
        if not job.retrying:
            job.retrying = self._budget.take(self._scheduler.in_flight)
        return job.retrying

    def _fills(self, job: Job, worker: Worker, tally: Tally) -> bool:
        """Whether a worker has no room any more, by now, for a job that may wait.

        Not after a worker has failed that was sent the job: decided again, it could go back there.
        """
        if not (tally.full or tally.reached_none) or self._scheduler.room([worker]):
            return False
        return self._sending.may_wait(job)

    def _next(self, candidates: Sequence[Candidate], left: Sequence[int]) -> int:
        """Return the index in `left` of the next candidate: the first that is not resting.

        A worker rests after it said that it is full (`rests.py`).
        """
        rests = self._scheduler.rests
        if not rests:
            return 0
        workers = [candidates[place].worker for place in left]
        awake = rests.awake(workers, monotonic())
        return next(place for place, worker in enumerate(workers) if worker in awake)


def _learn(job: Job, without: Iterable[Worker]) -> None:
    """Note that workers have no chat template: another has answered, so it was not the request."""
    for worker in without:
        job.pool.lacks(worker, job.endpoint.path)


def _still(job: Job, choice: Candidate, *, again: bool) -> bool:
    """Whether a candidate may still be asked: it may be down, or on failover ejected, by now."""
    worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
    return worker.there and (not again or job.pool.breakers.admits(monotonic(), worker))
