"""Keeps each pool's knowledge of its models' tokens up to date.

In the background it searches for tokenizers, compares them with the workers' answers, and hands
those that may be trusted to the pools' `Prompts`. It is notified when workers come back or models
change, and checks by itself whether workers count other tokens than the router.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from time import monotonic

from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries
from router.fleet.pool import Pool
from router.fleet.worker import Availability, Worker
from router.prompt.prompts import AskedModel, KnownModel
from router.rendering.tokens import UNKNOWN_TOOLS, LoadedTokenizer
from router.settings.model import Settings
from router.settings.tokenizer import TokenizerSettings
from router.tokenizers.sources import (
    Fingerprint,
    NoTokenizerFound,
    Origin,
    SourceKind,
    TokenizerFinder,
    TokenizerSearch,
    at_workers,
    fingerprint,
    identity,
    is_adapter,
    loaded,
    origin,
)
from router.tokenizers.state import Recount, SourceCase
from router.tokenizers.status import log_difference, log_recount, log_source
from router.tokenizers.verify import Agreement, ExpectedTokens, Verdict, verify_worker
from router.tokenizers.worker_tokenizer import WorkerTokenizer, takes_ids

log = logging.getLogger("warmroute.tokenizers")

#: Seconds between two checks for due work.
POLL_INTERVAL_S = 5.0
#: Most workers asked at once.
MAX_CONCURRENT_QUESTIONS = 8
#: Most tokenizers that compute our own answers at once: they run in threads, but other threads have
#: to wait for them.
MAX_CONCURRENT_ANSWERS = 2

Cases = dict[tuple[str, TokenizerSearch], SourceCase]
"""Cases by pool and source."""

_NEEDED = "nothing else is known, and the strategy needs them"
_SILENT = frozenset((Availability.DOWN, Availability.ASLEEP))


def is_up(worker: Worker) -> bool:
    """Return true if a worker answers questions, whatever else keeps requests from it."""
    return worker.availability(monotonic())[0] not in _SILENT


class ModelGroups:
    """Groups a fleet's models by the source of their tokenizer."""

    def __init__(self, fleet: Fleet, finder: TokenizerFinder) -> None:
        self._fleet = fleet
        self._finder = finder

    def sort(self, settings: Mapping[str, TokenizerSettings], before: Cases) -> Cases:
        """Return the current cases by the pools' settings; those in `before` are kept.

        Starts searches for new sources, and forgets those no longer needed.
        """
        cases: Cases = {}
        for pool in self._fleet.pools:
            wanted = settings.get(pool.name)
            if wanted is not None and pool.prompts.keyed:
                cases |= self._of_pool(pool, wanted, before)
        missing = {case.missing for case in cases.values() if case.missing}
        self._finder.keep(missing.union(wanted for _, wanted in cases))
        return cases

    def look(self, case: SourceCase) -> None:
        """Take the result of a case's search; repeat a failed search when it is due."""
        if case.missing is not None:
            self._finder.look(case.missing)
        if case.wanted.kind in {SourceKind.FOLDER, SourceKind.HUB}:
            result = self._finder.look(case.wanted)
            if isinstance(result, LoadedTokenizer):
                case.found(result, "")
            else:
                case.found(None, result.why if result else "it is being looked for")

    @property
    def may_ask(self) -> bool:
        """Return true if the end of a search may mean that workers are to be asked."""
        return any(pool.capabilities.needs_tokens for pool in self._fleet.pools)

    def _of_pool(self, pool: Pool, settings: TokenizerSettings, before: Cases) -> Cases:
        cases: Cases = {}
        searches: dict[Origin, TokenizerSearch] = {}
        case_of: dict[str, SourceCase] = {}
        held: dict[str, str] = {}
        for case in before.values():
            held |= case.models if case.pool == pool.name else {}
        for name, worker in _one_of_each(pool, held):
            if not self._fleet.answers_for(name, pool):
                continue
            source, missing = self._origin(pool, settings, name, worker)
            if source not in searches:  # the many adapters share their base model's
                searches[source] = TokenizerSearch.of(source, settings)
            key = (pool.name, searches[source])
            if key not in cases:
                case = cases[key] = before.get(key) or SourceCase(pool.name, source, key[1])
                case.models, case.workers, case.missing = {}, [], missing
                self.look(case)
            case_of[name] = cases[key]
            cases[key].models[name] = identity(name, worker.models)
        for worker in pool.workers:
            for case in dict.fromkeys(case_of[name] for name in worker.models if name in case_of):
                case.workers.append(worker)
        return cases

    def _origin(
        self, pool: Pool, settings: TokenizerSettings, name: str, worker: Worker
    ) -> tuple[Origin, TokenizerSearch | None]:
        """Return where to look, and what was missing if workers are asked instead.

        Asking workers is a last resort, for strategies that cannot do without tokens: for most,
        asking for every prompt costs more than it gains.
        """
        source = origin(settings.source, name, worker.models)
        if settings.source != "auto" or not pool.capabilities.needs_tokens:
            return source, None
        wanted = None if source.kind is SourceKind.TEXT else TokenizerSearch.of(source, settings)
        if wanted is None or isinstance(self._finder.look(wanted), NoTokenizerFound):
            return at_workers(name, worker.models, _NEEDED), wanted
        return source, None


def _one_of_each(pool: Pool, held: Mapping[str, str]) -> list[tuple[str, Worker]]:
    """Return every model with a worker that says what it is; adapters last.

    If workers differ about a model, one that says what was `held` so far is preferred, else the
    first: what was learned stays valid as long as any worker has that model. The comparison of
    tokens finds the others.
    """
    first: dict[str, Worker] = {}
    holding: dict[str, Worker] = {}
    for worker in pool.workers:
        for name in worker.models:
            first.setdefault(name, worker)
            if name in held and identity(name, worker.models) == held[name]:
                holding.setdefault(name, worker)
    return sorted((first | holding).items(), key=lambda item: is_adapter(item[0], item[1].models))


class TokenizerRegistry:
    """Manages a fleet's tokenizers from `start` to `stop`."""

    def __init__(self, fleet: Fleet, settings: Settings, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._settings = _by_pool(settings)
        self._wake = asyncio.Event()
        self._finder = TokenizerFinder(self._search_ended)
        self._groups = ModelGroups(fleet, self._finder)
        self._cases: Cases = {}
        self._of_worker: dict[Worker, list[SourceCase]] = {}
        self._recounts: dict[str, Recount] = {}
        self._described: dict[str, Fingerprint] = {}
        self._unsorted = True
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_QUESTIONS)
        self._our_turns = asyncio.Semaphore(MAX_CONCURRENT_ANSWERS)
        self._task: asyncio.Task[None] | None = None

    @property
    def cases(self) -> Sequence[SourceCase]:
        """Every source and what is known of it, sorted by pool."""
        return sorted(self._cases.values(), key=lambda case: (case.pool, next(iter(case.models))))

    def start(self) -> None:
        """Start in the background; until tokenizers are trusted, requests are keyed by their
        text."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop all background work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._finder.close()

    def notice(self, worker: Worker, back: bool) -> None:
        """Note that a worker's models may have changed; if it is `back`, everything may have."""
        before, described = self._described.get(worker.name), fingerprint(worker.models)
        had = before or {}
        other = back or loaded(had) != loaded(described)
        if not other and before == described:
            return
        self._described[worker.name] = described  # an answer still to come was about its old models
        if other:
            self._doubt(worker, files=back)
        if before != described:
            self._unsorted = True
        if any(described.get(name, was) != was for name, was in had.items()):
            self._sort()  # what was known of the old model must not be used now
            self._publish()
        self._wake.set()

    def _doubt(self, worker: Worker, *, files: bool) -> None:
        """Ask a worker again, and send it no ids until then; `files`: its files may have changed
        too."""
        worker.takes_ids = False
        for case in self._cases.values():
            case.taking.discard(worker.name)
            if worker.name in case.asked:
                case.doubt([worker.name])
                if files and case.wanted.kind is SourceKind.FOLDER:  # it may have loaded another
                    self._finder.again(case.wanted)

    def change(self, settings: Settings) -> None:
        """Apply new settings, perhaps with another fleet; what no longer holds ends at once."""
        before, self._settings = self._settings, _by_pool(settings)
        for key, case in list(self._cases.items()):
            if before.get(case.pool) != self._settings.get(case.pool):
                del self._cases[key]
            elif case.wanted.template is not None:
                self._finder.again(case.wanted)
        names = {worker.name for worker in self._fleet.workers}
        self._described = {name: seen for name, seen in self._described.items() if name in names}
        self._unsorted = True
        self._sort()
        self._publish()
        self._wake.set()

    async def settle(self) -> None:
        """Work until every search has ended and every ready worker was asked."""
        while True:
            self._wake.clear()
            await self.round()
            if not self._finder.busy:
                break
            await self._wake.wait()
        await self.round()

    async def round(self) -> None:
        """Check everything once; ask the workers that are due."""
        self._sort()
        self._recount()
        self._publish()
        now = monotonic()
        async with asyncio.TaskGroup() as group:  # all of it ends before the next round
            for case in self._cases.values():
                ready = [worker for worker in case.workers if is_up(worker)]
                names = case.waiting([worker.name for worker in ready], now)
                if names:
                    waiting = [worker for worker in ready if worker.name in names]
                    group.create_task(self._verify(case, ready, waiting))

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.round()
            except Exception:
                log.exception("internal error; tokenizers stay as they are")
                await asyncio.sleep(POLL_INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._wake.wait()

    # Which sources there are.

    def _search_ended(self) -> None:
        """Note that a search has ended; if workers may be asked instead, another source may be
        right now."""
        self._unsorted |= self._groups.may_ask
        self._wake.set()

    def _sort(self) -> None:
        """Find out which models need which source; keep what is known of each source."""
        if not self._unsorted:
            for case in self._cases.values():
                self._groups.look(case)
            return
        self._unsorted = False
        self._cases = self._groups.sort(self._settings, self._cases)
        self._of_worker = {}
        for case in self._cases.values():
            for gone in case.askers.keys() - case.models.keys():
                del case.askers[gone]
            for worker in case.workers:
                self._of_worker.setdefault(worker, []).append(case)

    # Whether workers agree.

    def _recount(self) -> None:
        """Check a pool's tokenizers again if its workers count other tokens.

        Also if clients send `tool_choice: none`, for which more has to be known of the workers.
        """
        now = monotonic()
        before, self._recounts = self._recounts, {}
        for pool in self._fleet.pools:
            recount = self._recounts[pool.name] = before.get(pool.name) or Recount()
            is_due = recount.is_due(pool.prompts.miscounted, now)
            if is_due:
                log_recount(pool.name, pool.prompts.miscounted)
            for case in self._cases.values():
                if case.pool == pool.name and pool.prompts.by_reason[UNKNOWN_TOOLS]:
                    case.choose()
                if case.pool == pool.name and is_due:
                    case.doubt()

    async def _verify(
        self, case: SourceCase, ready: Sequence[Worker], waiting: Sequence[Worker]
    ) -> None:
        """Ask workers for their tokens, and compare."""
        ours = self._our_turns
        reference = ExpectedTokens(self._inquiries, case.tokenizer, ready, list(case.models), ours)
        async with nullcontext() if case.tokenizer else self._turns:  # else this asks a worker
            try:
                await reference.prepare()
            except TimeoutError:  # then nothing can be compared
                log.debug("our own tokens of %s take too long", case.origin)
            except Exception:  # nor can it now; other sources are still asked
                log.exception("internal error with %s", case.origin)
        async with asyncio.TaskGroup() as group:
            for worker in waiting:
                group.create_task(self._judge(case, worker, reference))
        self._publish_one(case)  # so no source waits for another's slowest worker

    async def _judge(self, case: SourceCase, worker: Worker, reference: ExpectedTokens) -> None:
        async with self._turns:
            model = case.model_of(worker.models)
            described = self._described.get(worker.name)
            if model is None:
                return  # its models have changed meanwhile
            takes, asks = False, case.choosing
            try:
                verdict = await verify_worker(
                    reference, self._inquiries, worker, model, choosing=asks
                )
                if verdict.state is Agreement.AGREES and self._forwards(case):
                    takes = await takes_ids(self._inquiries, worker, model)
            except Exception:  # other workers must still be asked
                log.exception("internal error with worker %s", worker.name)
                verdict = Verdict(Agreement.UNVERIFIED, "internal error")
        if case.tokenizer is not reference.tokenizer:
            return  # the verdict is about another tokenizer
        if self._described.get(worker.name) is not described:
            return  # it has other models, or was restarted
        case.judged(worker.name, verdict, monotonic(), choosing=asks)
        (case.taking.add if takes else case.taking.discard)(worker.name)
        log_difference(case, worker.name)
        record = case.asked[worker.name]
        if record.verdict.state is Agreement.DIFFERS:
            self._publish_one(case)
            if record.times == 1:
                self._finder.again(case.wanted, fresh=True)  # ours may be outdated

    def _forwards(self, case: SourceCase) -> bool:
        """Whether to send token ids to workers that accept them."""
        settings = self._settings.get(case.pool)
        return settings is not None and settings.forward_token_ids

    # What is handed to the pools' prompts and to the workers.

    def _publish_one(self, case: SourceCase) -> None:
        """Publish one source that has changed, unless settings have replaced it."""
        if self._cases.get((case.pool, case.wanted)) is case:
            self._publish(case)

    def _publish(self, only: SourceCase | None = None) -> None:
        """Publish every source, or `only` one.

        A router may have hundreds, and all streams would wait meanwhile.
        """
        cases = list(self._cases.values()) if only is None else [only]
        for case in cases:
            self._decide(case)
        for pool in self._fleet.pools:
            if only is not None and pool.name != only.pool:
                continue
            known: dict[str, KnownModel] = {}
            asked_models: dict[str, AskedModel] = {}
            if only is not None:
                known = {n: m for n, m in pool.prompts.known.items() if n not in only.models}
                asked_models = {n: m for n, m in pool.prompts.asked.items() if n not in only.models}
            for case in cases:
                if case.trusted and case.pool == pool.name:
                    self._add(case, known, asked_models)
            # Replaced only if they have changed, as others may be reading them.
            if known != pool.prompts.known:
                pool.prompts.known = known
            if asked_models != pool.prompts.asked:
                pool.prompts.asked = asked_models
        for worker in self._fleet.workers if only is None else only.workers:
            mine = self._of_worker.get(worker, ())  # ids are sent if it takes those of all models
            worker.takes_ids = bool(mine) and all(worker.name in case.taking for case in mine)

    def _decide(self, case: SourceCase) -> None:
        ready = [worker.name for worker in case.workers if is_up(worker)]
        case.decide([worker.name for worker in case.workers], ready)
        if case.tokenizer is not None or not self._finder.busy:  # else it may be found yet
            pools = [pool for pool in self._fleet.pools if pool.name == case.pool]
            log_source(case, by_blocks=any(pool.kv is not None for pool in pools))

    def _add(
        self, case: SourceCase, known: dict[str, KnownModel], asked_models: dict[str, AskedModel]
    ) -> None:
        """Add a source's models: those whose tokens are computed here, or asked of workers."""
        for name, called in case.models.items():
            if case.tokenizer is not None:
                exact, forward = case.tokenizer.exact, self._forwards(case)
                known[name] = KnownModel(called, exact, forward, case.media, case.left_out)
                continue
            if name not in case.askers:
                workers = partial(_tokenizing, case, name)
                asker = WorkerTokenizer(self._inquiries, name, workers, lambda: case.left_out)
                case.askers[name] = asker
            asked_models[name] = AskedModel(called, case.askers[name].ids)


def _tokenizing(case: SourceCase, model: str) -> list[Worker]:
    """Return the workers that serve a model and answer `/tokenize` now."""
    return [
        worker
        for worker in case.workers
        if model in worker.models and is_up(worker) and case.agrees(worker.name)
    ]


def _by_pool(settings: Settings) -> dict[str, TokenizerSettings]:
    return {pool.name: pool.tokenizer or settings.tokenizer for pool in settings.all_pools()}
