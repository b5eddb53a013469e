"""One attempt at a request on one worker."""

import logging
from asyncio import CancelledError, Timeout, get_running_loop
from time import monotonic
from typing import Final

from router.api.errors import WorkerFailed
from router.dispatch.feedback import learn, tiers, with_cached
from router.dispatch.preemption import Preempted, Preempting, Rescued
from router.dispatch.request import Job
from router.fleet.worker import Worker
from router.http.headers import Incoming
from router.proxy.relay import Relay
from router.sessions.use import Visit
from router.upstream.errors import Gone, Refused, Silent, Stale, WorkerError
from router.upstream.faults import NOT_IMPLEMENTED, MissingAtWorker, missing_at_worker
from router.upstream.pool import NOT_SENT
from router.upstream.usage import NO_USAGE, Usage
from strategies.api import Candidate, Outcome

log = logging.getLogger("warmroute.requests")

#: The status under which a client that disconnected is counted, as in nginx.
CLIENT_LEFT: Final = 499
#: How vLLM says that it accepts no more requests: back pressure, not a failure.
FULL: Final = 503
#: How a failure is counted if the worker does not come to an end with what it was sent.
STUCK: Final = "stuck"
#: Statuses that say nothing of a worker: back pressure, no answer, and a client that has left.
_NEUTRAL: Final = frozenset((0, 429, CLIENT_LEFT, FULL))
#: The outcome of an attempt that was never sent.
NOTHING: Final = Outcome(ok=False, began=False)


class Elsewhere(Exception):
    """Another request has bound the session to a different worker."""


class Attempt:
    """One job on one worker: its booking, its progress and its outcome."""

    __slots__ = (
        "_began",
        "_begun_well",
        "_booking",
        "_first_byte_s",
        "_flaw",
        "_instead",
        "_mark",
        "_number",
        "_outcome",
        "_patience",
        "_preempting",
        "_rescued",
        "_rightly",
        "_suspected",
        "_tells",
        "_theirs",
        "booked_at",
        "choice",
        "failure",
        "job",
        "missing",
        "preempted",
        "status",
        "worker",
    )

    def __init__(self, job: Job, worker: Worker, choice: Candidate, preempting: Preempting) -> None:
        """Book the job on the worker until `release`; longer ones there may give way."""
        self.job = job
        self.worker = worker
        self.choice = choice
        self.status = 0
        """The status of the answer; 0 until there is one."""
        self.booked_at = monotonic()
        self.preempted = False
        """It was taken back from its worker, and has ended."""
        self.missing: MissingAtWorker | None = None
        """What the worker has not got, and another was asked for."""
        self._rescued = self._suspected = False
        self._theirs = preempting.make_way(job, worker, choice)
        """Bookings of other processes that are to give way to it."""
        since = preempting.since(job, worker)
        self._booking = job.pool.book(job.prompt, choice, self.booked_at, since=since)
        self._preempting = preempting
        self._patience: Timeout | None = None
        self._tells = job.pool.tells
        self._number = 0
        """What the router's other processes call this booking."""
        self._outcome = NOTHING
        if self._tells is not None:
            try:
                self._number = self._tells.booked(
                    job.pool, job.prompt, choice, self.booked_at, self._booking
                )
            except BaseException:  # a third-party strategy may give numbers that cannot be sent
                worker.load.release(self._booking, self.booked_at)
                job.pool.strategy.settled(job.prompt, choice, NOTHING, self.booked_at)
                raise
        outliers, path = job.pool.outliers, job.endpoint.path
        self._instead = outliers.sent(path, choice, job.decision) if outliers else ()
        """What speaks against the workers that it would have gone to otherwise."""
        self._begun_well = False
        """The pool's outliers were told that its answer has begun well."""
        self._mark = worker.breaker.began(self.booked_at)
        self._first_byte_s: float | None = None
        self.failure: str | None = None
        """What went wrong, if anything."""
        self._flaw = ""
        """What is wrong with an answer of status 200, if anything."""
        self._rightly = 0
        """The status that the answer should have had, as far as is known."""
        self._began = True

    def release(self) -> None:
        """Release the booking, whatever the outcome."""
        if self.preempted:
            return
        load, now = self.worker.load, monotonic()
        if not self._began:
            load.take_back(self._booking, now)
        load.release(self._booking, now)
        if self._tells is not None:
            self._tells.ended(self._number, self._outcome, now)

    async def bound(self, visit: Visit) -> Incoming:
        """Bind the job's session to the worker; return the request as the worker may see it.

        Raises Elsewhere, and what `Visit.settle` raises. The attempt has then ended, and nothing
        was sent.
        """
        job = self.job
        ranked, model = job.decision.candidates, job.prompt.model
        try:
            there = await visit.settle(self.choice, ranked, job.pool, model)
            if there.worker is not self.worker:
                raise Elsewhere
        except BaseException:
            self._began = False
            if job.exchange.left:
                self.status = CLIENT_LEFT
            self.settle(NO_USAGE)
            raise
        return visit.stripped(job.exchange)

    @property
    def movable(self) -> bool:
        """Whether it may be taken back before its answer begins."""
        return self._preempting.movable(self.job)

    def asks(self, patience: Timeout) -> None:
        """Let it be taken back, by ending `patience`, until `stays` is called."""
        self._patience = patience
        self._preempting.begin(self._booking, self)

    def sends(self) -> None:
        """Let the requests of other processes give way that should: it is being sent now.

        Asked before there is a connection, they could be sent again before it.
        """
        if self._theirs and self._tells is not None:
            self._tells.give_way(self._theirs, self._number)

    def stays(self) -> None:
        """Let it be taken back no more: its answer has begun, or there will be none."""
        self._preempting.end(self._booking)

    def preempt(self, kept_tokens: int) -> None:
        """End it: its worker holds so many tokens of its prompt by now."""
        self.worker.breaker.neutral(self._mark)
        self._taken_back(kept_tokens)

    def rescue(self, *, suspected: bool) -> None:
        """End it: its worker is stuck, and nothing is known of what that has computed.

        If answers have begun there since it was sent, the worker works: others came first, or what
        this one waits for is its own, such as an image to be fetched.
        """
        self._rescued, self._suspected = True, suspected
        self.job.metrics.failed(self.worker.name, STUCK)
        if self.worker.answered_at > self.booked_at:
            self.worker.breaker.neutral(self._mark)
        else:
            self.worker.breaker.failed(monotonic(), self._mark, STUCK)
        self.worker.attention.set()
        self._taken_back(self.choice.held_tokens)

    def why(self) -> Preempted:
        """Return what to raise once it was taken back."""
        held = self.choice.held_tokens
        if self._rescued:
            return Rescued(self.worker, held, suspected=self._suspected)
        return Preempted(self.worker, held)

    def _taken_back(self, kept_tokens: int) -> None:
        now, outcome = monotonic(), Outcome(ok=False, kept_tokens=kept_tokens)
        self.preempted, self._outcome = True, outcome
        self.job.exchange.asked = False
        self._settled(outcome, now)
        if self._tells is not None:
            self._tells.ended(self._number, outcome, now)
        if self._patience is not None:
            self._patience.reschedule(get_running_loop().time())

    def on_answer(self, status: int) -> None:
        """Note that the answer has begun."""
        self.status = status
        if self.job.visit is not None and status != FULL:
            self.job.visit.accepted(status)
        if status < 400 and not self.worker.breaker.closed:
            self.worker.breaker.answering(monotonic(), self._mark)

    def on_first_byte(self, *, errs: bool = False) -> None:
        """Note the answer's first byte but comments; a stream's prefill is done by then.

        `errs`: it is that of an error event.
        """
        now = monotonic()
        self._first_byte_s = now - self.booked_at
        if self.job.prompt.stream or not self.job.streams:
            self.worker.load.first_byte(self._booking, now)
            if self.status < 400 and not errs:  # else its front process answered, perhaps
                if self.job.pool.outliers:
                    self._begun_well, path = True, self.job.endpoint.path
                    self.job.pool.outliers.answering(path, self.worker, self._instead)
                self.worker.load.answers()
                self.worker.answered_at = now
        if self._tells is not None and self.job.prompt.stream:
            self._tells.began(self._number, now)
        if self.job.prompt.stream:
            self.job.metrics.first_byte.observe(now - self.job.started)

    def relayed(self, relay: Relay, usage: Usage) -> None:
        """Note what the answer was, all of which is relayed."""
        if self.status < 300:  # else its status says what it is
            self._rightly, self._flaw = relay.flaw(usage)

    def refused(self) -> None:
        """Note that the worker did not accept the request."""
        self._began = False

    def full(self) -> None:
        """Count that the worker was full, and its answer is not the client's."""
        self.job.metrics.failed(self.worker.name, "full")

    def lacks(self, status: int, body: bytes) -> bool:
        """Note whether the worker has not got what was asked for, by its refusal."""
        what, pool = missing_at_worker(status, body), self.job.pool
        if what is None or (what is MissingAtWorker.LENGTH and not pool.uneven):
            return False
        if what is MissingAtWorker.PATH:
            pool.lacks(self.worker, self.job.endpoint.path)
        self._began, self.missing = False, what
        self.job.metrics.failed(self.worker.name, "missing")
        return True

    def failed(self, error: WorkerError) -> None:
        """Note that the worker failed, or that the router itself lacked, say, file descriptors."""
        self.failure = error.kind
        if isinstance(error, Refused):
            self._began = False
            if error.ours:
                self.failure = None
            else:
                self.worker.lost(str(error))
        elif isinstance(error, Gone | Stale):
            self.worker.attention.set()  # it may be dead or dying: probe it now
        self.job.metrics.failed(self.worker.name, error.kind)
        identity = self.job.exchange.identity.decode()
        # As text: a record with the error itself would keep the frames of its traceback.
        text = f"{error}, to {error.target}" if error.target else str(error)
        log.warning("worker %s %s; id=%s", self.worker.name, text, identity)

    def cancelled(self, how: CancelledError) -> None:
        """Its client has left, or the router stops; where nothing was sent, nothing has begun."""
        if self.job.exchange.left:
            self.status = CLIENT_LEFT
        if NOT_SENT in getattr(how, "__notes__", ()):
            self._began = False

    def settle(self, usage: Usage) -> None:
        """End the attempt: report its outcome to everything that learns from it."""
        if self.preempted:
            return
        job, now = self.job, monotonic()
        usage = with_cached(usage, self.worker, job.endpoint.path)
        alone = not job.prompt.further  # of several prompts, all counts are sums
        if self.status:
            job.metrics.answered(self.worker.name, self.status)
            job.metrics.duration.observe(now - job.started)
        left = self.status == CLIENT_LEFT
        if job.visit is not None and self._began and (left or not self.status):
            job.visit.accepted(self.status or WorkerFailed.status)  # it may have begun
        if self.status == FULL or (400 <= self.status < 500 and not left):
            self._began = False
        outcome = Outcome(
            ok=self.failure is None and 0 < self.status < 500 and not left and not self._flaw,
            began=self._began,
            first_byte_s=self._first_byte_s,
            prompt_tokens=usage.prompt if alone else None,
            cached_tokens=usage.cached if alone else None,
            found=tiers(self.choice, usage) if alone else None,
            answer_tokens=usage.answer,
            computed_s=self._booking.computed_s,
        )
        self._outcome = outcome
        self._judge(now)
        self._settled(outcome, now)
        if usage.answer and outcome.ok and alone:
            job.pool.prompts.estimates.learn_answer(usage.answer)
        learn(job, self.worker, self.choice, self._booking, usage, preempting=self._preempting)

    def _settled(self, outcome: Outcome, now: float) -> None:
        pool = self.job.pool
        try:
            pool.strategy.settled(self.job.prompt, self.choice, outcome, now)
        except Exception:
            log.exception("pool %s: its strategy raised an error", pool.name)

    def _judge(self, now: float) -> None:
        """Report the outcome to the worker's breaker and the pool's outliers."""
        breaker, outliers = self.worker.breaker, self.job.pool.outliers
        status = self._rightly if self._flaw else self.status
        if self.failure is not None:
            self._failed(now, self.failure, f"its answer failed: {self.failure}")
        elif status in _NEUTRAL:
            breaker.neutral(self._mark)
        elif status < 300:
            breaker.worked(now, self._mark)
            if outliers:
                outliers.good(self.job.endpoint.path, self.worker)
        elif status < 500 or status == NOT_IMPLEMENTED:
            self._bad(now, f"it answered {status}", refusal=True)
            breaker.neutral(self._mark)
        else:
            if self._flaw:
                self.failure = self._flaw
                self.job.metrics.failed(self.worker.name, self.failure)
            self._failed(now, self.failure or "5xx", f"it answered {status}")

    def _failed(self, now: float, kind: str, why: str) -> None:
        self._bad(now, why, kind=kind)
        breaker, outliers, path = (
            self.worker.breaker,
            self.job.pool.outliers,
            self.job.endpoint.path,
        )
        breaker.failed(now, self._mark, kind, alone=outliers.outlier(path, self.worker))
        if not breaker.closed:
            outliers.ejected(path, self.worker)

    def _bad(self, now: float, why: str, *, kind: str = "", refusal: bool = False) -> None:
        # How long a worker is silent tells each request alone.
        sent = now if kind == Silent.kind else self.booked_at
        path, outliers = self.job.endpoint.path, self.job.pool.outliers
        outliers.bad(
            *(path, self.worker, self._instead, now, why),
            sent=sent,
            refusal=refusal,
            begun=self._begun_well,
        )
