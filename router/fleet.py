"""The workers, the pools they stand in, and which pool answers for a model."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import count
from math import inf
from time import monotonic
from typing import Any, Protocol

import pygtrie

from router.breaker import Breaker, Ejection
from router.ejection import Breakers
from router.errors import BadRequest, NoWorker, UnknownModel
from router.prompts import Prompts
from router.sessions.sessions import Sessions
from router.upstream import Upstream
from strategies.base import Candidate, Outcome, Prompt, Strategy
from strategies.load import Booking, Load
from strategies.pace import Curve, Pace

log = logging.getLogger("warmroute.fleet")

#: Counts choices, of all pools: a worker may move from one to another.
_turns = count(1)


class State(Enum):
    """What is known of a worker."""

    UNKNOWN = "unknown"
    """Not heard from since the start."""
    READY = "ready"
    DOWN = "down"


class Worker:
    """One vLLM engine behind one URL."""

    def __init__(
        self,
        name: str,
        url: str,
        upstream: Upstream,
        *,
        models: Sequence[str] = (),
        kv_tokens: int | None = None,
        api_key: str | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.host = url.partition("://")[2].encode()
        self.upstream = upstream
        self.models: dict[str, dict[str, Any]] = {}
        """What `/v1/models` says of each, by name."""
        self.kv_tokens: int | None = None
        self.stateful = self.draining = False
        self.fixed_models = self.fixed_kv_tokens = False
        """The settings tell; the worker is not asked."""
        self.discovered_at = -inf
        """When it was asked last, on the loop's clock."""
        self.change(models=models, kv_tokens=kv_tokens, api_key=api_key)
        self.load = Load()
        self.pace = Pace()
        self.breaker = Breaker(name)
        self.label = name.encode()
        self.state = State.UNKNOWN
        self.reason = "not yet probed"
        self.ready = False
        """It can be sent requests."""

        self.takes_ids = False
        """It can be sent a chat's token ids along, and counts as we do."""
        self.attention = asyncio.Event()
        """Set when it should be probed at once."""

    def change(
        self,
        *,
        models: Sequence[str] = (),
        kv_tokens: int | None = None,
        api_key: str | None = None,
        stateful: bool = False,
        draining: bool = False,
    ) -> None:
        """Other settings, for the requests to come.

        What is not told any more is asked for at the next probe. An empty `api_key` stands for
        none, and the client's is kept back too; with None the client's passes.
        """
        self.stateful, self.draining = stateful, draining
        self.api_key = None if api_key is None else api_key.encode()
        if (self.fixed_models and not models) or (self.fixed_kv_tokens and kv_tokens is None):
            self.discovered_at = -inf
        if models:  # else those it had stay until it is asked
            self.models = {name: _described(name) for name in models}
        if kv_tokens is not None or self.fixed_kv_tokens:
            self.kv_tokens = kv_tokens
        self.fixed_models = bool(models)
        self.fixed_kv_tokens = kv_tokens is not None

    def reach(self, upstream: Upstream) -> None:
        """Ask it by other connections; what is under way ends on those it is on."""
        self.upstream.close()
        self.upstream = upstream

    def leave(self) -> None:
        """It is not in the settings any more: what is under way there ends, nothing begins."""
        self.become(State.DOWN, "not in the settings any more")
        self.upstream.close()

    def become(self, state: State, reason: str) -> None:
        """Another state, and why."""
        self.state, self.reason = state, reason
        self.ready = state is State.READY

    @property
    def room_tokens(self) -> int | None:
        """Tokens that the requests running there may take: what it says it holds on its GPU."""
        return self.kv_tokens

    def wait(self) -> float:
        """Seconds of prefill booked on it and not yet done."""
        return self.load.wait(monotonic())

    def lost(self, reason: str) -> None:
        """It could not be reached: send it nothing until a probe succeeds, and probe now."""
        self.become(State.DOWN, reason)
        self.upstream.doubt()
        self.attention.set()

    def __repr__(self) -> str:
        return f"<Worker {self.name} {self.state.name} {self.load!r} {self.pace!r}>"


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
            log.exception("pool %s: a fault of its strategy", self.name)

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


class Fleet:
    """All pools, found by model name."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._tells: Telling | None = None
        self.replace(pools)

    def replace(self, pools: Sequence[Pool]) -> None:
        """Take these pools in place of those before."""
        self.pools = tuple(pools)
        self._patterns = pygtrie.CharTrie()
        for pool in pools:
            for pattern in pool.models:
                self._patterns[_trie_key(pattern)] = pool
        # Names that were answered for: no longer than the list of models that workers serve.
        self._routes: dict[str, Pool] = {}
        self.share(self._tells)

    def share(self, tells: Telling | None) -> None:
        """Tell other processes what is sent, from now on and from all pools that come."""
        self._tells = tells
        for pool in self.pools:
            pool.tells = tells if pool.reads_load else None

    @property
    def workers(self) -> Iterator[Worker]:
        """Every worker of every pool."""
        return (worker for pool in self.pools for worker in pool.workers)

    def route(
        self, model: str | None, *, in_session: bool = False
    ) -> tuple[Pool, str, list[Worker]]:
        """Return the pool, the model's name and the workers that could answer for it.

        Without a name it is the only model there is, as vLLM has it. `in_session` as in
        `Pool.eligible`. Raises BadRequest, UnknownModel, NoWorker.
        """
        if not model:
            model = self._only_model()
        pool = self._routes.get(model) or self._pool(model)
        if pool is None:
            raise UnknownModel(model)
        workers = pool.eligible(model, in_session=in_session)
        self._routes[model] = pool
        return pool, model, workers

    def restarted(self, worker: Worker) -> None:
        """Most likely it was restarted: what it held is gone."""
        for pool in self.pools:
            if worker in pool.workers:
                pool.forget(worker)

    def models(self) -> dict[str, Mapping[str, Any]]:
        """Every model that could be asked for, as a worker describes it, by name."""
        return {
            name: description
            for pool in self.pools
            for worker in pool.workers
            for name, description in worker.models.items()
            if self._pool(name) is pool
        }

    def answers_for(self, model: str, pool: Pool) -> bool:
        """Whether requests for that model go to that pool."""
        return self._pool(model) is pool

    def _pool(self, model: str) -> Pool | None:
        """Return the pool of the longest pattern that fits."""
        found = self._patterns.longest_prefix(model + _END)
        return found.value if found else None

    def _only_model(self) -> str:
        models = {model for worker in self.workers for model in worker.models}
        if len(models) == 1:
            return models.pop()
        if not models:
            raise NoWorker("No worker is ready; please try again.")
        raise BadRequest(
            "The field `model` is missing, and this server has several models.", param="model"
        )


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "warmroute"}


#: Follows the name of a model in the trie: so an exact pattern is longer than any wildcard's.
_END = "\0"


def _trie_key(pattern: str) -> str:
    return pattern[:-1] if pattern.endswith("*") else pattern + _END
