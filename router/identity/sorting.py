"""Which models of each pool need which tokenizer source."""

from collections.abc import Mapping

from router.fleet import Fleet
from router.identity.case import Case
from router.identity.finding import Finding, Missing, Wanted
from router.identity.sources import Kind, Origin, at_workers, identity, is_adapter, origin
from router.identity.volume import Volume
from router.pool import Pool
from router.settings_identity import TokenizerSettings
from router.worker import Worker

Cases = dict[tuple[str, Wanted], Case]
"""Cases by pool and source."""

_NEEDED = "nothing else is known, and the strategy needs them"


class Sorting:
    """Groups a fleet's models by the source of their tokenizer."""

    def __init__(self, fleet: Fleet, finding: Finding) -> None:
        self._fleet = fleet
        self._finding = finding

    def sort(self, settings: Mapping[str, TokenizerSettings], before: Cases) -> Cases:
        """Return the current cases by the pools' settings; those in `before` are kept.

        Starts searches for new sources, and forgets those no longer needed.
        """
        cases: Cases = {}
        for pool in self._fleet.pools:
            wanted = settings.get(pool.name)
            if wanted is not None and pool.prompts.keyed:
                self._sort_pool(pool, wanted, before, cases)
        missing = {case.missing for case in cases.values() if case.missing}
        self._finding.keep(missing.union(wanted for _, wanted in cases))
        return cases

    def look(self, case: Case) -> None:
        """Take the result of a case's search; repeat a failed search when it is due."""
        if case.missing is not None:
            self._finding.look(case.missing)
        if case.wanted.kind not in {Kind.FOLDER, Kind.HUB}:
            return
        result = self._finding.look(case.wanted)
        if isinstance(result, Volume):
            case.found(result, "")
        else:
            case.found(None, result.why if result else "it is being looked for")

    @property
    def may_ask(self) -> bool:
        """Whether the end of a search may mean that workers are to be asked."""
        return any(map(_needs_tokens, self._fleet.pools))

    def _sort_pool(
        self, pool: Pool, settings: TokenizerSettings, before: Cases, cases: Cases
    ) -> None:
        told: dict[Origin, Wanted] = {}
        held = {
            name: said
            for case in before.values()
            if case.pool == pool.name
            for name, said in case.models.items()
        }
        for name, worker in _one_of_each(pool, held):
            if not self._fleet.answers_for(name, pool):
                continue
            found, missing = self._origin(pool, settings, name, worker)
            if found not in told:  # the many adapters share their base model's
                told[found] = Wanted.told(found, settings)
            key = (pool.name, told[found])
            if key not in cases:
                cases[key] = before.get(key) or Case(pool.name, found, key[1])
                cases[key].models = {}
                cases[key].missing = missing
                self.look(cases[key])
            cases[key].models[name] = identity(name, worker.models)

    def _origin(
        self, pool: Pool, settings: TokenizerSettings, name: str, worker: Worker
    ) -> tuple[Origin, Wanted | None]:
        """Return where to look, and what was missing if workers are asked instead.

        Asking workers is a last resort, for strategies that cannot do without tokens: for most,
        asking for every prompt costs more than it gains.
        """
        found = origin(settings.source, name, worker.models)
        if settings.source != "auto" or not _needs_tokens(pool):
            return found, None
        wanted = None if found.kind is Kind.TEXT else Wanted.told(found, settings)
        if wanted is None or isinstance(self._finding.look(wanted), Missing):
            return at_workers(name, worker.models, _NEEDED), wanted
        return found, None


def _needs_tokens(pool: Pool) -> bool:
    return pool.capabilities.needs_tokens


def _one_of_each(pool: Pool, held: Mapping[str, str]) -> list[tuple[str, Worker]]:
    """Return every model with a worker that says what it is; adapters last.

    If workers differ about a model, one that says what was `held` so far is preferred, else the
    first: what was learned stays valid as long as any worker has that model. The comparison of
    tokens finds the others.
    """
    found: dict[str, Worker] = {}
    holding: set[str] = set()
    for worker in pool.workers:
        for name in worker.models:
            held_here = name in held and identity(name, worker.models) == held[name]
            if held_here and name not in holding:
                holding.add(name)
                found[name] = worker
            found.setdefault(name, worker)
    return sorted(found.items(), key=lambda one: is_adapter(one[0], one[1].models))
