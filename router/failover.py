"""Sends a decided request to its candidate workers, one after the other, until one answers.

    book → send → relay → settle

Each attempt is booked on its worker before a byte is sent, and released whatever happens. Only a
request that certainly did not start on one worker is sent to another.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Final

from router.added import with_field
from router.admission import Admission
from router.attempt import FULL, Attempt
from router.connection import Connection
from router.errors import DoorError, NoWorker, Refused, Stale, WorkerError, answer_for
from router.headers import Incoming, upstream_head
from router.holding import Holding
from router.identity.forward import with_ids
from router.job import Job
from router.preempting import Preempting
from router.relay import CutShort, Relay
from router.resort import Resort
from router.retries import Budget
from router.settings import Settings
from router.stripped import Numbered, Stripped
from router.upstream import Upstream
from router.usage import NO_USAGE
from router.vacancies import Crowded, Vacancies
from router.worker import Worker
from strategies.base import Candidate

#: Dropped from the worker's request if comments may come first: a compressed body cannot follow.
_CODINGS = b"\naccept-encoding:"
#: Statuses: too many requests; something asked for, usually the model, does not exist.
TOO_MANY: Final = 429
NOT_THERE: Final = 404
#: The worker rejects the key. If the key is the router's own, every request there ends like this.
_NOT_US: Final = frozenset((401, 403))


class Failover:
    """Gets decided requests answered. One instance for the whole router."""

    def __init__(self, admission: Admission, holding: Holding, budget: Budget) -> None:
        """`admission` and `holding` are told of every place that is free again."""
        self._admission = admission
        self._holding = holding
        self._budget = budget
        self._resort = Resort(admission, budget)
        self.preempting = Preempting()
        """The requests that may be taken back from their workers."""
        self.vacancies = Vacancies()
        """Those that were taken back, or that others gave way to, and that every worker refuses."""

    def change(self, settings: Settings) -> None:
        """Apply new settings to the requests to come."""
        self._attempts = settings.limits.attempts
        self.preempting.change(settings.limits.preemptions)
        self._patience = settings.timeouts.queue
        self._log_requests = settings.logs.requests
        self._comments = settings.timeouts.comment is not None

    async def answer(self, job: Job, *, others: bool = False) -> bool:
        """Try the candidates in order until one answers, as long as none may have started.

        A refused connection costs nothing, as nothing was sent. A full worker counts as asked: at
        most `limits.attempts` are asked, each after the first out of the retry budget. If all are
        full, an ejected worker is tried, which is better than a refusal; but not by a job that may
        wait (Crowded).

        Returns False if no worker was asked and there are `others`, which had no room at the time
        of the decision; but not if the router lacked descriptors or ports, as it would at once lack
        them again. Raises DoorError, CutShort, Elsewhere, Preempted, Crowded.
        """
        asked = 0
        vanished = lacking = full = False
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
                # Books at once, before others can.
                attempt = Attempt(job, worker, ranked, self.preempting)
                job.exchange.asked = True
                try:
                    if await self._attempt(attempt, others=bool(left), is_last=last):
                        return True
                    asked += 1
                    full = True
                    error = NoWorker("Every worker that was asked is full; please try again.")
                    if not left:
                        candidates = job.decision.candidates  # `Resort` has added one
                        left.append(len(candidates) - 1)
                except WorkerError as failure:
                    error = answer_for(failure, worker.name)
                    stale = isinstance(failure, Stale)
                    # Two workers that vanish in a row: this request may be what kills them.
                    if not failure.safe or (vanished and stale):
                        raise error from None
                    vanished = vanished or stale
                    lacking = lacking or (isinstance(failure, Refused) and failure.ours)
                    asked += stale
                finally:
                    self._release(attempt)
            if others and not asked and not lacking:
                job.exchange.asked = False
                return False
            raise _refusal(job, error, full=full)
        finally:
            error = None  # breaks a reference cycle: its traceback holds this frame
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

    async def _attempt(self, attempt: Attempt, *, others: bool, is_last: bool) -> bool:
        """Ask one worker and relay its answer; False if it is full and another may be asked."""
        job, worker = attempt.job, attempt.worker
        exchange, upstream = job.exchange, worker.upstream  # a reload may replace the latter
        asks = await self._as_shown(attempt)
        usage, relay = NO_USAGE, Relay(job.endpoint, exchange)
        try:
            body = _body(job, worker)
            path, key = job.endpoint.path.encode(), worker.api_key
            head = upstream_head(path, asks, worker.host, key, len(body))
            connection = await _answered(attempt, upstream, head, body)
            try:
                status = connection.head.status
                self._feel(attempt, status)
                if status == FULL and await self._passes(attempt, others=others, is_last=is_last):
                    return False
                self.vacancies.settled(job.identity)
                attempt.on_answer(status)
                commented = connection.commented
                if not commented:
                    attempt.on_first_byte()
                if status >= 400:
                    await exchange.undo()
                self._holding.freed()
                if not relay.begin(connection, attempt.fields()):
                    begun = partial(self._begun, attempt) if commented else None
                    await relay.flow(connection, begun)
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
            if relay.complete:  # a stream's last event was sent: clients close then
                usage = relay.usage()
            else:
                attempt.cancelled(cancelled)
            raise
        finally:
            attempt.settle(usage)
            if self._log_requests and not attempt.preempted:
                attempt.log()
        return True

    async def _passes(self, attempt: Attempt, *, others: bool, is_last: bool) -> bool:
        """Whether a full worker's 503 is kept from the client, as another worker can be asked.

        An ejected one only if the request would be refused otherwise. Raises Crowded if there is
        none, but the request waits until there is.
        """
        job = attempt.job
        if attempt.made_way and job.late == -inf:  # it may have come before the place was free
            job.late = self._admission.wait_again(0.0).late
        waits = _waits(job)
        found = not is_last and (others or (not waits and await self._resort.found(job)))
        if found or waits:
            attempt.full()
            if not found:
                raise Crowded
        return found

    def _begun(self, attempt: Attempt) -> None:
        """Note that more than comments has come of an answer that began with them."""
        attempt.on_first_byte()
        self._holding.freed()

    async def _as_shown(self, attempt: Attempt) -> Incoming:
        """Return the request as its worker may see it."""
        job = attempt.job
        shown: Incoming = job.exchange
        if job.visit is not None:
            shown = await attempt.bound(job.visit)
        if self._comments and job.streams:
            shown = Stripped(shown, _CODINGS)
        return Numbered(shown, job.preemptions) if job.preemptions else shown

    def _feel(self, attempt: Attempt, status: int) -> None:
        """Note what a status says about the worker's room, its key or its models."""
        rests, worker = self._admission.rests, attempt.worker
        if status == FULL:
            attempt.refused()
        if status in {FULL, TOO_MANY} or (status in _NOT_US and worker.api_key):
            rests.refused(worker, monotonic())
        elif status == NOT_THERE:
            worker.doubt(attempt.job.prompt.model, monotonic())
        elif rests and status < 400:
            rests.answered(worker, attempt.booked_at)


async def _answered(attempt: Attempt, upstream: Upstream, head: bytes, body: bytes) -> Connection:
    """Send the request and wait for the first byte. Raises Preempted, WorkerError."""
    try:
        async with asyncio.timeout(None) as patience:
            attempt.asks(patience)
            connection = await upstream.ask(head, body, attempt.sends)
    except (TimeoutError, WorkerError):
        if not attempt.preempted:
            raise
        raise attempt.why() from None
    finally:
        attempt.stays()
    if attempt.preempted:  # at the very moment when the answer began
        connection.close()
        upstream.release(connection)
        raise attempt.why()
    return connection


def _waits(job: Job) -> bool:
    """Whether a request that no worker takes may wait: it gave way before, or others to it."""
    return job.visit is None and asyncio.get_running_loop().time() < job.late


def _refusal(job: Job, error: DoorError | None, *, full: bool) -> Exception:
    """Return what to raise if none is left to ask; `error`: the last; `full`: one was full."""
    if full and _waits(job):
        return Crowded()
    return error or NoWorker("No worker is ready any more; please try again.")


def _still(job: Job, choice: Candidate, *, again: bool) -> bool:
    """Whether a candidate may still be asked: it may be down, or on failover ejected, by now."""
    worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
    return worker.ready and (not again or job.pool.breakers.admits(monotonic(), worker))


def _body(job: Job, worker: Worker) -> bytes:
    """Return the body for the worker: with a cache salt, and token ids if the worker takes them."""
    body = job.exchange.body
    if job.salt:
        body = with_field(body, job.salt)
    if job.along and worker.takes_ids and job.pool.prompts.holds(job.along):
        return with_ids(body, job.along.listed)
    return body
