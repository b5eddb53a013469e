"""All pools, and which of them serves a model."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pygtrie

from router.api.errors import BadRequest, NoWorker, UnknownModel
from router.fleet.pool import Peers, Pool
from router.fleet.worker import Models, Worker, common
from strategies.api import NOBODY

#: How many model names have their pool cached; when there are more, the cache is emptied.
MAX_ROUTES = 4096
#: How many names a model that does not exist is compared with, each once for each worker.
MAX_COMPARED_NAMES = 5000

#: Asks the workers of a pool whether they have got a model.
Asks = Callable[[Pool, str], Awaitable[None]]


class Fleet:
    """All pools, found by model name."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._tells: Peers | None = None
        self.asks: Asks | None = None
        """Asks workers for a model that none is known to have (`abilities.py`)."""
        self.replace(pools)

    def replace(self, pools: Sequence[Pool]) -> None:
        """Use these pools in place of the current ones."""
        self.pools = tuple(pools)
        self.reads_prompts = any(pool.prompts.keyed for pool in pools)
        """Whether any pool makes keys of prompts, so that their texts must be parsed."""
        self._patterns = pygtrie.CharTrie()
        for pool in pools:
            for pattern in pool.models:
                self._patterns[_trie_key(pattern)] = pool
        # Cache of routed model names; bounded, because adapters come and go.
        self._routes: dict[str, Pool] = {}
        self.share(self._tells)

    def share(self, tells: Peers | None) -> None:
        """Report what is sent to the router's other processes, for current and future pools."""
        self._tells = tells
        for pool in self.pools:
            pool.tells = tells if pool.capabilities.reads_load else None

    @property
    def workers(self) -> Iterator[Worker]:
        """Every worker of every pool."""
        return (worker for pool in self.pools for worker in pool.workers)

    def route(
        self,
        model: str | None,
        barred: Mapping[str, str] = NOBODY,
        *,
        in_session: bool = False,
    ) -> tuple[Pool, str, list[Worker]]:
        """Return the pool, the model's name and the workers that could answer for it.

        Without a name, it is the base model, as in vLLM. `barred` and `in_session` as in
        `Pool.eligible`. Raises BadRequest, UnknownModel, NoWorker.
        """
        if not model:
            model = self._base_model()
        known = self._routes.get(model)
        pool = known or self._pool(model)
        try:
            if pool is None:
                raise UnknownModel(model)
            workers = pool.eligible(model, barred, in_session=in_session)
        except UnknownModel:
            raise UnknownModel(model, self.meant(model)) from None
        if known is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            self._routes[model] = pool
        return pool, model, workers

    def found(
        self, model: str | None, *, in_session: bool = False
    ) -> tuple[Pool, str, list[Worker]] | None:
        """Return what `route` does; None if workers must be asked about the model first.

        Raises BadRequest, NoWorker.
        """
        try:
            return self.route(model, in_session=in_session)
        except (UnknownModel, NoWorker):
            if not model:
                raise
        return None

    async def find(
        self, model: str | None, *, in_session: bool = False
    ) -> tuple[Pool, str, list[Worker]]:
        """Do as `route`, but ask workers about a model that none is known to have."""
        destination = self.found(model, in_session=in_session)
        if destination is not None:
            return destination
        await self.seek(model)
        return self.route(model, in_session=in_session)

    async def seek(self, model: str | None) -> None:
        """Ask the workers that could have got a model since, if none is ready that has it."""
        pool = self._pool(model) if model and self.asks is not None else None
        if pool is None or self.asks is None or model is None:
            return
        if not any(worker.ready and model in worker.models for worker in pool.taking):
            await self.asks(pool, model)

    def compare(self, worker: Worker) -> None:
        """Take note that a worker has told anew what it can do."""
        for pool in self.pools:
            if worker in pool.workers:
                pool.compare()

    def restarted(self, worker: Worker) -> None:
        """Forget what a worker held, which most likely was restarted."""
        worker.tells_cached.clear()
        worker.reused, worker.losses = False, 0
        worker.load.answers()  # whatever hung is gone
        for pool in self.pools:
            if worker in pool.workers:
                pool.forget(worker)
                pool.outliers.forget(worker)

    def models(self) -> dict[str, Mapping[str, Any]]:
        """Return every model that can be requested, by name, as a worker describes it.

        If they differ, it is one of those where it takes the most tokens.
        """
        models: dict[str, Mapping[str, Any]] = {}
        for pool in self.pools:
            pool_models = dict[str, Mapping[str, Any]]()
            for worker in pool.workers:
                pool_models |= (
                    worker.models if not pool.uneven else _longer(worker.models, pool_models)
                )
            models |= {
                name: entry for name, entry in pool_models.items() if self._pool(name) is pool
            }
        return models

    def described(self, model: str) -> Mapping[str, Any] | None:
        """Return what `models` has of one model; None if it cannot be requested."""
        pool = self._pool(model)
        if pool is None:
            return None
        entries = [worker.models[model] for worker in pool.workers if model in worker.models]
        return max(reversed(entries), key=_limit, default=None)

    def answers_for(self, model: str, pool: Pool) -> bool:
        """Whether requests for that model go to that pool."""
        return self._pool(model) is pool

    def _pool(self, model: str) -> Pool | None:
        """Return the pool with the longest pattern that matches."""
        pattern = self._patterns.longest_prefix(model + _END)
        return pattern.value if pattern else None

    def meant(self, model: str) -> str:
        """Return the model that was probably meant by an unknown name; empty if none is like it.

        Its name differs in case, or else in what is before its last slash, or it is the only one.
        """
        every = (name for worker in self.workers for name in worker.models)
        names = list(islice(every, MAX_COMPARED_NAMES))
        served, base = dict.fromkeys(names), _base(model)
        if len(served) == 1 and len(names) < MAX_COMPARED_NAMES:
            alike = list(served)
        else:
            alike = [name for name in served if _base(name) == base]
        whole = model.casefold()
        alike.sort(key=lambda name: name.casefold() != whole)
        candidates = (name for name in alike if name != model and self._pool(name) is not None)
        return next(candidates, "")

    def _base_model(self) -> str:
        """Return the base model, if all workers have the same. Raises BadRequest, NoWorker.

        It may have several names: those that all workers know it by count.
        """
        names = common(worker.bases for worker in self.workers if worker.models)
        if names is None:
            raise NoWorker("No worker is ready; please try again.")
        if not names:
            raise BadRequest(
                "The field `model` is missing, and this server has several models.", param="model"
            )
        return next((name for name in names if self._pool(name) is not None), names[0])


#: Ends the model's name in the trie, so that an exact pattern is longer than any wildcard.
_END = "\0"


def _base(model: str) -> str:
    return model.rpartition("/")[2].casefold()


def _limit(entry: Mapping[str, Any]) -> int:
    limit = entry.get("max_model_len")
    return limit if isinstance(limit, int) else 0


def _longer(models: Models, than: Models) -> Models:
    """Return those of the models that take no fewer tokens than the same among others."""
    return {
        name: entry for name, entry in models.items() if _limit(entry) >= _limit(than.get(name, {}))
    }


def _trie_key(pattern: str) -> str:
    return pattern[:-1] if pattern.endswith("*") else pattern + _END
