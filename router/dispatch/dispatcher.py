"""The only place where a worker is chosen for a request.

    route → wait → rank → book

`acquire` returns a lease on a worker. If that does not answer, and the request may go elsewhere
(`retry.py`), `acquire` is called again for the same request: it returns a lease on the next
candidate, or decides again.
"""

from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from msgspec.structs import replace

from router.api.errors import Overrun
from router.dispatch.lease import Lease
from router.dispatch.preemption import Preemptions, Rescue
from router.dispatch.request import InferenceRequest
from router.dispatch.retry import RetryBudget
from router.dispatch.scheduler import Scheduler
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.observe.metrics import Metrics
from router.responses.owners import at
from router.sessions.use import SessionUse
from router.settings.model import Settings
from strategies.api import NOBODY, Candidate, Decision, Prompt
from strategies.hold.queue import Wait

Renew = Callable[[InferenceRequest], Awaitable[InferenceRequest]]


class Dispatcher:
    """Decides on requests, and books them on workers. One instance for the whole router."""

    def __init__(self, fleet: Fleet, metrics: Metrics, settings: Settings, renew: Renew) -> None:
        """`renew` parses a request again, as its pool or its tokenizer has changed."""
        self._fleet = fleet
        self._metrics = metrics
        self._renew = renew
        self.budget = RetryBudget(settings.limits.retries)
        self.scheduler = Scheduler(settings, self.budget, self._rank)
        self.ranking = Ranker(self.scheduler)
        self.preempting = Preemptions()
        """The requests that may be taken back from their workers."""
        self.rescue = Rescue(self.preempting, self.ranking.with_room)

    def change(self, settings: Settings) -> None:
        """Apply new settings to the requests to come."""
        self._attempts = settings.limits.attempts
        self.budget.change(settings.limits.retries)
        self.scheduler.change(settings, self._fleet)
        self.preempting.change(settings.limits.preemptions)

    async def acquire(self, request: InferenceRequest) -> Lease:
        """Book a request on the worker that will answer soonest; wait for that if need be.

        Call it again if that worker has not answered. Release each lease. Raise APIError if no
        worker is left that may be asked: Overrun if the request has waited for long enough.
        """
        called = False
        if request.taken_back:
            self._queue_again(request)
        while True:
            if request.decided:
                lease = self._next(request)
                if lease is not None:
                    return lease
                called = False
                request.reopen()
            elif request.routed:
                turn = self._decide(request, called=called)
                if turn is not None:
                    called = await turn
                    request.reopen()
            else:
                await self._route(request)

    # The decision.

    async def _route(self, request: InferenceRequest) -> None:
        """Look up its workers; parse it again if pool or tokenizer have changed meanwhile."""
        model, only = request.prompt.model, request.only
        bound = bool(only) or request.session is not None
        barred = NOBODY if only else request.prompt.barred
        pool, _, workers = self._fleet.route(model, barred, in_session=bound)
        if pool is request.pool and request.made_as_now:
            request.workers = at(pool, model, only) if only else workers
        else:
            request.renew(await self._renew(request))
        if request.session is not None:
            await request.look(request.session)
        request.routed = True

    def _decide(self, request: InferenceRequest, *, called: bool) -> Awaitable[bool] | None:
        """Decide on a request; return its turn if it is to wait for that first.

        `called`: its turn has just come.
        """
        session, pool, prompt = request.session, request.pool, request.prompt
        home, only, wanted = None, request.only, request.workers
        if session is not None:
            home, stays, wanted = session.options(pool, prompt.model, wanted)
            only = stays or only
        bound = session is not None or bool(only)
        waits = self._waits(request, wanted, called=called, bound=bound)
        if waits:
            decision = self.ranking.among(pool, prompt, wanted, only)
        elif session is not None:
            request.prompt, decision, others = self.ranking.in_session(
                pool, prompt, session, home, request.workers
            )
        else:
            decision = self._ranked(request)
            waits = not (called or bound) and self.scheduler.holds(decision, request.wait)
            others = len(decision.candidates) < len(request.workers)
        if waits:
            return self.scheduler.turn(
                *(pool, prompt, decision, request.tenant),
                self._wait(request, in_vain=called),
                only=only,
                bound=bound,
                retries=request.retries,
            )
        metrics = self._metrics.pool(pool.name)
        request.decide(decision, metrics, others=others)
        if not (request.preemptions or request.refused):  # else it was counted already
            if session is None:  # a session's decision may change until a worker has accepted it
                metrics.decided(decision.reason)
            if pool.prompts.keyed:
                metrics.expected(decision.candidates[0].held_tokens, prompt.tokens)
            self._metrics.overhead.observe(monotonic() - request.started)
        return None

    def _waits(
        self, request: InferenceRequest, workers: Sequence[Worker], *, called: bool, bound: bool
    ) -> bool:
        """Return true if a request must wait, whatever is decided: for room, others or a retry.

        One whose turn has come goes before those that wait still.
        """
        if request.retries and not self.budget.allows(self.scheduler.in_flight):
            return True
        if called:
            return not self.scheduler.room(workers, bound=bound)
        return self.scheduler.must_wait(request.pool, workers, bound=bound)

    def _wait(self, request: InferenceRequest, *, in_vain: bool) -> Wait:
        """Return the waiting of a request. If it had its turn in vain, it goes first now."""
        if request.wait is None:
            request.wait = self.scheduler.wait(request.started)
        if in_vain:
            request.wait.first = request.wait.called = True
        return request.wait

    def _queue_again(self, request: InferenceRequest) -> None:
        """Begin the waiting of a request that was taken back from its worker."""
        before, request.wait = request.wait, self.scheduler.wait(request.started)
        request.wait.queued, request.wait.called = before is not None and before.queued, True
        request.taken_back = False

    def _ranked(self, request: InferenceRequest) -> Decision:
        """Rank the workers; not the one that it was just moved away from, if others have room."""
        pool, prompt, workers = request.pool, request.prompt, request.workers
        others = request.elsewhere(workers) if request.away is not None else ()
        decision = self.ranking.with_room(pool, prompt, others) if others else None
        return decision or self.ranking.among(pool, prompt, workers, request.only)

    def _rank(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision:
        return self.ranking.rank(pool, prompt, workers)

    # The candidates of a decision.

    def _next(self, request: InferenceRequest) -> Lease | None:
        """Book a request on its next candidate; return None if it is to be decided again.

        A refused connection costs nothing, as nothing was sent. A worker that is full, or lacks
        what others may have, counts as asked: at most `limits.attempts` are asked, each after the
        first out of the retry budget. One that has no room any more counts as full, but is not
        asked. Raise APIError if the request may go nowhere else.
        """
        attempts, candidates = request.attempts, request.decision.candidates
        left = attempts.left
        if attempts.final:
            raise attempts.take_error()
        budget: RetryBudget | None = None
        lease: Lease | None = None
        if left and (attempts.asked or request.retries):
            if not self.budget.take(self.scheduler.in_flight):
                self._exhaust(request, denied=True)
                return None
            budget = self.budget
        try:
            while left and lease is None:
                first = len(left) == len(candidates)
                choice = candidates[left.pop(0 if first else self._awake(candidates, left))]
                worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
                if not _is_there(request, worker):
                    continue  # others may have been asked for long
                if not first and self._fills(request, worker):
                    attempts.full = True
                    continue
                stays = first and request.decision.stays
                others = bool(left) and not stays and attempts.asked + 1 < self._attempts
                lease = Lease(
                    *(request, worker, choice, self.scheduler, self.preempting),
                    others=others,
                    retries=budget,
                )
        finally:
            if budget is not None and lease is None:
                budget.give_back()
        if lease is None:
            self._exhaust(request, denied=False)
        return lease

    def _exhaust(self, request: InferenceRequest, *, denied: bool) -> None:
        """Have a request decided again that no candidate has answered; raise APIError if it may
        not be.

        It may if it can wait, and all that were asked are full or a retry was `denied`. It also may
        if no worker was asked, and others had no room at the time of the decision.
        """
        attempts = request.attempts
        waits = self.budget.least > 0 if denied else attempts.full
        if waits and self.scheduler.may_wait(bound=request.bound):
            if request.wait is not None and monotonic() >= request.wait.deadline:
                raise Overrun
            request.refused, request.retries = True, denied
        elif not (attempts.others and attempts.reached_none):
            self.budget.denied += denied
            raise attempts.take_error()
        if request.refused:  # its time runs from now on, even if there seems to be room for it
            self._wait(request, in_vain=True)

    def _fills(self, request: InferenceRequest, worker: Worker) -> bool:
        """Return true if a worker has no room any more, by now, for a request that may wait.

        Not after a worker has failed that was sent it: decided again, it could go back there.
        """
        attempts = request.attempts
        if not (attempts.full or attempts.reached_none) or self.scheduler.room([worker]):
            return False
        return self.scheduler.may_wait(bound=request.bound)

    def _awake(self, candidates: Sequence[Candidate], left: Sequence[int]) -> int:
        """Return the index in `left` of the first candidate that has not just said it is full."""
        rests = self.scheduler.rests
        if not rests:
            return 0
        workers = [candidates[place].worker for place in left]
        awake = rests.awake(workers, monotonic())
        return next(place for place, worker in enumerate(workers) if worker in awake)


def _is_there(request: InferenceRequest, worker: Worker) -> bool:
    """Return true if a candidate may still be asked: it may be down, or on a retry ejected, now."""
    retry = request.attempts.error is not None
    return worker.there and (not retry or request.pool.breakers.admits(monotonic(), worker))


class Ranker:
    """Ranks the workers that have room for a request. One instance for the whole router."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def with_room(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision | None:
        """Rank the workers with room, for a request that waits; None if none has room."""
        able = self._scheduler.room(workers)
        return self.rank(pool, prompt, able) if able else None

    def among(
        self, pool: Pool, prompt: Prompt, workers: Sequence[Worker], only: str = ""
    ) -> Decision:
        """Rank the workers with room, or all if none has any, for a request that is to wait.

        `only`: just one will do, as it has the response that the request goes on from.
        """
        able = self._scheduler.room(workers, bound=bool(only)) or workers
        decision = self.rank(pool, prompt, able)
        return replace(decision, reason="response", stays=True) if only else decision

    def in_session(
        self,
        pool: Pool,
        prompt: Prompt,
        session: SessionUse,
        home: Worker | None,
        workers: Sequence[Worker],
        *,
        stays: bool = False,
    ) -> tuple[Prompt, Decision, bool]:
        """Do as `among` for a session's request, whose worker is `home`; if it `stays`, room or no.

        Returns also the prompt with that worker, and whether some workers had no room.
        """
        if home is not None and home not in workers:
            workers = [home, *workers]  # its worker is draining or ejected
        bound = replace(prompt, bound=session.place(pool))
        able = self._scheduler.room(workers, bound=True) or workers
        if stays and home is not None and home not in able:
            able = [home, *able]
        decision = session.named(self.rank(pool, bound, able), workers)
        return bound, decision, len(decision.candidates) < len(workers)

    def rank(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision:
        """Rank `workers`; those whose latest answers were bad come last."""
        rests, outliers, now = self._scheduler.rests, pool.outliers, monotonic()
        # A session's worker is not put last for being full: only it holds the session's prefix.
        awake = rests.awake(workers, now) if rests and not prompt.bound else workers
        if outliers and not prompt.bound:
            awake = outliers.first(prompt.path, awake)
        if len(awake) == len(workers):
            return pool.strategy.rank(prompt, workers, now)
        # The strategy reads from its latest ranking how busy the fleet is, so rank the resting
        # workers first.
        first = set(awake)
        others = [worker for worker in workers if worker not in first]
        last = pool.strategy.rank(prompt, others, now)
        decision = pool.strategy.rank(prompt, awake, now)
        candidates = [*decision.candidates, *last.candidates]
        return Decision(candidates, decision.reason, aside=len(others), drawn=decision.drawn)
