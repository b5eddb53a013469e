"""Workers that answer for the same models, and the strategy that chooses among them."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import Any, Protocol

from router.api.errors import NoWorker, UnknownModel
from router.fleet.breaker import Breakers
from router.fleet.outliers import Outliers
from router.fleet.worker import ProbeState, Worker
from router.prompt.prompts import Prompts
from router.settings.fleet import EjectionSettings
from strategies.api import NOBODY, Candidate, KvSources, Outcome, Prompt, Strategy, nothing
from strategies.cost.load import Booking
from strategies.cost.preemption import computes_from
from strategies.cost.prefill import Curve

log = logging.getLogger("warmroute.fleet")

#: Numbers the choices of all pools together, because a worker may move from one pool to another.
_turns = count(1)


class Peers(Protocol):
    """Tells the router's other processes about requests that this one sends."""

    def booked(
        self,
        pool: "Pool",
        prompt: Prompt,
        choice: Candidate,
        now: float,
        booking: Booking | None = None,
    ) -> int:
        """Tell that a request is being sent; return its number for the calls below.

        With its `booking`, the others may ask that it gives way, as long as that says so.
        """

    def give_way(self, bookings: Sequence[Booking], first: int) -> None:
        """Ask the processes that sent these requests to take them back.

        They give way to the one with the number `first`.
        """

    def began(self, number: int, now: float) -> None:
        """Tell that its prompt is computed."""

    def ended(self, number: int, outcome: Outcome, now: float) -> None:
        """Tell that it has ended; called exactly once for each booking."""


Consult = Callable[[Prompt, Sequence[str]], Awaitable[None]]


class Pool:
    """Workers that answer for the same models, and the strategy that chooses among them."""

    def __init__(
        self, name: str, models: Sequence[str], workers: Sequence[Worker], strategy: Strategy
    ) -> None:
        self.name = name
        self.models = tuple(models)
        self.strategy = strategy
        self.sessions: Any = None
        """The sessions of its clients, if its strategy keeps any; given by `sessions/attach.py`."""
        self.curve = Curve()
        """The part of pace that all its workers share."""
        self.outliers = Outliers()
        """Which of its workers answer badly."""
        self._staff(workers)
        self.capabilities = strategy.capabilities
        """What its strategy looks at."""
        self.kv: KvSources | None = strategy.kv
        """Where its strategy learns what workers hold, if it looks prompts up among KV events."""
        self.prompts = Prompts(keyed=self.capabilities.reads_prompt)
        self.tells: Peers | None = None
        """Tells the router's other processes, if there are any and they want to know."""
        self.consult: Consult | None = None
        """Asks a remote controller or a shared store about a prompt before the decision."""
        self.sought_at = -inf
        """When its workers were last asked for a model that none was known to have."""
        self._ejection = EjectionSettings()
        self.outliers.failures = self._ejection.failures
        self.breakers = Breakers(self._ejection, self.workers, self._tell)

    def _staff(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        for worker in workers:
            worker.pace.curve = self.curve
        self.outliers.follow(workers)
        self.taking = tuple(worker for worker in workers if not worker.draining)
        """Workers that get new requests: those not draining."""
        self.compare()
        self.named = {worker.name: worker for worker in workers}
        self.stateful = any(worker.stateful for worker in workers)
        """Whether any of its workers keeps sessions itself."""
        self.engine_fields = all(worker.engine_fields for worker in workers)
        """Whether any client may tell its workers what engines tell each other."""

    def change(self, models: Sequence[str], workers: Sequence[Worker]) -> None:
        """Use other workers from the next request on; the strategy forgets those that left."""
        left = set(self.workers).difference(workers)
        self.models = tuple(models)
        self._staff(workers)
        for worker in left:
            self.forget(worker)
        self.eject(self._ejection)

    def compare(self) -> None:
        """Note whether its workers can do different things; call it when one has told anew."""
        described = [worker for worker in self.workers if worker.models]
        limits = {limit for worker in described for limit in worker.limits}
        lacks = {worker.lacks for worker in described}
        self.uneven = len(limits) > 1 or len(lacks) > 1
        """Whether some of its workers may be unable to answer what others can (`abilities.py`)."""

    def lacks(self, worker: Worker, path: str) -> None:
        """Note that a worker of it does not serve an endpoint."""
        if path not in worker.lacks:
            worker.lacks |= {path}
            self.compare()

    def eject(self, settings: EjectionSettings) -> None:
        """Use other settings for the ejection of workers from now on."""
        self._ejection = settings
        self.outliers.failures = settings.failures
        self.breakers.change(settings, self.workers)

    def _tell(self, news: str) -> None:
        log.warning("pool %s: %s", self.name, news)

    def follow(self, before: "Pool") -> None:
        """Take over what the pool that this one replaces has learned and counted."""
        self.prompts.follow(before.prompts)
        self.curve = before.curve
        for worker in self.workers:
            worker.pace.curve = self.curve

    def forget(self, worker: Worker) -> None:
        """Tell the strategy that a worker left, or most likely was restarted."""
        try:
            self.strategy.forget(worker.name)
        except Exception:
            log.exception("pool %s: its strategy raised an error", self.name)

    def waits(self, prompt: Prompt) -> Callable[[], object]:
        """Tell the strategy that a request waits in the router.

        What this returns is to be called when it does not wait any more. Neither raises an error.
        """
        try:
            return partial(self._over, self.strategy.waits(prompt))
        except Exception:
            log.exception("pool %s: its strategy raised an error", self.name)
            return nothing

    def _over(self, over: Callable[[], object]) -> None:
        try:
            over()
        except Exception:
            log.exception("pool %s: its strategy raised an error", self.name)

    def eligible(
        self, model: str, barred: Mapping[str, str] = NOBODY, *, in_session: bool = False
    ) -> list[Worker]:
        """Return the workers that may answer for `model` now, but for those that are `barred`.

        If all of them are draining, return an empty list for `in_session`: they still serve the
        sessions and the responses that they have. Raises UnknownModel, NoWorker.
        """
        ready = [w for w in self.taking if w.ready and model in w.models]
        if barred:
            ready = [w for w in ready if w.name not in barred]
            if not (ready or (in_session and self.sessions)):
                raise NoWorker("No worker that can answer this is ready; please try again.")
        if ready:
            return self.breakers.admitted(monotonic(), ready) if self.breakers.any_open else ready
        if in_session and any(self.serves(w, model) for w in self.workers):
            return []
        # A worker that was never reached may serve the model: the client should try again.
        if any(model in w.models or not (w.ready or w.models) for w in self.workers):
            able = [w for w in self.taking if model in w.models]
            asleep = able and all(w.state is ProbeState.ASLEEP for w in able)
            raise NoWorker(
                f"Every worker that serves {model!r} is asleep; wake one, or try again later."
                if asleep
                else f"No worker that serves {model!r} is ready; please try again."
            )
        raise UnknownModel(model)

    @staticmethod
    def serves(worker: Worker, model: str) -> bool:
        """Whether a worker is there and has `model`; an empty name fits every worker."""
        return worker.there and (not model or model in worker.models)

    def book(
        self,
        prompt: Prompt,
        choice: Candidate,
        now: float,
        *,
        elsewhere: bool = False,
        since: float | None = None,
    ) -> Booking:
        """Charge `prompt` to the chosen worker; release the booking with `worker.load.release`.

        `elsewhere`: it is sent by another process of the router. `since`: when it came, if it may
        be preempted. Raises ValueError for a prediction that is no time, or what the strategy
        raises.
        """
        worker, prefill_s = choice.worker, choice.cost.prefill
        if not 0.0 <= prefill_s < inf:  # by a third-party strategy; it would never be worked off
            raise ValueError(f"pool {self.name}: no strategy may predict {prefill_s} s of prefill")
        load = worker.load
        load.turn = next(_turns)
        booking = load.book(
            now,
            prefill_s,
            prompt.tokens + prompt.answer_tokens,
            uncached=prompt.tokens - choice.held_tokens + choice.loading.tokens,
            stream=prompt.stream,
            elsewhere=elsewhere,
            since=since,
        )
        computes_from(booking, prompt, choice)
        try:
            if not elsewhere or self.capabilities.hears_others:
                self.strategy.placed(prompt, worker, now)
        except BaseException:
            load.release(booking, now)
            raise
        return booking
