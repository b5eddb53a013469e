"""Decides on requests that are not sent, as the router would now."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from router.api.endpoints import Endpoint, Prompted
from router.api.errors import APIError, Headers
from router.api.request import Request
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.eligibility import fitted, left_out, unable, within
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.prompt.executor import MAX_LOOP_EXPLAINED_BYTES, PromptExecutor
from router.prompt.salts import Salts, give
from router.proxy.limits import refuse_engine_fields
from router.proxy.parse import RequestReader
from router.sessions.ids import Names
from router.sessions.use import SessionUse
from router.settings.model import Settings
from strategies.api import Decision, Prompt
from strategies.explain import LeftOut, Rejection, Waits

T = TypeVar("T")


class Question(NamedTuple):
    """A request to explain."""

    path: str
    """Of the endpoint that it is meant for."""
    body: bytes
    headers: Headers
    """Those that may name its session or its prefix."""
    key: str = ""
    """Names the key that it would come with, if keys have caches of their own."""
    asker: str = ""
    """Names the key of the caller."""


class Forecast(NamedTuple):
    """What would be decided on a request that came now."""

    prompt: Prompt
    decision: Decision
    waits: Waits
    """What it would wait for first."""
    left_out: Sequence[LeftOut]
    refused: Rejection | None
    """What it would get instead, if it found no place to wait at."""
    sessionless: bool
    """It names a session, but its pool keeps none and ignores that."""


def refusal(error: APIError) -> Rejection:
    """Return what a client would be told."""
    return Rejection(error.status, error.code, error.message)


class DryRun:
    """What would be decided. It books nothing, and counts nothing."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        parsing: RequestReader,
        tokenizing: PromptExecutor,
    ) -> None:
        self._scheduler = dispatcher.scheduler
        self._ranking = dispatcher.ranking
        self._parsing = parsing
        self._tokenizing = tokenizing

    def change(self, settings: Settings) -> None:
        """Decide by other settings from now on."""
        self._salts = Salts(settings)
        self._operated = bool(settings.admin.keys)
        self._steering = settings.steering
        self._names = Names.of(settings.session)

    def as_from(self, endpoint: Endpoint, request: Request, question: Question) -> None:
        """Check `request`, and give it what its header and its API key would. Raises BadRequest."""
        self._parsing.check(endpoint, request, question.headers)
        salt = self._salts.by_name.get(self._salts.meant(question.key, question.asker))
        if salt is not None:
            give(endpoint, request, salt)

    async def only(self, endpoint: Endpoint, request: Request, question: Question) -> str:
        """Return the name of the only worker that can answer; empty if that is not so.

        It has the response that the request goes on from. Raises LostPrevious, NoWorker.
        """
        if endpoint.prompted is not Prompted.RESPONSES:
            return ""
        anyone = self._operated and not question.key
        return await self._parsing.only(request, None if anyone else question.key or question.asker)

    async def apart(self, question: Question, work: Callable[[], T]) -> T:
        """Do something with its body, in a thread if it is large. Raises what that raises."""
        if len(question.body) <= MAX_LOOP_EXPLAINED_BYTES:
            return work()
        return await self._tokenizing.reading.run(work, len(question.body), question.asker)

    async def foresee(
        self, pool: Pool, endpoint: Endpoint, request: Request, question: Question
    ) -> Prompt:
        """Make the prompt of a request that is not sent; count it nowhere. Raises BadRequest."""
        key = question.key if self._operated else question.asker
        if not pool.engine_fields and key not in self._steering:
            refuse_engine_fields(request)
        body = question.body
        made = await self._tokenizing.uncounted(pool.prompts, endpoint, request, body)
        prompt = fitted(pool, endpoint, request, made.prompt, body)
        able = [worker for worker in pool.workers if prompt.model in worker.models]
        return within(prompt, [worker for worker in able if worker.name not in prompt.barred], body)

    def would(
        self,
        pool: Pool,
        prompt: Prompt,
        workers: Sequence[Worker],
        session: SessionUse | None,
        question: Question,
        *,
        only: str,
    ) -> Forecast:
        """Decide as if the prompt came now with that key, for the session of `session`.

        `only` names the only worker that will do, if it has a response that this goes on from. An
        operator who names no key asks of one with nothing in the queue.

        Raises NoWorker, SessionLost.
        """
        scheduler, model = self._scheduler, prompt.model
        if session is None:
            queues = scheduler.must_wait(pool, workers, bound=bool(only))
            decision = self._ranking.among(pool, prompt, workers, only)
        else:
            home, stays, wanted = session.options(pool, model, workers)
            only = only or stays
            queues = scheduler.must_wait(pool, wanted, bound=True)
            decide = self._ranking.in_session
            prompt, decision, _ = decide(pool, prompt, session, home, workers, stays=bool(only))
            session.going(decision.candidates[0].worker.name, pool, model)
        tenant = question.key if self._operated else question.asker
        full = scheduler.turned_away(pool, prompt, tenant, only) if queues else None
        waits: Waits = "place" if queues and full is None else ""
        if not (queues or only) and session is None and scheduler.holds(decision):
            waits = "held"
        others = left_out(pool, prompt, decision, self._scheduler.max_in_flight)
        refused = None if full is None else refusal(full)
        ignored = pool.sessions is None and self._names.any(question.headers, question.body)
        return Forecast(prompt, decision, waits, others, refused, ignored)

    def unable(self, pool: Pool, prompt: Prompt) -> Sequence[LeftOut]:
        """Return the workers that could not take the request now, and why."""
        return unable(pool, prompt, self._scheduler.max_in_flight)
