"""Keeps what each pool knows of its models' tokens true.

In the background: looks for tokenizers, compares them with what workers say, and hands those that
may be trusted to the pools' `Prompts`. It is told of workers that come back and of models that
change, and looks by itself whether workers count other tokens than we do.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from router.fleet import Fleet, Pool, Worker
from router.identity.agreement import State, Verdict
from router.identity.case import Case
from router.identity.elsewhere import Elsewhere
from router.identity.finding import Finding, Missing, Wanted
from router.identity.shelf import Volume
from router.identity.sources import (
    Fingerprint,
    Kind,
    Origin,
    fingerprint,
    identity,
    is_adapter,
    origin,
)
from router.identity.takes import takes_ids
from router.identity.verifying import Reference, verified
from router.inquiry import Inquiries
from router.prompts import Asked, Known
from router.settings import Settings
from router.settings_identity import TokenizerSettings

log = logging.getLogger("warmroute.tokenizers")

#: Seconds between two looks at whether something is due.
LOOK_S = 5.0
#: Workers asked at once.
AT_ONCE = 8
#: Seconds between two checks because workers count other tokens: doubled each time, up to an hour.
RECOUNT_S, LONGEST_S = 60.0, 3600.0
#: Models named in one line of the log.
NAMED = 3


class _Counted:
    """How often a pool's workers have counted other tokens than we did."""

    def __init__(self) -> None:
        self.seen = 0
        self.due = 0.0
        self.pause = RECOUNT_S

    def grown(self, count: int, now: float) -> bool:
        """Whether it has grown, and it is time to look into it."""
        if count <= self.seen:
            self.seen = count  # another strategy has begun to count anew
            return False
        if now < self.due:
            return False
        self.seen, self.due = count, now + self.pause
        self.pause = min(LONGEST_S, 2 * self.pause)
        return True


class Keeper:
    """Watches a fleet's tokenizers from `start` to `stop`."""

    def __init__(self, fleet: Fleet, settings: Settings, inquiries: Inquiries) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._settings = _by_pool(settings)
        self._wake = asyncio.Event()
        self._finding = Finding(self._heard)
        self._cases: dict[tuple[str, Wanted], Case] = {}
        self._counted: dict[str, _Counted] = {}
        self._described: dict[str, Fingerprint] = {}
        self._unsorted = True
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._task: asyncio.Task[None] | None = None

    @property
    def cases(self) -> Sequence[Case]:
        """Every source and what is known of it, pool by pool."""
        return sorted(self._cases.values(), key=lambda case: (case.pool, next(iter(case.models))))

    def start(self) -> None:
        """Go on in the background: requests are served meanwhile, by their text."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End all of it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._finding.close()

    def notice(self, worker: Worker, back: bool) -> None:
        """Its models may have changed; if it is `back`, so may everything it says."""
        described = fingerprint(worker.models)
        if self._described.get(worker.name) != described:
            self._described[worker.name] = described
            self._unsorted = True
        if back:
            worker.takes_ids = False
            for case in self._cases.values():
                case.taking.discard(worker.name)
                if worker.name in case.asked:
                    case.doubt([worker.name])
                    if case.wanted.kind is Kind.FOLDER:  # what it has loaded may be another one
                        self._finding.again(case.wanted)
        if back or self._unsorted:
            self._wake.set()

    def change(self, settings: Settings) -> None:
        """Other settings, and another fleet maybe: what does not hold any more ends at once."""
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
        """Go on until everything was found or not, and every ready worker was asked."""
        while True:
            self._wake.clear()
            await self.round()
            if not self._finding.busy:
                break
            await self._wake.wait()
        await self.round()

    async def round(self) -> None:
        """Look at everything once; ask the workers that are to be asked."""
        self._sort()
        self._recount()
        now = monotonic()
        await asyncio.gather(
            *(
                self._verify(case, pool, waiting)
                for pool in self._fleet.pools
                for case in self._of(pool)
                if (waiting := case.waiting(map(_name, _ready(case, pool)), now))
            )
        )
        self._publish()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.round()
            except Exception:
                log.exception("a fault of the router's own; tokenizers stay as they are")
                await asyncio.sleep(LOOK_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()

    # Which sources there are.

    def _heard(self) -> None:
        """A search has ended: another source may be the right one."""
        self._unsorted = True
        self._wake.set()

    def _sort(self) -> None:
        """Find out which models need which source; what was known of a source stays."""
        if not self._unsorted:
            for case in self._cases.values():
                self._look(case)  # which looks again for what was missing, when it is time
            return
        self._unsorted = False
        cases: dict[tuple[str, Wanted], Case] = {}
        for pool in self._fleet.pools:
            settings = self._settings.get(pool.name)
            if settings is not None and pool.prompts.keyed:
                self._sort_pool(pool, settings, cases)
        self._cases = cases
        self._finding.keep({wanted for _, wanted in cases})

    def _sort_pool(
        self, pool: Pool, settings: TokenizerSettings, cases: dict[tuple[str, Wanted], Case]
    ) -> None:
        for name, worker in _first_of_each(pool):
            if not self._fleet.answers_for(name, pool):
                continue
            found = self._origin(pool, settings, name, worker)
            key = (pool.name, Wanted.told(found, settings))
            if key not in cases:
                cases[key] = self._cases.get(key) or Case(pool.name, found, key[1])
                cases[key].models = {}
                self._look(cases[key])
            cases[key].models[name] = identity(name, worker.models)

    def _origin(self, pool: Pool, settings: TokenizerSettings, name: str, worker: Worker) -> Origin:
        found = origin(settings.source, name, worker.models)
        if settings.source == "auto" and getattr(pool.strategy, "needs_tokens", False):
            missing = found.kind is Kind.TEXT or isinstance(
                self._finding.look(Wanted.told(found, settings)), Missing
            )
            if missing:
                return Origin(Kind.WORKER, why="nothing else is known, and the strategy needs them")
        return found

    def _look(self, case: Case) -> None:
        """Take what the search has brought."""
        if case.wanted.kind not in {Kind.FOLDER, Kind.HUB}:
            return
        result = self._finding.look(case.wanted)
        if isinstance(result, Volume):
            case.found(result, "")
        else:
            case.found(None, result.why if result else "it is being looked for")

    def _of(self, pool: Pool) -> list[Case]:
        return [case for case in self._cases.values() if case.pool == pool.name]

    # Whether workers agree.

    def _recount(self) -> None:
        """Doubt a pool's tokenizers when its workers count other tokens."""
        now = monotonic()
        for pool in self._fleet.pools:
            counted = self._counted.setdefault(pool.name, _Counted())
            if counted.grown(pool.prompts.miscounted, now):
                log.warning(
                    "pool %s: workers count other tokens than were computed, %d times by now;"
                    " their tokenizers are asked again",
                    pool.name,
                    pool.prompts.miscounted,
                )
                for case in self._of(pool):
                    case.doubt()
        for gone in set(self._counted).difference(pool.name for pool in self._fleet.pools):
            del self._counted[gone]

    async def _verify(self, case: Case, pool: Pool, waiting: Sequence[str]) -> None:
        """Ask workers for their tokens, and compare."""
        workers = {worker.name: worker for worker in _ready(case, pool)}
        models = list(case.models)
        reference = Reference(self._inquiries, case.volume, [*workers.values()], models)
        with suppress(TimeoutError):  # then nothing can be compared
            await reference.prepare()
        await asyncio.gather(*(self._judge(case, workers[name], reference) for name in waiting))

    async def _judge(self, case: Case, worker: Worker, reference: Reference) -> None:
        model = next(name for name in case.models if name in worker.models)
        async with self._turns:
            takes = False
            try:
                verdict = await verified(reference, self._inquiries, worker, model)
                if verdict.state is State.AGREES and self._forwards(case):
                    takes = await takes_ids(self._inquiries, worker, model)
            except Exception:  # it must not keep others from being asked
                log.exception("a fault of the router's own, with worker %s", worker.name)
                verdict = Verdict(State.UNVERIFIED, "a fault of the router's own")
        if case.volume is not reference.volume:
            return  # it was about something else
        case.judged(worker.name, verdict, monotonic())
        (case.taking.add if takes else case.taking.discard)(worker.name)
        self._tell_of(case, worker.name)
        if verdict.state is State.DIFFERS and case.asked[worker.name].times == 1:
            self._finding.again(case.wanted, fresh=True)  # what we have may be old

    def _forwards(self, case: Case) -> bool:
        """Whether token ids are to be sent along, to workers that take them."""
        settings = self._settings.get(case.pool)
        return settings is not None and settings.forward_token_ids

    # What becomes of it.

    def _publish(self) -> None:
        for pool in self._fleet.pools:
            known: dict[str, Known] = {}
            cases = self._of(pool)
            for case in cases:
                case.decide(map(_name, _serving(case, pool)), map(_name, _ready(case, pool)))
                if case.trusted and case.volume is not None:
                    exact, forward = case.volume.exact, self._forwards(case)
                    for name, said in case.models.items():
                        known[name] = Known(said, exact, forward)
                self._tell(case)
            if known != pool.prompts.known:
                pool.prompts.known = known
            asked = {name: one for case in cases for name, one in self._asked(case, pool)}
            if _identities(asked) != _identities(pool.prompts.asked):
                pool.prompts.asked = asked
            for worker in pool.workers:  # of all its models: it is told so of the worker
                mine = [case for case in cases if not case.models.keys().isdisjoint(worker.models)]
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

    def _tell(self, case: Case) -> None:
        """Say which source was taken and why, when that is known or has changed."""
        if case.volume is None and self._finding.busy:
            return
        sentence = case.sentence()
        if sentence == case.told or (case.can_be_known and not case.asked):
            return
        case.told = sentence
        counts = ", ".join(f"{count} {state}" for state, count in case.counts().items() if count)
        workers = f" (workers: {counts})" if counts else ""
        log.info("pool %s: %s: %s%s", case.pool, _names(case.models), sentence, workers)

    def _tell_of(self, case: Case, worker: str) -> None:
        """Say how a worker differs, once; and when it does not any more."""
        difference = case.asked[worker].verdict.difference
        before = case.differences.get(worker)
        if difference == before:
            return
        names = _names(case.models)
        if difference is None:
            del case.differences[worker]
            log.info("pool %s: worker %s agrees on %s again", case.pool, worker, names)
        else:
            case.differences[worker] = difference
            log.warning(
                "pool %s: worker %s makes other tokens of %s: %s; prompts are keyed by their text"
                " until all workers agree",
                case.pool,
                worker,
                names,
                difference,
            )


def _by_pool(settings: Settings) -> dict[str, TokenizerSettings]:
    return {pool.name: pool.tokenizer or settings.tokenizer for pool in settings.all_pools()}


def _first_of_each(pool: Pool) -> list[tuple[str, Worker]]:
    """Every model with the first worker that serves it; adapters last.

    Where workers differ on what a model is, the first one counts, and agreement tells the rest.
    """
    found: dict[str, Worker] = {}
    for worker in pool.workers:
        for name in worker.models:
            found.setdefault(name, worker)
    return sorted(found.items(), key=lambda one: is_adapter(one[0], one[1].models))


def _serving(case: Case, pool: Pool) -> list[Worker]:
    return [worker for worker in pool.workers if not case.models.keys().isdisjoint(worker.models)]


def _ready(case: Case, pool: Pool) -> list[Worker]:
    return [worker for worker in _serving(case, pool) if worker.ready]


def _identities(asked: Mapping[str, Asked]) -> dict[str, str]:
    return {name: one.identity for name, one in asked.items()}


def _name(worker: Worker) -> str:
    return worker.name


def _names(models: Mapping[str, str]) -> str:
    names = list(models)
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
