"""The models of one pool that share a tokenizer source, and whether it may be trusted. Pure.

A source is trusted once every ready worker that serves the models was asked and none makes other
tokens, and for as long as none does. For workers that cannot be asked, the settings' word is taken.
But if engines may tokenize differently from the router, at least one worker has to confirm the
router's tokens.

Which models of each pool need which tokenizer source.

Log lines about tokenizers: each thing is logged once, and again when it changes.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.settings.tokenizer import TokenizerSettings
from router.tokenizers.sources import (
    NoTokenizerFound,
    Origin,
    SourceKind,
    TokenizerFinder,
    TokenizerSearch,
    at_workers,
    identity,
    is_adapter,
    origin,
)
from router.tokenizers.tokenizer import LoadedTokenizer
from router.tokenizers.verify import Agreement, Difference, Verdict

#: Seconds until a worker that did not agree is asked again; doubled each time, up to an hour.
RETRY_INTERVAL_S, MAX_RETRY_INTERVAL_S = 15.0, 3600.0
#: Seconds until a worker that agreed is asked again if prompts contain the date, which may differ
#: at some hours of the day because of its time zone or clock. Also used if it did not answer
#: everything.
DATED_RECHECK_INTERVAL_S = 600.0


@dataclass
class WorkerRecord:
    """What one worker was found to do."""

    verdict: Verdict
    due: float = inf
    """When to ask it again."""
    times: int = 0
    """How often in a row it did not agree."""


@dataclass(eq=False)
class SourceCase:
    """One tokenizer source, and the models that use it."""

    pool: str
    origin: Origin
    wanted: TokenizerSearch
    models: dict[str, str] = field(default_factory=dict)
    """The identity of each model, by name; base models before adapters."""
    volume: LoadedTokenizer | None = None
    why: str = ""
    """Why there is no volume."""
    asked: dict[str, WorkerRecord] = field(default_factory=dict)
    """Results by the worker's name."""
    missing: TokenizerSearch | None = None
    """What was searched for and not found, so that workers are asked instead; searches continue."""
    trusted: bool = False
    told: str = ""
    """The last log line about it."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """Differences already logged, by the worker's name."""
    choosing: bool = False
    """Clients send tools with `tool_choice: none`, so it matters what workers make of them."""
    taking: set[str] = field(default_factory=set)
    """Workers that agree and accept a chat's token ids with the request."""

    def found(self, volume: LoadedTokenizer | None, why: str) -> None:
        """Take the result of a search; if it has changed, verify everything again."""
        self.why = why
        if volume is not self.volume:
            self.volume = volume
            self.asked.clear()
            self.taking.clear()
            self.trusted = False

    @property
    def can_be_known(self) -> bool:
        """Return true if there is anything to tokenize with."""
        return self.volume is not None or self.origin.kind is SourceKind.WORKER

    def waiting(self, ready: Iterable[str], now: float) -> list[str]:
        """Return those of these workers that are to be asked now."""
        if not self.can_be_known:
            return []
        return [name for name in ready if (one := self.asked.get(name)) is None or one.due <= now]

    def judged(self, worker: str, verdict: Verdict, now: float, *, choosing: bool = False) -> None:
        """Record what was found about a worker; `choosing`: `tool_choice: none` was checked too.

        A worker that differed stays so until it agrees, even if it cannot be asked meanwhile.
        """
        before = self.asked.get(worker)
        if (
            before
            and before.verdict.state is Agreement.DIFFERS
            and verdict.state is Agreement.UNVERIFIED
        ):
            verdict = before.verdict
        if verdict.state is Agreement.AGREES:
            dated = self.volume is not None and self.volume.exact.dated
            untold = self.choosing and verdict.left_out is None
            due = now + DATED_RECHECK_INTERVAL_S if dated or untold else inf
            if untold and not choosing:
                due = now  # clients began to send such tools meanwhile
            self.asked[worker] = WorkerRecord(verdict, due)
            return
        times = before.times + 1 if before else 1
        pause = min(MAX_RETRY_INTERVAL_S, RETRY_INTERVAL_S * 2.0 ** (times - 1))
        self.asked[worker] = WorkerRecord(verdict, now + pause, times)

    def doubt(self, workers: Iterable[str] | None = None) -> None:
        """Ask these workers again, or all; their results hold until then."""
        for name in self.asked if workers is None else workers:
            if name in self.asked:
                self.asked[name].due = 0.0
                self.asked[name].times = 0

    def choose(self) -> None:
        """Note that clients send tools with `tool_choice: none`; ask the workers for which that is
        open."""
        if not self.choosing:
            self.choosing = True
            self.doubt([name for name, one in self.asked.items() if one.verdict.left_out is None])

    def decide(self, workers: Iterable[str], ready: Iterable[str]) -> None:
        """Decide whether to trust the source.

        `workers` are all that serve its models, `ready` those of them that are ready.
        """
        names, present = set(workers), set(ready)
        for gone in set(self.asked).difference(names):
            del self.asked[gone]
        for gone in set(self.differences).difference(names):
            del self.differences[gone]
        self.taking &= names
        states = {name: one.verdict.state for name, one in self.asked.items()}
        if not self.can_be_known or Agreement.DIFFERS in states.values():
            self.trusted = False
        elif self.origin.kind is SourceKind.WORKER:
            self.trusted = Agreement.AGREES in states.values()
        elif not self.trusted:
            self.trusted = bool(present) and present.issubset(states) and not self._unconfirmed

    @property
    def _unconfirmed(self) -> bool:
        """Return true if engines may tokenize differently and no worker confirmed our tokens."""
        return (
            self.volume is not None
            and not self.volume.sure
            and not any(map(self.agrees, self.asked))
        )

    @property
    def media(self) -> bool:
        """Return true if all workers agree on the tokens before an image too."""
        asked = self.asked.values()
        return self.trusted and bool(asked) and all(one.verdict.media for one in asked)

    @property
    def left_out(self) -> bool | None:
        """Return true if workers leave tools out of prompts with `tool_choice: none`.

        None (not known) if workers differ in that, one did not tell, or none could be asked.
        """
        answers = {
            record.verdict.left_out
            for record in self.asked.values()
            if record.verdict.state is Agreement.AGREES
        }
        return answers.pop() if len(answers) == 1 else None

    def model_of(self, served: Iterable[str]) -> str | None:
        """Return the first of these models that uses this source."""
        return next((name for name in served if name in self.models), None)

    def agrees(self, worker: str) -> bool:
        """Return true if a worker makes the same tokens, as far as is known."""
        one = self.asked.get(worker)
        return one is not None and one.verdict.state is Agreement.AGREES

    def counts(self) -> Mapping[Agreement, int]:
        """Return how many workers are in each state."""
        counts = dict.fromkeys(Agreement, 0)
        for one in self.asked.values():
            counts[one.verdict.state] += 1
        return counts

    def sentence(self) -> str:
        """Return which source is used, and why, as a sentence."""
        if self.trusted and self.volume is not None:
            path = f" ({self.volume.path})" if self.origin.kind is SourceKind.HUB else ""
            return (
                f"tokens by {self.volume.library} ({self.volume.why}),"
                f" from {self.origin}{path}: {self.origin.why}"
            )
        if self.trusted:
            return f"tokens by asking workers: {self.origin.why}"
        return f"keyed by text: {self.reason}"

    @property
    def reason(self) -> str:
        """Why the source is not trusted; empty if it is."""
        if self.trusted:
            return ""
        if not self.can_be_known:
            return self.why or self.origin.why
        if any(one.verdict.state is Agreement.DIFFERS for one in self.asked.values()):
            return "a worker tokenizes differently"
        if self.origin.kind is SourceKind.WORKER and self.asked:
            return "no worker answers"
        if self.asked and self._unconfirmed:
            return "no worker confirms what engines may tokenize another way"
        return "no worker was asked yet"


Cases = dict[tuple[str, TokenizerSearch], SourceCase]
"""Cases by pool and source."""

_NEEDED = "nothing else is known, and the strategy needs them"


class ModelGroups:
    """Groups a fleet's models by the source of their tokenizer."""

    def __init__(self, fleet: Fleet, finding: TokenizerFinder) -> None:
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

    def look(self, case: SourceCase) -> None:
        """Take the result of a case's search; repeat a failed search when it is due."""
        if case.missing is not None:
            self._finding.look(case.missing)
        if case.wanted.kind not in {SourceKind.FOLDER, SourceKind.HUB}:
            return
        result = self._finding.look(case.wanted)
        if isinstance(result, LoadedTokenizer):
            case.found(result, "")
        else:
            case.found(None, result.why if result else "it is being looked for")

    @property
    def may_ask(self) -> bool:
        """Return true if the end of a search may mean that workers are to be asked."""
        return any(map(_needs_tokens, self._fleet.pools))

    def _sort_pool(
        self, pool: Pool, settings: TokenizerSettings, before: Cases, cases: Cases
    ) -> None:
        told: dict[Origin, TokenizerSearch] = {}
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
                told[found] = TokenizerSearch.told(found, settings)
            key = (pool.name, told[found])
            if key not in cases:
                cases[key] = before.get(key) or SourceCase(pool.name, found, key[1])
                cases[key].models = {}
                cases[key].missing = missing
                self.look(cases[key])
            cases[key].models[name] = identity(name, worker.models)

    def _origin(
        self, pool: Pool, settings: TokenizerSettings, name: str, worker: Worker
    ) -> tuple[Origin, TokenizerSearch | None]:
        """Return where to look, and what was missing if workers are asked instead.

        Asking workers is a last resort, for strategies that cannot do without tokens: for most,
        asking for every prompt costs more than it gains.
        """
        found = origin(settings.source, name, worker.models)
        if settings.source != "auto" or not _needs_tokens(pool):
            return found, None
        wanted = None if found.kind is SourceKind.TEXT else TokenizerSearch.told(found, settings)
        if wanted is None or isinstance(self._finding.look(wanted), NoTokenizerFound):
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


log = logging.getLogger("warmroute.tokenizers")

#: Most models named in one line.
MAX_NAMED_MODELS = 3
#: What becomes of a strategy that looks prompts up among KV events.
BLIND = "without tokens, none of their KV events can be used"


def tell(case: SourceCase, *, by_blocks: bool = False) -> None:
    """Log which source is used and why, once that is known, and when it has changed.

    `by_blocks`: the pool looks prompts up among blocks of tokens, for which text is no use.
    """
    blind = by_blocks and not case.trusted
    sentence = case.sentence() + (f"; {BLIND}" if blind else "")
    if sentence == case.told or (case.can_be_known and not case.asked):
        return
    case.told = sentence
    counts = ", ".join(f"{count} {state}" for state, count in case.counts().items() if count)
    workers = f" (workers: {counts})" if counts else ""
    guessed = not (case.can_be_known or case.origin.told)
    remedy = "; the setting `tokenizer` can name a folder or a hub id" if guessed else ""
    level = logging.WARNING if blind else logging.INFO
    log.log(level, "pool %s: %s: %s%s%s", case.pool, _names(case.models), sentence, workers, remedy)


def tell_of(case: SourceCase, worker: str) -> None:
    """Log how a worker differs, once, and when it no longer does."""
    difference = case.asked[worker].verdict.difference
    if difference == case.differences.get(worker):
        return
    names = _names(case.models)
    if difference is None:
        del case.differences[worker]
        log.info("pool %s: worker %s agrees on %s again", case.pool, worker, names)
        return
    case.differences[worker] = difference
    log.warning(
        "pool %s: worker %s tokenizes %s differently: %s; prompts are keyed by their text"
        " until all workers agree",
        case.pool,
        worker,
        names,
        difference,
    )


def tell_recount(pool: str, count: int) -> None:
    """Log that workers count other tokens."""
    log.warning(
        "pool %s: workers report other token counts than the router, %d times by now;"
        " their tokenizers are checked again",
        pool,
        count,
    )


def _names(models: Iterable[str]) -> str:
    names = list(models)
    more = len(names) - MAX_NAMED_MODELS
    return ", ".join(names[:MAX_NAMED_MODELS]) + (f" and {more} more" if more > 0 else "")
