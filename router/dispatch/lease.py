"""A lease: one request booked on one worker, from the decision until what came of it is known.

Whoever sends the request tells its lease what happens; the lease tells the worker's load and
breaker, the pool's outliers and strategy, the metrics, and the router's other processes. What the
usage in an answer teaches: cache hits, its worker's pace, its prompt's length.
"""

import logging
from asyncio import Timeout, get_running_loop
from time import monotonic
from typing import Final

from router.api.errors import WorkerFailed
from router.dispatch.preemption import Preemptions
from router.dispatch.request import InferenceRequest
from router.dispatch.retry import RetryBudget, may_retry
from router.dispatch.scheduler import Scheduler
from router.fleet.worker import Worker
from router.upstream.errors import ConnectionLost, Refused, ResponseTimeout, Stale, WorkerError
from router.upstream.faults import BAD_REQUEST as BAD
from router.upstream.faults import NOT_FOUND as NOT_THERE
from router.upstream.faults import NOT_IMPLEMENTED, MissingAtWorker, missing_at_worker
from router.upstream.usage import Usage
from strategies.api import FREE, Candidate, Outcome
from strategies.cost.prefill import Held
from strategies.explain import terms

log = logging.getLogger("warmroute.requests")

#: The status under which a client that disconnected is counted, as in nginx.
CLIENT_LEFT: Final = 499
#: How vLLM says that it accepts no more requests: back pressure, not a failure.
FULL: Final = 503
#: Too many requests.
TOO_MANY: Final = 429
#: How a failure is counted if the worker does not come to an end with what it was sent.
STUCK: Final = "stuck"
#: Statuses that say nothing of a worker: back pressure, no answer, and a client that has left.
_NEUTRAL: Final = frozenset((0, TOO_MANY, CLIENT_LEFT, FULL))
#: The statuses after which another worker may be asked.
_RETRIABLE: Final = frozenset((FULL, BAD, NOT_THERE, NOT_IMPLEMENTED))
#: The worker rejects the key. If the key is the router's own, every request there ends like this.
_NOT_US: Final = frozenset((401, 403))
#: The first word of the decision where a worker answers that was not the first choice.
FAILOVER: Final = b"failover"
#: The outcome of a request that was never sent.
NOTHING: Final = Outcome(ok=False, began=False)


class Lease:
    """One request on one worker: its booking, its progress and its outcome."""

    __slots__ = (
        "_began",
        "_begun_well",
        "_booking",
        "_first_byte_s",
        "_flaw",
        "_instead",
        "_mark",
        "_moved",
        "_number",
        "_outcome",
        "_preempting",
        "_rescued",
        "_retries",
        "_rightly",
        "_scheduler",
        "_suspected",
        "_tells",
        "_theirs",
        "_timeout",
        "booked_at",
        "choice",
        "failure",
        "others",
        "preempted",
        "request",
        "status",
        "worker",
    )

    def __init__(
        self,
        request: InferenceRequest,
        worker: Worker,
        choice: Candidate,
        scheduler: Scheduler,
        preempting: Preemptions,
        *,
        others: bool,
        retries: RetryBudget | None,
    ) -> None:
        """Book the request on the worker until `release`; longer ones there may give way.

        `others` may be asked after it. `retries`, if given, is the budget that it has taken a part
        of.
        """
        self.request = request
        self.worker = worker
        self.choice = choice
        self.others = others
        self.status = 0
        """The status of the answer; 0 until there is one."""
        self.failure: str | None = None
        """What went wrong, if anything."""
        self.preempted = False
        """The request was taken back from the worker."""
        self.booked_at = monotonic()
        self._scheduler = scheduler
        self._preempting = preempting
        self._rescued = self._suspected = False
        self._theirs = preempting.make_way(request, worker, choice)
        """Bookings of other processes that are to give way to it."""
        pool, prompt = request.pool, request.prompt
        since = preempting.since(request, worker)
        self._booking = pool.book(prompt, choice, self.booked_at, since=since)
        self._timeout: Timeout | None = None
        self._tells = pool.tells
        self._number = 0
        """What the router's other processes call this booking."""
        self._outcome = NOTHING
        if self._tells is not None:
            try:
                self._number = self._tells.booked(
                    pool, prompt, choice, self.booked_at, self._booking
                )
            except BaseException:  # a third-party strategy may give numbers that cannot be sent
                worker.load.release(self._booking, self.booked_at)
                pool.strategy.settled(prompt, choice, NOTHING, self.booked_at)
                raise
        outliers, path = pool.outliers, request.endpoint.path
        self._instead = outliers.sent(path, choice, request.decision) if outliers else ()
        """What speaks against the workers that it would have gone to otherwise."""
        self._begun_well = False
        """The pool's outliers were told that its answer has begun well."""
        self._mark = worker.breaker.began(self.booked_at)
        self._first_byte_s: float | None = None
        self._flaw = ""
        """What is wrong with an answer of status 200, if anything."""
        self._rightly = 0
        """The status that the answer should have had, as far as is known."""
        self._began = True
        self._retries = retries
        self._moved = False
        """Another request has bound the session to a different worker."""

    def release(self) -> None:
        """Release the booking, whatever the outcome; call it exactly once."""
        if self._retries is not None:
            self._retries.give_back()
        if self.preempted:
            if self._rescued:
                self.request.moved(self.worker, suspected=self._suspected)
            else:
                self.request.gave_way(self.worker, self.choice.held_tokens)
        else:
            if self._moved:
                self.request.reopen()
            load, now = self.worker.load, monotonic()
            if not self._began:
                load.take_back(self._booking, now)
            load.release(self._booking, now)
            if self._tells is not None:
                self._tells.ended(self._number, self._outcome, now)
        self._scheduler.freed()

    def explanation(self) -> bytes:
        """Return the reason for the choice and the terms of its cost, as clients and logs see it.

        Of a session, it is told why it is where it is by now.
        """
        request, reason = self.request, FAILOVER
        if request.session is not None or self.choice is request.decision.candidates[0]:
            word = request.reason  # a third-party strategy may give anything
            reason = (word if word.isprintable() else ascii(word)).encode()
        choice = self.choice
        return reason if choice.cost is FREE else b"%b; %b" % (reason, terms(choice).encode())

    async def bind(self) -> bool:
        """Bind the request's session to the worker; return false if it is at another by now.

        Then, or if this raises what `SessionUse.settle` raises, nothing is to be sent.
        """
        request = self.request
        if request.session is None:
            return True
        ranked, model = request.decision.candidates, request.prompt.model
        there = await request.session.settle(self.choice, ranked, request.pool, model)
        if there.worker is self.worker:
            return True
        self._moved = True
        return False

    # While it is being sent.

    @property
    def movable(self) -> bool:
        """Whether it may be taken back before its answer begins."""
        return self._preempting.movable(self.request)

    def interruptible(self, timeout: Timeout) -> None:
        """Let it be taken back, which ends `timeout`, until `committed` is called."""
        self._timeout = timeout
        self._preempting.begin(self._booking, self)

    def sent(self) -> None:
        """Let the requests of other processes give way that should: it is being sent now.

        Asked before there is a connection, they could be sent again before it.
        """
        if self._theirs and self._tells is not None:
            self._tells.give_way(self._theirs, self._number)

    def committed(self) -> None:
        """Let it be taken back no more: its answer has begun, or there will be none."""
        self._preempting.end(self._booking)

    def preempt(self, kept_tokens: int) -> None:
        """Take it back: its worker holds so many tokens of its prompt by now."""
        self.worker.breaker.neutral(self._mark)
        self._take_back(kept_tokens)

    def rescue(self, *, suspected: bool) -> None:
        """Take it back: its worker is stuck, and nothing is known of what that has computed.

        If answers have begun there since it was sent, the worker works: others came first, or what
        this one waits for is its own, such as an image to be fetched.
        """
        self._rescued, self._suspected = True, suspected
        self.request.metrics.failed(self.worker.name, STUCK)
        if self.worker.answered_at > self.booked_at:
            self.worker.breaker.neutral(self._mark)
        else:
            self.worker.breaker.failed(monotonic(), self._mark, STUCK)
        self.worker.attention.set()
        self._take_back(self.choice.held_tokens)

    def _take_back(self, kept_tokens: int) -> None:
        now, outcome = monotonic(), Outcome(ok=False, kept_tokens=kept_tokens)
        self.preempted, self._outcome = True, outcome
        self._settle(outcome, now)
        if self._tells is not None:
            self._tells.ended(self._number, outcome, now)
        if self._timeout is not None:
            self._timeout.reschedule(get_running_loop().time())

    # What came of it.

    def retried(self, status: int, body: bytes) -> bool:
        """Note the status of an answer that begins with `body`; return true if it is to be dropped.

        Then the request goes elsewhere, or waits until a worker has room.
        """
        rests, worker = self._scheduler.rests, self.worker
        if status == FULL:
            self._began = False
        if status in {FULL, TOO_MANY} or (status in _NOT_US and worker.api_key):
            worker.rest = rest = rests.refused(worker, monotonic())
            rest.why, rest.full = f"it answered {status}", status == FULL
            rest.here = worker.load.here - 1  # without this one, which is still booked
        elif status == NOT_THERE:
            worker.doubt(self.request.prompt.model, monotonic())
        elif rests and status < 400:
            rests.answered(worker, self.booked_at)
        return status in _RETRIABLE and self._passes(status, body)

    def _passes(self, status: int, body: bytes) -> bool:
        """Return true if the request may go elsewhere after the worker's refusal."""
        request, lacking = self.request, None
        if status != FULL:
            if not self.others:
                return False
            lacking = self._lacks(status, body)
            if lacking is None:
                return False
        waits = self._scheduler.may_wait(bound=request.bound)
        if not may_retry(lacking, request.attempts, others=self.others, waits=waits):
            return False
        request.metrics.failed(self.worker.name, "full" if lacking is None else "missing")
        request.attempts.passed(self.worker, lacking)
        if not self.others:
            request.attempts.left.clear()
        return True

    def _lacks(self, status: int, body: bytes) -> MissingAtWorker | None:
        """Return what the worker has not got of what was asked for, by its refusal."""
        lacking, pool = missing_at_worker(status, body), self.request.pool
        if lacking is None or (lacking is MissingAtWorker.LENGTH and not pool.uneven):
            return None
        if lacking is MissingAtWorker.PATH:
            pool.lacks(self.worker, self.request.endpoint.path)
        self._began = False
        return lacking

    def answered(self, status: int) -> None:
        """Note that the answer has begun, with that status."""
        self.status = status
        if self.request.session is not None and status != FULL:
            self.request.session.accepted(status)
        if status < 400 and not self.worker.breaker.closed:
            self.worker.breaker.answering(monotonic(), self._mark)

    def first_byte(self, *, errs: bool = False) -> None:
        """Note the answer's first byte but comments; a stream's prefill is done by then.

        `errs`: it is that of an error event.
        """
        now, request = monotonic(), self.request
        self._first_byte_s = now - self.booked_at
        if request.prompt.stream or not request.streams:
            self.worker.load.first_byte(self._booking, now)
            if self.status < 400 and not errs:  # else its front process answered, perhaps
                if request.pool.outliers:
                    self._begun_well, path = True, request.endpoint.path
                    request.pool.outliers.answering(path, self.worker, self._instead)
                self.worker.load.answers()
                self.worker.answered_at = now
        if request.prompt.stream:
            if self._tells is not None:
                self._tells.began(self._number, now)
            request.metrics.first_byte.observe(now - request.started)
        self._scheduler.freed()

    def relayed(self, flaw: tuple[int, str]) -> None:
        """Note that all of the answer has come; `flaw` is as `SOUND` is.

        Workers that said that they have no chat template do lack it, as the request was fine.
        """
        self._rightly, self._flaw = flaw
        if self.status < BAD:
            for worker in self.request.attempts.without:
                self.request.pool.lacks(worker, self.request.endpoint.path)

    def failed(self, error: WorkerError) -> None:
        """Note that the worker failed, or that the router itself lacked, say, file descriptors."""
        request, self.failure = self.request, error.kind
        if isinstance(error, Refused):
            self._began = False
            if error.ours:
                self.failure = None
            else:
                self.worker.lost(str(error))
        elif isinstance(error, ConnectionLost | Stale):
            self.worker.attention.set()  # it may be dead or dying: probe it now
        request.metrics.failed(self.worker.name, error.kind)
        # As text: a record with the error itself would keep the frames of its traceback.
        text = f"{error}, to {error.target}" if error.target else str(error)
        log.warning("worker %s %s; id=%s", self.worker.name, text, request.identity.decode())
        request.attempts.failed(error, self.worker)

    def cancelled(self, *, left: bool, unsent: bool) -> None:
        """Note that its client has `left`, or the router stops; where it is `unsent`, nothing has
        begun."""
        if left:
            self.status = CLIENT_LEFT
        if unsent:
            self._began = False

    def finished(self, usage: Usage) -> None:
        """Report the outcome to everything that learns from it."""
        if self.preempted:
            return
        request, now = self.request, monotonic()
        usage = self.worker.with_cached(usage, request.endpoint.path)
        alone = not request.prompt.further  # of several prompts, all counts are sums
        if self.status:
            request.metrics.answered(self.worker.name, self.status)
            request.metrics.duration.observe(now - request.started)
        left = self.status == CLIENT_LEFT
        if request.session is not None and self._began and (left or not self.status):
            request.session.accepted(self.status or WorkerFailed.status)  # it may have begun
        if self.status == FULL or (400 <= self.status < 500 and not left):
            self._began = False
        outcome = Outcome(
            ok=self.failure is None and 0 < self.status < 500 and not left and not self._flaw,
            began=self._began,
            first_byte_s=self._first_byte_s,
            prompt_tokens=usage.prompt if alone else None,
            cached_tokens=usage.cached if alone else None,
            found=self._tiers(usage) if alone else None,
            answer_tokens=usage.answer,
            computed_s=self._booking.computed_s,
        )
        self._outcome = outcome
        self._judge(now)
        self._settle(outcome, now)
        if usage.answer and outcome.ok and alone:
            request.pool.prompts.estimates.learn_answer(usage.answer)
        self._learn(usage)

    def _settle(self, outcome: Outcome, now: float) -> None:
        pool = self.request.pool
        try:
            pool.strategy.settled(self.request.prompt, self.choice, outcome, now)
        except Exception:
            log.exception("pool %s: its strategy raised an error", pool.name)

    def _judge(self, now: float) -> None:
        """Report the outcome to the worker's breaker and the pool's outliers."""
        breaker, outliers = self.worker.breaker, self.request.pool.outliers
        status = self._rightly if self._flaw else self.status
        if self.failure is not None:
            self._fail(now, self.failure, f"its answer failed: {self.failure}")
        elif status in _NEUTRAL:
            breaker.neutral(self._mark)
        elif status < 300:
            breaker.worked(now, self._mark)
            if outliers:
                outliers.good(self.request.endpoint.path, self.worker)
        elif status < 500 or status == NOT_IMPLEMENTED:
            self._bad(now, f"it answered {status}", refusal=True)
            breaker.neutral(self._mark)
        else:
            if self._flaw:
                self.failure = self._flaw
                self.request.metrics.failed(self.worker.name, self.failure)
            self._fail(now, self.failure or "5xx", f"it answered {status}")

    def _fail(self, now: float, kind: str, why: str) -> None:
        self._bad(now, why, kind=kind)
        breaker, outliers = self.worker.breaker, self.request.pool.outliers
        path = self.request.endpoint.path
        breaker.failed(now, self._mark, kind, alone=outliers.outlier(path, self.worker))
        if not breaker.closed:
            outliers.ejected(path, self.worker)

    def _bad(self, now: float, why: str, *, kind: str = "", refusal: bool = False) -> None:
        # How long a worker is silent tells each request alone.
        sent = now if kind == ResponseTimeout.kind else self.booked_at
        path, outliers = self.request.endpoint.path, self.request.pool.outliers
        outliers.bad(
            *(path, self.worker, self._instead, now, why),
            sent=sent,
            refusal=refusal,
            begun=self._begun_well,
        )

    # What the usage in its answer teaches.

    def _tiers(self, usage: Usage) -> Held | None:
        """Return on which tiers the worker found them; None if it does not report that."""
        if usage.cached is None or usage.gpu is None:
            return None
        return self.choice.believed.found(usage.cached, usage.gpu, usage.host)

    def _learn(self, usage: Usage) -> None:
        """Learn from the tokens that its worker reported, if it did, and count them."""
        request, worker, booking = self.request, self.worker, self._booking
        prompt_tokens = usage.prompt
        if prompt_tokens is None:
            return
        request.pool.prompts.learn(request.prompt, prompt_tokens)
        cached = None if usage.cached is None else min(usage.cached, prompt_tokens)
        held = min(self.choice.held_tokens, prompt_tokens)
        if request.last is None:
            self._count(usage, prompt_tokens, cached, held)
        else:  # it was preempted: what it had got done itself is no hit
            first = min(request.held_first, prompt_tokens)
            hits = None if cached is None else min(cached, first)
            request.metrics.used(prompt_tokens, hits, first)
            if cached is not None and worker is request.last:
                self._preempting.judge(worker, held - first, cached - first)
        if request.prompt.further or not self._all_computed(usage):
            return
        if cached is None:
            cached = held
        if booking.computed_s is not None:
            worker.pace.observe(prompt_tokens - cached, cached, booking.computed_s)
        elif booking.whole_s is not None:
            worker.pace.bound(prompt_tokens - cached, cached, booking.whole_s)

    def _count(self, usage: Usage, prompt_tokens: int, cached: int | None, expected: int) -> None:
        """Count the tokens that the worker reported; `cached` is at most `prompt_tokens`."""
        request = self.request
        request.metrics.used(prompt_tokens, cached, expected)
        if cached is None:
            return
        if request.pool.prompts.keyed and not request.prompt.further:
            request.metrics.compared(cached, expected)
        tiers, kv = self._tiers(usage), request.pool.kv
        if tiers is not None or kv is not None:
            hit = tiers or self.choice.believed.found(cached)
            request.metrics.hit(kv.loads.shown(hit) if kv is not None else hit)

    def _all_computed(self, usage: Usage) -> bool:
        """Return true if the prefill was all computing.

        Otherwise its time says something about how fast a slower tier loads.
        """
        tiers = self._tiers(usage)
        loading = self.choice.loading if tiers is None else tiers
        return not (loading.l1 or loading.l2)
