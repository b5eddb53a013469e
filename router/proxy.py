"""One inference request from first byte to last.

    parse → prompt → wait → rank → ask (`failover.py`)

A client that disconnects cancels the task that serves it, at whatever step that is. As the task
unwinds, it closes the connection to the worker, which makes the worker stop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeVar

from router.admission import Admission, Wait
from router.attempt import CLIENT_LEFT, Elsewhere
from router.comments import Comments
from router.deciding import Deciding
from router.errors import DoorError, Stopping
from router.exchange import Exchange
from router.failover import Failover
from router.fleet import Fleet
from router.foreseeing import Foreseeing
from router.holding import Holding
from router.job import Job, Plea
from router.metrics import Metrics
from router.news import GiveWay
from router.openai import Endpoint
from router.parsing import Parsing, holds
from router.pool import Pool
from router.preempting import Preempted
from router.relay import CutShort
from router.request_log import log, log_refusal
from router.rescue import Rescue
from router.responses.where import Responses, at
from router.retries import Budget
from router.sessions.visit import Visit
from router.settings import Settings
from router.surfaces import event
from router.tokenizing import LARGE, Tokenizing
from router.vacancies import Crowded
from router.worker import Worker
from strategies.base import NOBODY, Decision, Prompt
from strategies.booking import Booking

T = TypeVar("T")


class Proxy:
    """Serves requests to all inference endpoints."""

    def __init__(self, fleet: Fleet, metrics: Metrics, settings: Settings) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._holding = Holding(self._with_room)
        self._admission = Admission(settings, self._holding.count)
        self._deciding = Deciding(self._admission)
        self._budget = Budget(settings.limits.retries)
        self.responses = Responses(fleet)
        """Which worker has which response."""
        waits = self._admission, self._holding, self._budget
        self._failover = Failover(*waits, self.responses)
        self._tokenizing = Tokenizing()
        self.large_ended = 0
        """Requests with large bodies that have ended."""
        self._parsing = Parsing(fleet, self._tokenizing, self.responses)
        self.foreseeing = Foreseeing(
            self._admission, self._holding, self._deciding, self._parsing, self._tokenizing
        )
        """What would be decided on requests that are not sent."""
        preempting = self._failover.preempting
        self._rescue = Rescue(preempting, self._with_room)
        vacancies = self._failover.vacancies
        watched = self._admission, self._budget, self._holding
        metrics.watch(*watched, lambda: preempting.count, vacancies)
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Apply other settings to requests from now on."""
        self._parsing.change(settings.limits)
        self.responses.change(settings)
        self.foreseeing.change(settings)
        self._budget.change(settings.limits.retries)
        self._admission.change(settings)
        self._admission.follow(self._fleet)
        self._failover.change(settings)
        self._comment = settings.timeouts.comment
        self._holding.limit = settings.limits.queue
        self._holding.let_go()
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
        self._admission.in_flight += 1
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
            self._admission.in_flight -= 1
            self._failover.vacancies.settled(exchange.identity)
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

    async def _ask(self, plea: Plea, wait: Wait | None = None) -> None:
        """Wait for room, decide, wait for a worker that is about to be free, and ask.

        `wait`: it has waited already.
        """
        if plea.visit is not None:
            await self._ask_in_session(plea, plea.visit, wait)
            return
        exchange, model, workers = plea.exchange, plea.prompt.model, plea.workers
        called, held, only = None, False, plea.only
        while True:
            pool = plea.pool
            if self._queues(plea, workers, only, had_turn=pool is called):
                wait = wait or self._admission.wait()
                barred = plea.prompt.barred
                await self._admission.turn(pool, model, exchange.tenant, wait, only, barred=barred)
            else:
                decision = self._decide(plea, workers)
                if held or only or not self._holding.takes(plea.prompt, decision):
                    others = len(decision.candidates) < len(workers)
                    job = self._decided(plea, plea.prompt, decision)
                    crowded = self._comes_after(plea, decision)
                    try:
                        if not crowded and await self._failover.answer(job, others=others):
                            return
                    except Preempted as preempted:
                        age = monotonic() - plea.started
                        wait, held = self._admission.wait_again(age), False
                        preempted.note(plea, wait.late)
                    except Crowded:
                        exchange.asked, crowded = False, True
                        plea.late = job.late
                        self._failover.vacancies.refused(exchange.identity)
                    if crowded:
                        held = False
                        wait = await self._crowded(plea) or wait
                else:
                    wait = wait or self._admission.wait()
                    tenant = exchange.tenant
                    held = await self._holding.turn(pool, plea.prompt, decision, tenant, wait)
            called = pool
            plea, workers = await self._again(plea)
            if plea.visit is not None:  # new settings have given its pool sessions
                await self._look(plea, plea.visit, workers)
                await self._ask(plea, wait)
                return

    def _comes_after(self, plea: Plea, decision: Decision) -> bool:
        """Whether it would go where another goes first: one that it gave way to, refused since."""
        if not self._failover.vacancies.goes_first(plea.behind):
            return False
        there = decision.candidates[0].worker is plea.last
        return there and asyncio.get_running_loop().time() < plea.late

    async def _crowded(self, plea: Plea) -> Wait | None:
        """Wait until a full worker may have room; return, the first time, what follows.

        It comes back as one that gave way does, even if that was another.
        """
        again, plea.crowded = plea.crowded, True
        turn = self._failover.vacancies.turn
        await turn(plea.prompt.model, plea.started, plea.late, plea.behind, again=again)
        return None if again else self._admission.wait_again(monotonic() - plea.started)

    def _decide(self, plea: Plea, workers: Sequence[Worker]) -> Decision:
        """Rank the workers; not the one that it was just moved away from, if others have room."""
        pool, prompt = plea.pool, plea.prompt
        others = plea.elsewhere(workers) if plea.away is not None else ()
        decision = self._deciding.with_room(pool, prompt, others) if others else None
        return decision or self._deciding.among(pool, prompt, workers, plea.only)

    def _queues(
        self, plea: Plea, workers: Sequence[Worker], only: str = "", *, had_turn: bool
    ) -> bool:
        """Whether a request must queue; those still there come after one that has had its turn.

        `only` is as in `Admission.must_wait`.
        """
        if had_turn:
            return not self._admission.room(workers)
        pool, prompt = plea.pool, plea.prompt
        return self._admission.must_wait(pool, prompt.model, workers, only, barred=prompt.barred)

    async def _ask_in_session(self, plea: Plea, visit: Visit, wait: Wait | None) -> None:
        """Do the same for a session's request; one that must stay waits for its own worker."""
        model, workers, exchange = plea.prompt.model, plea.workers, plea.exchange
        called = ("", "")
        while True:
            pool = plea.pool
            home, only, wanted = visit.options(pool, model, workers)
            only = only or plea.only
            line = (pool.name, only)
            if self._queues(plea, wanted, only, had_turn=line == called):
                wait = wait or self._admission.wait()
                barred = plea.prompt.barred
                await self._admission.turn(pool, model, exchange.tenant, wait, only, barred=barred)
                called = line
            elif await self._ask_bound(plea, visit, home, workers):
                return
            plea, workers = await self._again(plea)
            if plea.visit is not None:
                visit = plea.visit
                await self._look(plea, visit, workers)
            if plea.visit is None:
                await self._ask(plea, wait)
                return

    async def _look(self, plea: Plea, visit: Visit, workers: Sequence[Worker]) -> None:
        """Look for the session of a request; it has none if that is not where it must go.

        Only the worker that has a response can go on from it, so the session stays as it is.
        """
        await visit.look(plea.pool, workers)
        if not visit.may_be_at(plea.only):
            plea.visit = plea.exchange.part = None

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

    def _with_room(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision | None:
        return self._deciding.with_room(pool, prompt, workers)

    def _decided(self, plea: Plea, prompt: Prompt, decision: Decision) -> Job:
        pool = plea.pool
        metrics = self._metrics.pool(pool.name)
        if plea.preemptions or plea.crowded:  # it was counted already
            return Job(plea, prompt, decision, metrics)
        if plea.visit is None:  # a session's decision may change until a worker has accepted it
            metrics.decided(decision.reason)
        if pool.prompts.keyed:
            metrics.expected(decision.candidates[0].held_tokens, prompt.tokens)
        self._metrics.overhead.observe(monotonic() - plea.started)
        return Job(plea, prompt, decision, metrics)

    def freed_elsewhere(self) -> None:
        """Reconsider held requests: in another router process, a prefill or an answer has ended."""
        self._holding.freed_elsewhere()

    def gives_way(self, booking: Booking, news: GiveWay) -> None:
        """Preempt a request for one of another process of this router, if it is not too late."""
        if self._failover.preempting.give_way(booking, news.identity) and news.refused:
            self._failover.vacancies.refused(news.identity)

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
        exchange.fail(event(endpoint.path, error, exchange.identity), error.message)
    elif not exchange.started:
        exchange.refuse(error)
