"""The workers, the pools they stand in, and which pool answers for a model."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from time import monotonic
from typing import Any

import pygtrie

from router.errors import BadRequest, NoWorker, UnknownModel
from router.prompts import Prompts
from router.upstream import Upstream
from strategies.base import Candidate, Prompt, Strategy
from strategies.load import Booking, Load
from strategies.pace import Pace


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
        self.api_key = api_key.encode() if api_key else None
        self.fixed_models = bool(models)
        self.models = {name: _described(name) for name in models}
        """What `/v1/models` says of each, by name."""
        self.kv_tokens = kv_tokens
        self.fixed_kv_tokens = kv_tokens is not None
        self.load = Load()
        self.pace = Pace()
        self.label = name.encode()
        self.state = State.UNKNOWN
        self.reason = "not yet probed"
        self.ready = False
        """It can be sent requests."""

        self.attention = asyncio.Event()
        """Set when it should be probed at once."""

    def become(self, state: State, reason: str) -> None:
        """Another state, and why."""
        self.state, self.reason = state, reason
        self.ready = state is State.READY

    def wait(self) -> float:
        """Seconds of prefill booked on it and not yet done."""
        return self.load.wait(monotonic())

    def lost(self, reason: str) -> None:
        """It could not be reached: send it nothing until a probe succeeds, and probe now."""
        self.become(State.DOWN, reason)
        self.attention.set()

    def __repr__(self) -> str:
        return f"<Worker {self.name} {self.state.name} {self.load!r} {self.pace!r}>"


class Pool:
    """Workers that answer for the same models, and the strategy that chooses among them."""

    def __init__(
        self, name: str, models: Sequence[str], workers: Sequence[Worker], strategy: Strategy
    ) -> None:
        self.name = name
        self.models = tuple(models)
        self.workers = tuple(workers)
        self.strategy = strategy
        self.prompts = Prompts(keyed=getattr(strategy, "reads_prompt", True))
        self._turn = 0

    def eligible(self, model: str) -> list[Worker]:
        """Ready workers that serve `model`. Raises UnknownModel, NoWorker."""
        ready = [w for w in self.workers if w.ready and model in w.models]
        if ready:
            return ready
        # A worker that was never heard of may serve it: the client should try again.
        if any(model in w.models or not (w.ready or w.models) for w in self.workers):
            raise NoWorker(f"No worker that serves {model!r} is ready; please try again.")
        raise UnknownModel(model)

    def book(self, prompt: Prompt, choice: Candidate, now: float) -> Booking:
        """Charge `prompt` to the chosen worker; its load releases the booking."""
        worker = choice.worker
        load = worker.load
        self._turn += 1
        load.turn = self._turn
        booking = load.book(
            now,
            choice.cost.prefill,
            prompt.tokens + prompt.answer_tokens,
            stream=prompt.stream,
            pace_factor=worker.pace.factor,
        )
        try:
            self.strategy.placed(prompt, worker, now)
        except BaseException:
            load.release(booking, now)
            raise
        return booking


class Fleet:
    """All pools, found by model name."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = tuple(pools)
        self._patterns = pygtrie.CharTrie()
        for pool in pools:
            for pattern in pool.models:
                self._patterns[_trie_key(pattern)] = pool
        # Names that were answered for: no longer than the list of models that workers serve.
        self._routes: dict[str, Pool] = {}

    @property
    def workers(self) -> Iterator[Worker]:
        """Every worker of every pool."""
        return (worker for pool in self.pools for worker in pool.workers)

    def route(self, model: str | None) -> tuple[Pool, str, list[Worker]]:
        """Return the pool, the model's name and the workers that could answer for it.

        Without a name it is the only model there is, as vLLM has it. Raises BadRequest,
        UnknownModel, NoWorker.
        """
        if not model:
            model = self._only_model()
        pool = self._routes.get(model) or self._pool(model)
        if pool is None:
            raise UnknownModel(model)
        workers = pool.eligible(model)
        self._routes[model] = pool
        return pool, model, workers

    def models(self) -> dict[str, Mapping[str, Any]]:
        """Every model that could be asked for, as a worker describes it, by name."""
        return {
            name: description
            for pool in self.pools
            for worker in pool.workers
            for name, description in worker.models.items()
            if self._pool(name) is pool
        }

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
