"""Workers that answer for the same models, and the strategy that chooses among them."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from time import monotonic
from typing import Protocol

from router.breaker import Ejection
from router.ejection import Breakers
from router.errors import NoWorker, UnknownModel
from router.prompts import Prompts
from router.sessions.sessions import Sessions
from router.worker import Worker
from strategies.base import Candidate, Outcome, Prompt, Strategy
from strategies.load import Booking
from strategies.pace import Curve

log = logging.getLogger("warmroute.fleet")

#: Counts choices, of all pools: a worker may move from one to another.
_turns = count(1)


class Telling(Protocol):
    """Tells the other processes of this router what is sent."""

    def booked(self, pool: "Pool", prompt: Prompt, choice: Candidate, now: float) -> int:
        """It is being sent; return the number by which to tell what comes of it."""

    def began(self, number: int, now: float) -> None:
        """Its prompt is computed."""

    def ended(self, number: int, outcome: Outcome, now: float) -> None:
        """It is over; once for each that was booked."""


Consult = Callable[[Prompt, Sequence[str]], Awaitable[None]]


class Pool:
    """Workers that answer for the same models, and the strategy that chooses among them."""

    def __init__(
        self, name: str, models: Sequence[str], workers: Sequence[Worker], strategy: Strategy
    ) -> None:
        self.name = name
        self.models = tuple(models)
        self.strategy = strategy
        self.sessions: Sessions | None = None
        """Those of its clients, if its strategy keeps them."""
        self.curve = Curve()
        """What its workers' speeds have in common."""
        self._staff(workers)
        self.chooser: Strategy = getattr(strategy, "over", strategy)
        """The strategy that compares workers: the one below, where sessions stand over another."""
        self.prompts = Prompts(keyed=getattr(self.chooser, "reads_prompt", True))
        self.reads_load: bool = getattr(self.chooser, "reads_load", True)
        """Its strategy looks at what is booked."""
        self.hears: bool = getattr(self.chooser, "hears_others", False)
        """Its strategy wants to know what other processes send."""
        self.tells: Telling | None = None
        """Tells the router's other processes, if there are any and they want to know."""
        self.consult: Consult | None = None
        """Asks about a prompt, elsewhere, before it is decided on."""
        self._ejection = Ejection()
        self.breakers = Breakers(self._ejection, self.workers, self._tell)

    def _staff(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        for worker in workers:
            worker.pace.follow(self.curve)
        self.taking = tuple(worker for worker in workers if not worker.draining)
        """Those that get new requests."""
        self.named = {worker.name: worker for worker in workers}
        self.stateful = any(worker.stateful for worker in workers)
        """Its workers keep sessions themselves."""

    def change(self, models: Sequence[str], workers: Sequence[Worker]) -> None:
        """Other workers from the next request on; the strategy forgets those who left."""
        left = set(self.workers).difference(workers)
        self.models = tuple(models)
        self._staff(workers)
        for worker in left:
            self.forget(worker)
        self.eject(self._ejection)

    def eject(self, settings: Ejection) -> None:
        """When and how long a worker is left out from now on."""
        self._ejection = settings
        self.breakers.change(settings, self.workers)

    def _tell(self, news: str) -> None:
        log.warning("pool %s: %s", self.name, news)

    def follow(self, before: "Pool") -> None:
        """Take the place of a pool that chose otherwise; what was learned stays."""
        self.prompts.bytes_per_token = before.prompts.bytes_per_token
        self.prompts.answer_tokens = before.prompts.answer_tokens
        self.curve = before.curve
        for worker in self.workers:
            worker.pace.follow(self.curve)

    def forget(self, worker: Worker) -> None:
        """It left, or was most likely restarted: the strategy is told."""
        try:
            self.strategy.forget(worker.name)
        except Exception:
            log.exception("pool %s: its strategy raised an error", self.name)

    def eligible(self, model: str, *, in_session: bool = False) -> list[Worker]:
        """Return who may answer for `model` now. Raises UnknownModel, NoWorker.

        Nobody, but only if `in_session`, where all that could are being drained: they keep the
        sessions that they have.
        """
        ready = [w for w in self.taking if w.ready and model in w.models]
        if ready:
            return self.breakers.admitted(monotonic(), ready) if self.breakers.any_open else ready
        if in_session and self.sessions and any(self.serves(w, model) for w in self.workers):
            return []
        # A worker that was never heard of may serve it: the client should try again.
        if any(model in w.models or not (w.ready or w.models) for w in self.workers):
            raise NoWorker(f"No worker that serves {model!r} is ready; please try again.")
        raise UnknownModel(model)

    @staticmethod
    def serves(worker: Worker, model: str) -> bool:
        """Whether it is there and has the model; any will do where none is named."""
        return worker.ready and (not model or model in worker.models)

    def book(
        self, prompt: Prompt, choice: Candidate, now: float, *, elsewhere: bool = False
    ) -> Booking:
        """Charge `prompt` to the chosen worker; its load releases the booking.

        `elsewhere`: another process of the router sends it.
        """
        worker = choice.worker
        load = worker.load
        load.turn = next(_turns)
        booking = load.book(
            now,
            choice.cost.prefill,
            prompt.tokens + prompt.answer_tokens,
            uncached=prompt.tokens - choice.held_tokens + choice.loading.tokens,
            stream=prompt.stream,
            elsewhere=elsewhere,
        )
        try:
            if self.hears or not elsewhere:
                self.strategy.placed(prompt, worker, now)
        except BaseException:
            load.release(booking, now)
            raise
        return booking
