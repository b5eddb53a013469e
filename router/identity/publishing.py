"""What is known of tokens, handed to those who make prompts and to those who send them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from router.fleet import Fleet, Pool, Worker
from router.identity.case import Case
from router.identity.elsewhere import Elsewhere
from router.identity.sorting import Cases
from router.inquiry import Inquiries
from router.prompts import Asked, Known


class Publishing:
    """Hands it out. `cases` are those of the keeper, as they are by then."""

    def __init__(self, fleet: Fleet, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._cases: Cases = {}

    def publish(self, cases: Cases, pool: Pool, *, forward: bool) -> None:
        """Decide what may be trusted of a pool, and hand it out.

        With `forward`, ids are to be sent along to workers that take them.
        """
        self._cases = cases
        own = [case for case in cases.values() if case.pool == pool.name]
        for case in own:
            case.decide(names(serving(case, pool)), names(ready(case, pool)))
        known = {name: one for case in own for name, one in _known(case, forward=forward)}
        if known != pool.prompts.known:
            pool.prompts.known = known
        asked = {name: one for case in own for name, one in self._asked(case, pool)}
        if _identities(asked) != _identities(pool.prompts.asked):
            pool.prompts.asked = asked
        for worker in pool.workers:  # of all its models: it is told so of the worker
            mine = [case for case in own if case.model_of(worker.models) is not None]
            worker.takes_ids = bool(mine) and all(worker.name in case.taking for case in mine)

    def _asked(self, case: Case, pool: Pool) -> Iterator[tuple[str, Asked]]:
        """Models whose tokens their workers are asked for."""
        for name, said in case.models.items() if case.trusted and case.volume is None else ():
            workers = partial(self._tokenizing, pool.name, name)
            yield name, Asked(said, Elsewhere(self._inquiries, name, workers).ids)

    def _tokenizing(self, pool: str, model: str) -> list[Worker]:
        """Ready workers that serve a model and have `/tokenize`."""
        return [
            worker
            for case in self._cases.values()
            if case.pool == pool and model in case.models
            for worker in self._fleet.workers
            if worker.ready and model in worker.models and case.agrees(worker.name)
        ]


def serving(case: Case, pool: Pool) -> list[Worker]:
    """Return a pool's workers that serve one of the models of a case."""
    return [worker for worker in pool.workers if case.model_of(worker.models) is not None]


def ready(case: Case, pool: Pool) -> list[Worker]:
    """Return those of them that are ready."""
    return [worker for worker in serving(case, pool) if worker.ready]


def names(workers: Sequence[Worker]) -> list[str]:
    """Return their names."""
    return [worker.name for worker in workers]


def _known(case: Case, *, forward: bool) -> Iterator[tuple[str, Known]]:
    """Models whose tokens are made here."""
    if case.trusted and case.volume is not None:
        for name, said in case.models.items():
            yield name, Known(said, case.volume.exact, forward, case.media)


def _identities(asked: Mapping[str, Asked]) -> dict[str, str]:
    return {name: one.identity for name, one in asked.items()}
