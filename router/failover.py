"""Sends a decided request to its candidate workers, one after the other, until one answers.

    book → send → relay → settle (`sending.py`)

Each attempt is booked on its worker before a byte is sent, and released whatever happens. Only a
request that certainly did not start on one worker is sent to another.
"""

from collections.abc import Iterable, Sequence
from time import monotonic

from router.admission import Admission
from router.attempt import Attempt
from router.holding import Holding
from router.job import Job
from router.missing import BAD
from router.preempting import Preempting
from router.resort import Resort
from router.responses.where import Responses
from router.retries import Budget
from router.sending import Sending, may_wait
from router.settings import Settings
from router.tally import Tally
from router.vacancies import Crowded, Vacancies
from router.worker import Worker
from router.worker_errors import WorkerError
from strategies.base import Candidate


class Failover:
    """Gets decided requests answered. One instance for the whole router."""

    def __init__(
        self, admission: Admission, holding: Holding, budget: Budget, responses: Responses
    ) -> None:
        """`admission` and `holding` are told of every place that is free again."""
        self._admission = admission
        self._holding = holding
        self._budget = budget
        self.preempting = Preempting()
        """The requests that may be taken back from their workers."""
        self.vacancies = Vacancies()
        """Those that were taken back, or that others gave way to, and that every worker refuses."""
        resort = Resort(admission, budget)
        self._sending = Sending(admission, holding, resort, self.vacancies, responses)

    def change(self, settings: Settings) -> None:
        """Apply new settings to the requests to come."""
        self._attempts = settings.limits.attempts
        self.preempting.change(settings.limits.preemptions)
        self._patience = settings.timeouts.queue
        self._sending.change(settings)

    async def answer(self, job: Job, *, others: bool = False) -> bool:
        """Try the candidates in order until one answers, as long as none may have started.

        A refused connection costs nothing, as nothing was sent. A worker that is full, or has not
        got what others may have (`missing.py`), counts as asked: at most `limits.attempts` are
        asked, each after the first out of the retry budget. If all are full, an ejected worker is
        tried, which is better than a refusal; but not by a job that may wait (Crowded).

        Returns False if no worker was asked and there are `others`, which had no room at the time
        of the decision; but not if the router lacked descriptors or ports, as it would at once lack
        them again. Raises DoorError, CutShort, Elsewhere, Preempted, Crowded.
        """
        tally = Tally()
        candidates = job.decision.candidates
        left = list(range(len(candidates)))
        try:
            while left:
                job.exchange.asked = False
                if tally.asked and not await self._turn(job):
                    break
                first = len(left) == len(candidates)
                ranked = candidates[left.pop(0 if first else self._next(candidates, left))]
                if not _still(job, ranked, again=tally.error is not None):
                    continue  # the wait may have been long
                worker: Worker = ranked.worker  # type: ignore[assignment]  # our fleet's own
                last = tally.asked + 1 >= self._attempts or (first and job.decision.stays)
                # Books at once, before others can.
                attempt = Attempt(job, worker, ranked, self.preempting)
                job.exchange.asked = True
                try:
                    if await self._sending.send(attempt, others=bool(left), is_last=last):
                        _learn(job, tally.without if attempt.status < BAD else ())
                        return True
                    tally.passed(worker, attempt.missing)
                    if not left:
                        candidates = job.decision.candidates  # `Resort` has added one
                        left.append(len(candidates) - 1)
                except WorkerError as failure:
                    if not tally.failed(failure, worker.name):
                        raise tally.said() from None
                finally:
                    self._release(attempt)
            if others and tally.reached_none:
                job.exchange.asked = False
                return False
            raise Crowded if tally.full and may_wait(job) else tally.said()
        finally:
            tally.error = None  # breaks a reference cycle: its traceback holds this frame
            if job.retrying:
                self._budget.give_back()

    def _release(self, attempt: Attempt) -> None:
        """Release an attempt's booking, and tell those who wait for its place."""
        attempt.release()
        if attempt.accepted:
            self.vacancies.freed(attempt.worker)
        self._admission.freed(attempt.worker)
        self._holding.freed()

    async def _turn(self, job: Job) -> bool:
        """Wait for a part of the retry budget; return whether another attempt may be made."""
        if not job.retrying:
            job.retrying = await self._budget.turn(self._admission.in_flight, self._patience)
        return job.retrying

    def _next(self, candidates: Sequence[Candidate], left: Sequence[int]) -> int:
        """Return the index in `left` of the next candidate: the first that is not resting.

        A worker rests after it said that it is full (`rests.py`).
        """
        rests = self._admission.rests
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
