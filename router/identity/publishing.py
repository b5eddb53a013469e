"""Publishes what is known of tokens to the pools' prompts and to the workers.

If only one source has changed, only that one is published: a router may have hundreds, and all
streams would wait meanwhile.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from router.fleet import Fleet
from router.identity.case import Case
from router.identity.elsewhere import Elsewhere
from router.identity.serving import Serving
from router.identity.telling import tell
from router.inquiry import Inquiries
from router.pool import Pool
from router.prompts import Asked, Known
from router.worker import Worker

T = TypeVar("T")


class Publishing:
    """Publishes a fleet's cases."""

    def __init__(
        self, fleet: Fleet, inquiries: Inquiries, forwards: Callable[[Case], bool]
    ) -> None:
        """`forwards` tells whether token ids are to be sent to workers that accept them."""
        self._fleet = fleet
        self._inquiries = inquiries
        self._forwards = forwards
        self.serving = Serving()
        """Replaced as a whole when cases, workers or their models change."""

    def all(self, *, busy: bool) -> None:
        """Publish everything; while searches are running (`busy`), do not log what is missing."""
        for pool in self._fleet.pools:
            cases = self.serving.of_pool(pool.name)
            known: dict[str, Known] = {}
            asked: dict[str, Asked] = {}
            for case in cases:
                self._decide(case, busy=busy)
                known |= self._known(case)
                asked |= self._asked(case)
            _hand(pool, known, asked)
            for worker in pool.workers:
                self._tell_worker(worker)

    def one(self, case: Case, *, busy: bool) -> None:
        """Publish one case that has changed."""
        self._decide(case, busy=busy)
        for pool in self._fleet.pools:
            if pool.name == case.pool:
                known = _without(pool.prompts.known, case) | self._known(case)
                asked = _without(pool.prompts.asked, case) | self._asked(case)
                _hand(pool, known, asked)
        for worker in self.serving.workers(case):
            self._tell_worker(worker)

    def _decide(self, case: Case, *, busy: bool) -> None:
        workers = self.serving.workers(case)
        case.decide([one.name for one in workers], [one.name for one in workers if one.ready])
        if case.volume is not None or not busy:
            by_blocks = (one.kv is not None for one in self._fleet.pools if one.name == case.pool)
            tell(case, by_blocks=any(by_blocks))

    def _known(self, case: Case) -> dict[str, Known]:
        """Return the models whose tokens are computed here."""
        if not case.trusted or case.volume is None:
            return {}
        exact, forward = case.volume.exact, self._forwards(case)
        rest = case.media, case.left_out
        return {name: Known(said, exact, forward, *rest) for name, said in case.models.items()}

    def _asked(self, case: Case) -> dict[str, Asked]:
        """Return the models whose tokens are asked of their workers."""
        if not case.trusted or case.volume is not None:
            return {}
        return {
            name: Asked(said, self._elsewhere(case.pool, name).ids)
            for name, said in case.models.items()
        }

    def _elsewhere(self, pool: str, model: str) -> Elsewhere:
        workers = partial(self._tokenizing, pool, model)
        return Elsewhere(self._inquiries, model, workers, partial(self._left_out, pool, model))

    def _tokenizing(self, pool: str, model: str) -> list[Worker]:
        """Return the ready workers that serve a model and answer `/tokenize`."""
        case = self.serving.of_model(pool, model)
        if case is None:
            return []
        return [
            worker
            for worker in self.serving.ready(case)
            if model in worker.models and case.agrees(worker.name)
        ]

    def _left_out(self, pool: str, model: str) -> bool | None:
        """Return whether its workers leave out tools with `tool_choice: none`."""
        case = self.serving.of_model(pool, model)
        return None if case is None else case.left_out

    def _tell_worker(self, worker: Worker) -> None:
        """Mark whether the worker is sent ids: only if it accepts them for all of its models."""
        mine = self.serving.of_worker(worker)
        worker.takes_ids = bool(mine) and all(worker.name in case.taking for case in mine)


def _hand(pool: Pool, known: dict[str, Known], asked: dict[str, Asked]) -> None:
    """Replace a pool's mappings only if they have changed, as others may be reading them."""
    if known != pool.prompts.known:
        pool.prompts.known = known
    if _identities(asked) != _identities(pool.prompts.asked):
        pool.prompts.asked = asked


def _without(named: Mapping[str, T], case: Case) -> dict[str, T]:
    return {name: one for name, one in named.items() if name not in case.models}


def _identities(asked: Mapping[str, Asked]) -> dict[str, str]:
    return {name: one.identity for name, one in asked.items()}
