"""One inference request from first byte to last.

    parse → prompt → wait → rank → ask (`failover.py`)

A client that disconnects cancels the task that serves it, at whatever step that is. As the task
unwinds, it closes the connection to the worker, which makes the worker stop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeVar

from router.api.endpoints import Endpoint
from router.api.error_shapes import error_event
from router.api.errors import DoorError, Stopping
from router.dispatch.dry_run import Foreseeing
from router.dispatch.preemption import Preempted, Rescue
from router.dispatch.ranking import Deciding
from router.dispatch.request import Job, Plea
from router.dispatch.retry import Budget
from router.dispatch.scheduler import Scheduler
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.http.exchange import Exchange
from router.http.sse import Comments
from router.observe.access_log import log, log_refusal
from router.observe.metrics import Metrics
from router.prompt.executor import LARGE, Tokenizing
from router.proxy.attempt import CLIENT_LEFT, Elsewhere
from router.proxy.failover import Failover
from router.proxy.parse import Parsing, holds
from router.proxy.relay import CutShort
from router.responses.owners import Responses, at
from router.sessions.use import Visit
from router.settings.model import Settings
from strategies.api import NOBODY, Decision, Prompt
from strategies.cost.booking import Booking
from strategies.hold.queue import Wait

T = TypeVar("T")


class Proxy:
    """Serves requests to all inference endpoints."""

    def __init__(self, fleet: Fleet, metrics: Metrics, settings: Settings) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._budget = Budget(settings.limits.retries)
        self._scheduler = Scheduler(settings, self._budget, self._rank)
        self._deciding = Deciding(self._scheduler)
        self.responses = Responses(fleet)
        """Which worker has which response."""
        self._failover = Failover(self._scheduler, self._budget, self.responses)
        self._tokenizing = Tokenizing()
        self.large_ended = 0
        """Requests with large bodies that have ended."""
        self._parsing = Parsing(fleet, self._tokenizing, self.responses)
        self.foreseeing = Foreseeing(
            self._scheduler, self._deciding, self._parsing, self._tokenizing
        )
        """What would be decided on requests that are not sent."""
        preempting = self._failover.preempting
        self._rescue = Rescue(preempting, self._with_room)
        metrics.watch(self._scheduler, self._budget, lambda: preempting.count)
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Apply other settings to requests from now on."""
        self._parsing.change(settings.limits)
        self.responses.change(settings)
        self.foreseeing.change(settings)
        self._budget.change(settings.limits.retries)
        self._scheduler.change(settings, self._fleet)
        self._failover.change(settings)
        self._comment = settings.timeouts.comment
        self._log_requests = settings.logs.requests

    async def serve(
        self,
        endpoint: Endpoint,
        exchange: Exchange,
        relays: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Answer one request. Raises nothing that a client or a worker could have caused.

        `relays`, if given, does it for one that needs no decision.
        """
        exchange.served = True
        self._scheduler.in_flight += 1
        try:
            if relays is None:
                await self._begin(endpoint, exchange)
            else:
                await relays()
        except DoorError as error:
            self.refused(exchange, error.status, error.message)
            _answer(endpoint, exchange, error)
        except CutShort:
            exchange.cut()  # no effect if an error event has ended the stream
        except asyncio.CancelledError:
            if not exchange.left:
                self._stopped(endpoint, exchange)
            elif not exchange.asked:
                self.refused(exchange, CLIENT_LEFT, "the client left")
        except Exception:  # noqa: BLE001 - our own bug: answer with the endpoint's error format
            log.exception("internal error, id=%s", exchange.identity.decode())
            _answer(endpoint, exchange, DoorError("Internal error in the router."))
        finally:
            self.large_ended += len(exchange.body) > LARGE
            self._scheduler.in_flight -= 1
            exchange.cut()  # no effect if it has ended

    async def _begin(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Serve a request; if it fails, undo the session that it would have opened."""
        failure: BaseException | None = None
        try:
            await self._serve(endpoint, exchange)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised below
            failure = error
        if failure is None:
            return
        try:
            await exchange.undo()
            raise failure
        finally:
            failure = None  # breaks the reference cycle: traceback, this frame, exception

    async def _serve(self, endpoint: Endpoint, exchange: Exchange) -> None:
        plea = await self._parsing.read(endpoint, exchange)
        if plea.visit is not None:  # before a comment starts the answer, with status 200
            await self._look(plea, plea.visit, plea.workers)
        if self._comment is not None and plea.streams:
            with Comments(exchange, self._comment):
                await self._ask(plea)
        else:
            await self._ask(plea)

    async def _ask(self, plea: Plea) -> None:
        """Route, decide, and send, or wait and begin again, until a worker has answered."""
        workers, called = plea.workers, False
        while True:
            visit, pool, prompt = plea.visit, plea.pool, plea.prompt
            home, only, wanted = None, plea.only, workers
            if visit is not None:
                home, stays, wanted = visit.options(pool, prompt.model, workers)
                only = stays or only
            bound = visit is not None or bool(only)
            waits = self._waits(plea, wanted, called=called, bound=bound)
            if not waits and visit is None:
                decision = self._decide(plea, workers)
                waits = not (called or bound) and self._scheduler.holds(decision, plea.wait)
            elif waits:
                decision = self._deciding.among(pool, prompt, wanted, only)
            if waits:
                wait = self._wait(plea, in_vain=called)
                called = await self._scheduler.turn(
                    *(pool, prompt, decision, plea.exchange.tenant, wait),
                    only=only,
                    bound=bound,
                    retries=plea.retries,
                )
            else:
                called = False
                if visit is not None:
                    answered = await self._ask_bound(plea, visit, home, workers)
                else:
                    answered = await self._send(plea, decision, workers)
                if answered:
                    return
            plea, workers = await self._again(plea)
            if plea.visit is not None:
                await self._look(plea, plea.visit, workers)

    def _waits(self, plea: Plea, workers: Sequence[Worker], *, called: bool, bound: bool) -> bool:
        """Whether a request must wait, whatever is decided: for room, for others, or for a retry.

        One whose turn has come goes before those that wait still.
        """
        if plea.retries and not self._budget.allows(self._scheduler.in_flight):
            return True
        if called:
            return not self._scheduler.room(workers, bound=bound)
        return self._scheduler.must_wait(plea.pool, workers, bound=bound)

    def _wait(self, plea: Plea, *, in_vain: bool) -> Wait:
        """Return the waiting of a request. If it had its turn in vain, it goes first now."""
        if plea.wait is None:
            plea.wait = self._scheduler.wait(plea.started)
        if in_vain:
            plea.wait.first = plea.wait.called = True
        return plea.wait

    async def _send(self, plea: Plea, decision: Decision, workers: Sequence[Worker]) -> bool:
        """Send a request where it was decided to; False if it is to be decided again."""
        others = len(decision.candidates) < len(workers)
        job = self._decided(plea, plea.prompt, decision)
        preempted: Preempted | None = None
        answered = False
        try:
            answered = await self._failover.answer(job, others=others)
        except Preempted as error:
            preempted = error
        plea.refused, plea.retries = job.refused, job.retries
        if plea.refused:  # its time runs from now on, even if there seems to be room for it
            self._wait(plea, in_vain=True)
        if preempted is not None:
            preempted.note(plea)
            before, plea.wait = plea.wait, self._scheduler.wait(plea.started)
            plea.wait.queued, plea.wait.called = before is not None and before.queued, True
        return answered

    def _decide(self, plea: Plea, workers: Sequence[Worker]) -> Decision:
        """Rank the workers; not the one that it was just moved away from, if others have room."""
        pool, prompt = plea.pool, plea.prompt
        others = plea.elsewhere(workers) if plea.away is not None else ()
        decision = self._deciding.with_room(pool, prompt, others) if others else None
        return decision or self._deciding.among(pool, prompt, workers, plea.only)

    async def _look(self, plea: Plea, visit: Visit, workers: Sequence[Worker]) -> None:
        """Look for the session of a request; it has none if that is not where it must go.

        Only the worker that has a response can go on from it, so the session stays as it is.
        """
        await visit.look(plea.pool, workers)
        if not visit.may_be_at(plea.only):
            plea.visit = plea.exchange.session = None

    async def _ask_bound(
        self, plea: Plea, visit: Visit, home: Worker | None, workers: Sequence[Worker]
    ) -> bool:
        """Decide and ask; False if it must be decided again, and nothing was sent.

        That is so if the session was meanwhile bound elsewhere, or if every worker with room
        refused the connection.
        """
        bound, decision, others = self._deciding.in_session(
            plea.pool, plea.prompt, visit, home, workers
        )
        job = self._decided(plea, bound, decision)
        try:
            return await self._failover.answer(job, others=others)
        except Elsewhere:
            plea.exchange.asked = False
            return False
        except BaseException:
            if not visit.told:
                job.metrics.decided(job.reason if visit.counted else decision.reason)
            raise

    async def _again(self, plea: Plea) -> tuple[Plea, Sequence[Worker]]:
        """Route again after a wait; parse again if pool or tokenizer have changed meanwhile."""
        model, only = plea.prompt.model, plea.only
        bound = bool(only) or plea.visit is not None
        barred = NOBODY if only else plea.prompt.barred
        pool, _, workers = self._fleet.route(model, barred, in_session=bound)
        if pool is plea.pool and holds(plea):
            return plea, at(pool, model, only) if only else workers
        plea = await self._parsing.read_again(plea)
        return plea, plea.workers

    def _rank(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision:
        return self._deciding.rank(pool, prompt, workers)

    def _with_room(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision | None:
        return self._deciding.with_room(pool, prompt, workers)

    def _decided(self, plea: Plea, prompt: Prompt, decision: Decision) -> Job:
        pool = plea.pool
        metrics = self._metrics.pool(pool.name)
        if plea.preemptions or plea.refused:  # it was counted already
            return Job(plea, prompt, decision, metrics)
        if plea.visit is None:  # a session's decision may change until a worker has accepted it
            metrics.decided(decision.reason)
        if pool.prompts.keyed:
            metrics.expected(decision.candidates[0].held_tokens, prompt.tokens)
        self._metrics.overhead.observe(monotonic() - plea.started)
        return Job(plea, prompt, decision, metrics)

    def freed_elsewhere(self) -> None:
        """Look at what waits: in another router process, a prefill or an answer has ended."""
        self._scheduler.freed()

    def gives_way(self, booking: Booking) -> None:
        """Preempt a request for one of another process of this router, if it is not too late."""
        self._failover.preempting.give_way(booking)

    async def apart(self, size: int, tenant: str, work: Callable[[], T]) -> T:
        """Do something with a body of `size` bytes, in a thread if it is large. Raises what that
        raises."""
        return work() if size <= LARGE else await self._tokenizing.reading.run(work, size, tenant)

    def close(self) -> None:
        """Start no more tokenizing."""
        self._tokenizing.close()

    def _stopped(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Answer a request whose task the stopping server has cancelled."""
        if not exchange.started or exchange.commented:
            error = Stopping()
            self.refused(exchange, error.status, error.message)
            _answer(endpoint, exchange, error)

    def refused(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """Count and log an answer that came from the router itself."""
        self._metrics.refused(status)
        if self._log_requests and exchange is not None:
            log_refusal(exchange, status, reason)


def _answer(endpoint: Endpoint, exchange: Exchange, error: DoorError) -> None:
    """Send `error` to the client, if the state of the answer still allows it."""
    if exchange.commented:
        exchange.fail(error_event(endpoint.path, error, exchange.identity), error.message)
    elif not exchange.started:
        exchange.refuse(error)
