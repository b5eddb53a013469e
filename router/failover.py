"""A decided request and its workers: one after the other, until one answers.

    book → send → relay → settle

Each attempt is booked on its worker before a byte is sent and released whatever happens. Only what
surely did not begin moves on to another worker.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Final

from router.added import with_field
from router.admission import Admission
from router.attempt import FULL, Attempt
from router.errors import DoorError, NoWorker, Stale, WorkerError, answer_for
from router.headers import Incoming, upstream_head
from router.holding import Holding
from router.identity.forward import with_ids
from router.job import Job
from router.relay import CutShort, Relay
from router.resort import Resort
from router.retries import Budget
from router.settings import Settings
from router.stripped import Stripped
from router.usage import NO_USAGE
from router.worker import Worker
from strategies.base import Candidate

#: What is compressed cannot follow a comment.
_CODINGS = b"\naccept-encoding:"
#: Too many requests, from whomever; and what is asked for, the model say, is not there.
TOO_MANY: Final = 429
NOT_THERE: Final = 404
#: The key is wrong: where it is the router's own, all requests there end so.
_NOT_US: Final = frozenset((401, 403))


class Failover:
    """Has decided requests answered. One for the whole router."""

    def __init__(self, admission: Admission, holding: Holding, budget: Budget) -> None:
        """It tells the first two of every place that is free again."""
        self._admission = admission
        self._holding = holding
        self._budget = budget
        self._resort = Resort(admission, budget)

    def change(self, settings: Settings) -> None:
        """Other settings, for the requests to come."""
        self._attempts = settings.limits.attempts
        self._patience = settings.timeouts.queue
        self._log_requests = settings.logs.requests
        self._comments = settings.timeouts.comment is not None

    async def answer(self, job: Job, *, others: bool = False) -> bool:
        """Take candidates in order until one answers; only what surely did not begin moves on.

        Refusals are free: nothing was sent. A worker that is full has been asked: no more than so
        many are, and every one after the first comes out of the retry budget. If all of them are
        full, one that was left out is asked: that is better than a refusal. False if nobody was
        asked, and there are `others` who had no room when it was decided.
        """
        asked = 0
        vanished = False
        error: DoorError | None = None
        candidates = job.decision.candidates
        left = list(range(len(candidates)))
        try:
            while left:
                job.exchange.asked = False
                if asked and not await self._turn(job):
                    break
                first = len(left) == len(candidates)
                ranked = candidates[left.pop(0 if first else self._next(candidates, left))]
                if not _still(job, ranked, again=error is not None):  # the wait may have been long
                    continue
                worker: Worker = ranked.worker  # type: ignore[assignment]  # our fleet's own
                stays = first and job.decision.stays
                last = asked + 1 >= self._attempts or stays
                attempt = Attempt(job, worker, ranked)  # before others could take the place
                job.exchange.asked = True
                try:
                    if await self._attempt(attempt, others=bool(left), is_last=last):
                        return True
                    asked += 1
                    error = NoWorker("Every worker that was asked is full; please try again.")
                    if not left:
                        candidates = job.decision.candidates  # there is one more
                        left.append(len(candidates) - 1)
                except WorkerError as failure:
                    error = answer_for(failure, worker.name)
                    stale = isinstance(failure, Stale)
                    if not failure.safe or (vanished and stale):  # twice: the request kills them
                        raise error from None
                    vanished = vanished or stale
                    asked += stale
                finally:
                    attempt.release()
                    self._admission.freed(worker)
                    self._holding.freed()
            if others and not asked:
                return False
            raise error or NoWorker("No worker is ready any more; please try again.")
        finally:
            error = None  # its traceback leads to this frame, and so to itself
            if job.retrying:
                self._budget.give_back()

    async def _turn(self, job: Job) -> bool:
        """Whether another attempt may be made: as soon as the budget has it."""
        if not job.retrying:
            job.retrying = await self._budget.turn(self._admission.in_flight, self._patience)
        return job.retrying

    def _next(self, candidates: Sequence[Candidate], left: Sequence[int]) -> int:
        """Which of those left is next: the first that did not say meanwhile that it is full."""
        rests = self._admission.rests
        if not rests:
            return 0
        workers = [candidates[place].worker for place in left]
        awake = rests.awake(workers, monotonic())
        return next(place for place, worker in enumerate(workers) if worker in awake)

    async def _attempt(self, attempt: Attempt, *, others: bool, is_last: bool) -> bool:
        """Ask one worker and relay its answer; False if it is full and another may be asked."""
        job, worker = attempt.job, attempt.worker
        exchange, upstream = job.exchange, worker.upstream  # the same to the end
        asks = await self._as_shown(attempt)
        usage, relay = NO_USAGE, Relay(job.endpoint, exchange)
        try:
            body = _body(job, worker)
            path, key = job.endpoint.path.encode(), worker.api_key
            head = upstream_head(path, asks, worker.host, key, len(body))
            connection = await upstream.ask(head, body)
            try:
                status = connection.head.status
                self._feel(attempt, status)
                if status == FULL and not is_last and (others or await self._resort.found(job)):
                    attempt.full()
                    return False
                attempt.on_first_byte(status)
                if status >= 400:
                    await exchange.undo()
                self._holding.freed()
                if not relay.begin(connection, attempt.fields()):
                    await relay.flow(connection)
                usage = relay.usage()
            finally:
                upstream.release(connection)
        except WorkerError as error:
            attempt.failed(error)
            raise
        except CutShort as cut:
            attempt.failed(cut.error)
            raise
        except asyncio.CancelledError as cancelled:
            if relay.complete:  # it has read all there is to read
                usage = relay.usage()
            else:
                attempt.cancelled(cancelled)
            raise
        finally:
            attempt.settle(usage)
            if self._log_requests:
                attempt.log()
        return True

    async def _as_shown(self, attempt: Attempt) -> Incoming:
        """Return the request as its worker may see it."""
        job = attempt.job
        shown: Incoming = job.exchange
        if job.visit is not None:
            shown = await attempt.bound(job.visit)
        return Stripped(shown, _CODINGS) if self._comments and job.prompt.stream else shown

    def _feel(self, attempt: Attempt, status: int) -> None:
        """What an answer's status says of the room there, or of what the worker has."""
        rests, worker = self._admission.rests, attempt.worker
        if status == FULL:
            attempt.refused()
        if status in {FULL, TOO_MANY} or (status in _NOT_US and worker.api_key):
            rests.refused(worker, monotonic())
        elif status == NOT_THERE:
            worker.doubt(attempt.job.prompt.model, monotonic())
        elif rests and status < 400:
            rests.answered(worker, attempt.booked_at)


def _still(job: Job, choice: Candidate, *, again: bool) -> bool:
    """Whether what was decided still holds: it may be lost, or, failing over, left out by now."""
    worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
    return worker.ready and (not again or job.pool.breakers.admits(monotonic(), worker))


def _body(job: Job, worker: Worker) -> bytes:
    """Return what the worker is sent: a salt, and token ids where it takes them, go along."""
    body = job.exchange.body
    if job.salt:
        body = with_field(body, job.salt)
    if job.along and worker.takes_ids and job.pool.prompts.holds(job.along):
        return with_ids(body, job.along.listed)
    return body
