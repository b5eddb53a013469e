"""Which workers serve the models of which source, computed once per change. Pure."""

from collections.abc import Iterable, Sequence

from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.tokenizers.state import Case


class Serving:
    """A snapshot, except for which workers are ready."""

    def __init__(self, pools: Iterable[Pool] = (), cases: Iterable[Case] = ()) -> None:
        self._pools: dict[str, list[Case]] = {}
        self._models: dict[tuple[str, str], Case] = {}
        self._workers: dict[Case, list[Worker]] = {}
        self._cases: dict[Worker, list[Case]] = {}
        for case in cases:
            self._pools.setdefault(case.pool, []).append(case)
            self._models.update(((case.pool, name), case) for name in case.models)
        for pool in pools:
            for worker in pool.workers:
                self._add(pool, worker)

    def _add(self, pool: Pool, worker: Worker) -> None:
        found = (self._models.get((pool.name, name)) for name in worker.models)
        mine = dict.fromkeys(case for case in found if case is not None)
        self._cases.setdefault(worker, []).extend(mine)
        for case in mine:
            self._workers.setdefault(case, []).append(worker)

    def of_pool(self, pool: str) -> Sequence[Case]:
        """Return the sources of a pool."""
        return self._pools.get(pool, ())

    def of_model(self, pool: str, model: str) -> Case | None:
        """Return the source of a pool's model."""
        return self._models.get((pool, model))

    def of_worker(self, worker: Worker) -> Sequence[Case]:
        """Return the sources of all models that a worker serves."""
        return self._cases.get(worker, ())

    def workers(self, case: Case) -> Sequence[Worker]:
        """Return all workers that serve its models."""
        return self._workers.get(case, ())

    def ready(self, case: Case) -> list[Worker]:
        """Return those workers that are ready now."""
        return [worker for worker in self.workers(case) if worker.ready]
