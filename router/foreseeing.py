"""Decides on requests that are not sent, as the router would now (`explain.py`)."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar

from router.admission import Admission
from router.deciding import Deciding
from router.explain import Foreseen, Question, refusal
from router.holding import Holding
from router.left_out import left_out, unable
from router.lengths import within
from router.openai import Endpoint, Request
from router.parsing import Parsing
from router.pool import Pool
from router.salts import Salts
from router.sessions.visit import Visit
from router.settings import Settings
from router.tokenizing import SMALL, Tokenizing
from router.worker import Worker
from strategies.base import Prompt
from strategies.explain import LeftOut, Waits
from strategies.latebinding import why_held

T = TypeVar("T")


class Foreseeing:
    """What would be decided. It books nothing, and counts nothing."""

    def __init__(
        self,
        admission: Admission,
        holding: Holding,
        deciding: Deciding,
        parsing: Parsing,
        tokenizing: Tokenizing,
    ) -> None:
        self._admission = admission
        self._holding = holding
        self._deciding = deciding
        self._parsing = parsing
        self._tokenizing = tokenizing

    def change(self, settings: Settings) -> None:
        """Decide by other settings from now on."""
        self._salts = Salts(settings)
        self._operated = bool(settings.admin.keys)
        self._names = settings.session.names

    def as_from(self, endpoint: Endpoint, request: Request, asked: Question) -> None:
        """Check `request`, and give it what its header and its API key would. Raises BadRequest."""
        self._parsing.check(endpoint, request, asked.headers)
        self._salts.give(endpoint, request, self._salts.meant(asked.key, asked.asker))

    async def apart(self, asked: Question, work: Callable[[], T]) -> T:
        """Do something with its body, in a thread if it is large. Raises what that raises."""
        if len(asked.body) <= SMALL:
            return work()
        return await self._tokenizing.reading.run(work, len(asked.body), asked.asker)

    async def foresee(
        self, pool: Pool, endpoint: Endpoint, request: Request, body: bytes
    ) -> Prompt:
        """Make the prompt of a request that is not sent; count it nowhere."""
        made = await self._tokenizing.uncounted(pool.prompts, endpoint, request, body)
        able = [worker for worker in pool.workers if made.prompt.model in worker.models]
        return within(made.prompt, able, body)

    def would(
        self,
        pool: Pool,
        prompt: Prompt,
        workers: Sequence[Worker],
        visit: Visit | None,
        asked: Question,
    ) -> Foreseen:
        """Decide as if the prompt came now with that key, for the session of `visit`.

        An operator who names no key asks of one with nothing in the queue.

        Raises NoWorker, SessionLost.
        """
        must_wait, model, only = self._admission.must_wait, prompt.model, ""
        if visit is None:
            queues = must_wait(pool, model, workers)
            decision = self._deciding.among(pool, prompt, workers)
        else:
            home, only, wanted = visit.options(pool, model, workers)
            queues = must_wait(pool, model, wanted, only)
            decide = self._deciding.in_session
            prompt, decision, _ = decide(pool, prompt, visit, home, workers, stays=bool(only))
            visit.going(decision.candidates[0].worker.name, pool, model)
        tenant = asked.key if self._operated else asked.asker
        full = self._admission.turned_away(pool, model, tenant, only) if queues else None
        waits: Waits = "place" if queues and full is None else ""
        if not queues and visit is None and self._holding.takes(prompt, decision):
            waits = why_held(prompt, decision, monotonic())
        others = left_out(pool, model, decision, self._admission.most)
        refused = None if full is None else refusal(full)
        ignored = pool.sessions is None and self._names.any(asked.headers, asked.body)
        return Foreseen(prompt, decision, waits, others, refused, ignored)

    def unable(self, pool: Pool, model: str) -> Sequence[LeftOut]:
        """Return the workers that could take no request for the model now, and why."""
        return unable(pool, model, self._admission.most)
