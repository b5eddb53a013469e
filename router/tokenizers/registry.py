"""Keeps each pool's knowledge of its models' tokens up to date.

In the background it searches for tokenizers, compares them with the workers' answers, and hands
those that may be trusted to the pools' `Prompts`. It is notified when workers come back or models
change, and checks by itself whether workers count other tokens than the router.

Which workers serve the models of which source, computed once per change. Pure.

Publishes what is known of tokens to the pools' prompts and to the workers.

If only one source has changed, only that one is published: a router may have hundreds, and all
streams would wait meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from time import monotonic
from typing import TypeVar

from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.prompt.prompts import AskedModel, KnownModel
from router.rendering.tokens import UNKNOWN_TOOLS
from router.settings.model import Settings
from router.settings.tokenizer import TokenizerSettings
from router.tokenizers.sources import Fingerprint, SourceKind, TokenizerFinder, fingerprint, loaded
from router.tokenizers.state import Cases, ModelGroups, SourceCase, tell, tell_of, tell_recount
from router.tokenizers.verify import Agreement, ExpectedTokens, Recount, Verdict, verify_worker
from router.tokenizers.worker_tokenizer import WorkerTokenizer, takes_ids


class TokenizerWorkers:
    """A snapshot, except for which workers are ready."""

    def __init__(self, pools: Iterable[Pool] = (), cases: Iterable[SourceCase] = ()) -> None:
        self._pools: dict[str, list[SourceCase]] = {}
        self._models: dict[tuple[str, str], SourceCase] = {}
        self._workers: dict[SourceCase, list[Worker]] = {}
        self._cases: dict[Worker, list[SourceCase]] = {}
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

    def of_pool(self, pool: str) -> Sequence[SourceCase]:
        """Return the sources of a pool."""
        return self._pools.get(pool, ())

    def of_model(self, pool: str, model: str) -> SourceCase | None:
        """Return the source of a pool's model."""
        return self._models.get((pool, model))

    def of_worker(self, worker: Worker) -> Sequence[SourceCase]:
        """Return the sources of all models that a worker serves."""
        return self._cases.get(worker, ())

    def workers(self, case: SourceCase) -> Sequence[Worker]:
        """Return all workers that serve its models."""
        return self._workers.get(case, ())

    def ready(self, case: SourceCase) -> list[Worker]:
        """Return those workers that are ready now."""
        return [worker for worker in self.workers(case) if worker.ready]


T = TypeVar("T")


class TokenizerPublisher:
    """Publishes a fleet's cases."""

    def __init__(
        self, fleet: Fleet, inquiries: Inquiries, forwards: Callable[[SourceCase], bool]
    ) -> None:
        """`forwards` tells whether token ids are to be sent to workers that accept them."""
        self._fleet = fleet
        self._inquiries = inquiries
        self._forwards = forwards
        self.serving = TokenizerWorkers()
        """Replaced as a whole when cases, workers or their models change."""

    def all(self, *, busy: bool) -> None:
        """Publish everything; while searches are running (`busy`), do not log what is missing."""
        for pool in self._fleet.pools:
            cases = self.serving.of_pool(pool.name)
            known: dict[str, KnownModel] = {}
            asked: dict[str, AskedModel] = {}
            for case in cases:
                self._decide(case, busy=busy)
                known |= self._known(case)
                asked |= self._asked(case)
            _hand(pool, known, asked)
            for worker in pool.workers:
                self._tell_worker(worker)

    def one(self, case: SourceCase, *, busy: bool) -> None:
        """Publish one case that has changed."""
        self._decide(case, busy=busy)
        for pool in self._fleet.pools:
            if pool.name == case.pool:
                known = _without(pool.prompts.known, case) | self._known(case)
                asked = _without(pool.prompts.asked, case) | self._asked(case)
                _hand(pool, known, asked)
        for worker in self.serving.workers(case):
            self._tell_worker(worker)

    def _decide(self, case: SourceCase, *, busy: bool) -> None:
        workers = self.serving.workers(case)
        case.decide([one.name for one in workers], [one.name for one in workers if one.ready])
        if case.volume is not None or not busy:
            by_blocks = (one.kv is not None for one in self._fleet.pools if one.name == case.pool)
            tell(case, by_blocks=any(by_blocks))

    def _known(self, case: SourceCase) -> dict[str, KnownModel]:
        """Return the models whose tokens are computed here."""
        if not case.trusted or case.volume is None:
            return {}
        exact, forward = case.volume.exact, self._forwards(case)
        rest = case.media, case.left_out
        return {name: KnownModel(said, exact, forward, *rest) for name, said in case.models.items()}

    def _asked(self, case: SourceCase) -> dict[str, AskedModel]:
        """Return the models whose tokens are asked of their workers."""
        if not case.trusted or case.volume is not None:
            return {}
        return {
            name: AskedModel(said, self._elsewhere(case.pool, name).ids)
            for name, said in case.models.items()
        }

    def _elsewhere(self, pool: str, model: str) -> WorkerTokenizer:
        workers = partial(self._tokenizing, pool, model)
        return WorkerTokenizer(
            self._inquiries, model, workers, partial(self._left_out, pool, model)
        )

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


def _hand(pool: Pool, known: dict[str, KnownModel], asked: dict[str, AskedModel]) -> None:
    """Replace a pool's mappings only if they have changed, as others may be reading them."""
    if known != pool.prompts.known:
        pool.prompts.known = known
    if _identities(asked) != _identities(pool.prompts.asked):
        pool.prompts.asked = asked


def _without(named: Mapping[str, T], case: SourceCase) -> dict[str, T]:
    return {name: one for name, one in named.items() if name not in case.models}


def _identities(asked: Mapping[str, AskedModel]) -> dict[str, str]:
    return {name: one.identity for name, one in asked.items()}


log = logging.getLogger("warmroute.tokenizers")

#: Seconds between two checks for due work.
POLL_INTERVAL_S = 5.0
#: Most workers asked at once.
MAX_CONCURRENT_QUESTIONS = 8
#: Most tokenizers that compute our own answers at once: they run in threads, but other threads have
#: to wait for them.
MAX_CONCURRENT_ANSWERS = 2


class TokenizerRegistry:
    """Manages a fleet's tokenizers from `start` to `stop`."""

    def __init__(self, fleet: Fleet, settings: Settings, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._settings = _by_pool(settings)
        self._publishing = TokenizerPublisher(fleet, inquiries, self._forwards)
        self._wake = asyncio.Event()
        self._finding = TokenizerFinder(self._heard)
        self._sorting = ModelGroups(fleet, self._finding)
        self._cases: Cases = {}
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
        await self._finding.close()

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
        if any(described.get(name, said) != said for name, said in had.items()):
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
                    self._finding.again(case.wanted)

    def change(self, settings: Settings) -> None:
        """Apply new settings, perhaps with another fleet; what no longer holds ends at once."""
        before, self._settings = self._settings, _by_pool(settings)
        for key, case in list(self._cases.items()):
            if before.get(case.pool) != self._settings.get(case.pool):
                del self._cases[key]
            elif case.wanted.template is not None:
                self._finding.again(case.wanted)
        names = {worker.name for worker in self._fleet.workers}
        self._described = {name: one for name, one in self._described.items() if name in names}
        self._unsorted = True
        self._sort()
        self._publish()
        self._wake.set()

    async def settle(self) -> None:
        """Work until every search has ended and every ready worker was asked."""
        while True:
            self._wake.clear()
            await self.round()
            if not self._finding.busy:
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
                ready = self._publishing.serving.ready(case)
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

    def _heard(self) -> None:
        """Note that a search has ended; if workers may be asked instead, another source may be
        right now."""
        self._unsorted |= self._sorting.may_ask
        self._wake.set()

    def _sort(self) -> None:
        """Find out which models need which source; keep what is known of each source."""
        if not self._unsorted:
            for case in self._cases.values():
                self._sorting.look(case)
            return
        self._unsorted = False
        self._cases = self._sorting.sort(self._settings, self._cases)
        self._publishing.serving = TokenizerWorkers(self._fleet.pools, self._cases.values())

    # Whether workers agree.

    def _recount(self) -> None:
        """Check a pool's tokenizers again if its workers count other tokens.

        Also if clients send `tool_choice: none`, for which more has to be known of the workers.
        """
        now = monotonic()
        before, self._recounts = self._recounts, {}
        for pool in self._fleet.pools:
            if pool.prompts.by_reason[UNKNOWN_TOOLS]:
                for case in self._publishing.serving.of_pool(pool.name):
                    case.choose()
            recount = self._recounts[pool.name] = before.get(pool.name) or Recount()
            if recount.is_due(pool.prompts.miscounted, now):
                tell_recount(pool.name, pool.prompts.miscounted)
                for case in self._publishing.serving.of_pool(pool.name):
                    case.doubt()

    async def _verify(
        self, case: SourceCase, ready: Sequence[Worker], waiting: Sequence[Worker]
    ) -> None:
        """Ask workers for their tokens, and compare."""
        ours = self._our_turns
        reference = ExpectedTokens(self._inquiries, case.volume, ready, list(case.models), ours)
        async with nullcontext() if case.volume else self._turns:  # else this asks a worker
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
        if case.volume is not reference.volume:
            return  # the verdict is about another tokenizer
        if self._described.get(worker.name) is not described:
            return  # it has other models, or was restarted
        case.judged(worker.name, verdict, monotonic(), choosing=asks)
        (case.taking.add if takes else case.taking.discard)(worker.name)
        tell_of(case, worker.name)
        asked = case.asked[worker.name]
        if asked.verdict.state is Agreement.DIFFERS:
            self._publish_one(case)
            if asked.times == 1:
                self._finding.again(case.wanted, fresh=True)  # ours may be outdated

    def _forwards(self, case: SourceCase) -> bool:
        """Whether to send token ids to workers that accept them."""
        settings = self._settings.get(case.pool)
        return settings is not None and settings.forward_token_ids

    # What is published.

    def _publish(self) -> None:
        self._publishing.all(busy=self._finding.busy)

    def _publish_one(self, case: SourceCase) -> None:
        if self._cases.get((case.pool, case.wanted)) is case:  # not if settings have replaced it
            self._publishing.one(case, busy=self._finding.busy)


def _by_pool(settings: Settings) -> dict[str, TokenizerSettings]:
    return {pool.name: pool.tokenizer or settings.tokenizer for pool in settings.all_pools()}
