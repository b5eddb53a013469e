"""What is known of tokens, handed to those who make prompts and to those who send them.

Of one source at a time where only that has changed: a router may have hundreds, and everybody's
streams wait meanwhile.
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
        """`forwards` tells whether token ids are to be sent along, where workers take them."""
        self._fleet = fleet
        self._inquiries = inquiries
        self._forwards = forwards
        self.serving = Serving()
        """Replaced as a whole when cases, workers or their models are others."""

    def all(self, *, busy: bool) -> None:
        """Publish everything; while it is `busy` looking, nothing is said of what is not there."""
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
        """Publish a case of which more is known now."""
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
            tell(case)

    def _known(self, case: Case) -> dict[str, Known]:
        """Models whose tokens are computed here."""
        if not case.trusted or case.volume is None:
            return {}
        exact, forward = case.volume.exact, self._forwards(case)
        rest = case.media, case.left_out
        return {name: Known(said, exact, forward, *rest) for name, said in case.models.items()}

    def _asked(self, case: Case) -> dict[str, Asked]:
        """Models whose tokens their workers are asked for."""
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
        """Ready workers that serve a model and have `/tokenize`."""
        case = self.serving.of_model(pool, model)
        if case is None:
            return []
        return [
            worker
            for worker in self.serving.ready(case)
            if model in worker.models and case.agrees(worker.name)
        ]

    def _left_out(self, pool: str, model: str) -> bool | None:
        """Whether its workers leave out tools of which none may be chosen."""
        case = self.serving.of_model(pool, model)
        return None if case is None else case.left_out

    def _tell_worker(self, worker: Worker) -> None:
        """It is sent ids only if it takes them for all its models: it is told so as a whole."""
        mine = self.serving.of_worker(worker)
        worker.takes_ids = bool(mine) and all(worker.name in case.taking for case in mine)


def _hand(pool: Pool, known: dict[str, Known], asked: dict[str, Asked]) -> None:
    """Replaced only by something else: others may be reading it."""
    if known != pool.prompts.known:
        pool.prompts.known = known
    if _identities(asked) != _identities(pool.prompts.asked):
        pool.prompts.asked = asked


def _without(named: Mapping[str, T], case: Case) -> dict[str, T]:
    return {name: one for name, one in named.items() if name not in case.models}


def _identities(asked: Mapping[str, Asked]) -> dict[str, str]:
    return {name: one.identity for name, one in asked.items()}
