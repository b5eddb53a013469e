"""The models of one pool that share a tokenizer source, and whether it may be trusted. Pure.

A source is trusted once every ready worker that serves the models was asked and none makes other
tokens, and for as long as none does. For workers that cannot be asked, the settings' word is taken.
But if engines may tokenize differently from the router, at least one worker has to confirm the
router's tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from router.fleet.worker import Worker
from router.rendering.tokens import LoadedTokenizer
from router.tokenizers.sources import Origin, SourceKind, TokenizerSearch
from router.tokenizers.verify import Agreement, DifferenceStatus, Verdict
from router.tokenizers.worker_tokenizer import WorkerTokenizer

#: Seconds until a worker that did not agree is asked again; doubled each time, up to an hour.
RETRY_INTERVAL_S, MAX_RETRY_INTERVAL_S = 15.0, 3600.0
#: Seconds until a worker that agreed is asked again if prompts contain the date, which may differ
#: at some hours of the day because of its time zone or clock. Also used if it did not answer
#: everything.
DATED_RECHECK_INTERVAL_S = 600.0
#: Seconds between two checks of workers that count otherwise; doubled each time, up to an hour.
RECOUNT_INTERVAL_S, MAX_RECOUNT_INTERVAL_S = 60.0, 3600.0


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
    workers: list[Worker] = field(default_factory=list)
    """All workers that serve its models."""
    tokenizer: LoadedTokenizer | None = None
    why: str = ""
    """Why there is no tokenizer."""
    asked: dict[str, WorkerRecord] = field(default_factory=dict)
    """Results by the worker's name."""
    missing: TokenizerSearch | None = None
    """What was searched for and not found, so that workers are asked instead; searches continue."""
    trusted: bool = False
    logged: str = ""
    """The last log line about it."""
    differences: dict[str, DifferenceStatus] = field(default_factory=dict)
    """Differences already logged, by the worker's name."""
    choosing: bool = False
    """Clients send tools with `tool_choice: none`, so it matters what workers make of them."""
    taking: set[str] = field(default_factory=set)
    """Workers that agree and accept a chat's token ids with the request."""
    askers: dict[str, WorkerTokenizer] = field(default_factory=dict)
    """What asks the workers for tokens, by the model's name."""

    def found(self, tokenizer: LoadedTokenizer | None, why: str) -> None:
        """Take the result of a search; if it has changed, verify everything again."""
        self.why = why
        if tokenizer is not self.tokenizer:
            self.tokenizer = tokenizer
            self.asked.clear()
            self.taking.clear()
            self.trusted = False

    @property
    def can_be_known(self) -> bool:
        """Return true if there is anything to tokenize with."""
        return self.tokenizer is not None or self.origin.kind is SourceKind.WORKER

    def waiting(self, ready: Iterable[str], now: float) -> list[str]:
        """Return those of these workers that are to be asked now."""
        if not self.can_be_known:
            return []
        return [name for name in ready if name not in self.asked or self.asked[name].due <= now]

    def judged(self, worker: str, verdict: Verdict, now: float, *, choosing: bool = False) -> None:
        """Record what was found about a worker; `choosing`: `tool_choice: none` was checked too.

        A worker that differed stays so until it agrees, even if it cannot be asked meanwhile.
        """
        before = self.asked.get(worker)
        if verdict.state is Agreement.AGREES:
            dated = self.tokenizer is not None and self.tokenizer.exact.dated
            untold = self.choosing and verdict.left_out is None
            due = now + DATED_RECHECK_INTERVAL_S if dated or untold else inf
            if untold and not choosing:
                due = now  # clients began to send such tools meanwhile
            self.asked[worker] = WorkerRecord(verdict, due)
            return
        differed = before is not None and before.verdict.state is Agreement.DIFFERS
        if before is not None and differed and verdict.state is Agreement.UNVERIFIED:
            verdict = before.verdict
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
            records = self.asked.items()
            self.doubt([name for name, record in records if record.verdict.left_out is None])

    def decide(self, workers: Iterable[str], ready: Iterable[str]) -> None:
        """Decide whether to trust the source.

        `workers` are all that serve its models, `ready` those of them that are ready.
        """
        names, present = set(workers), set(ready)
        for gone in self.asked.keys() - names:
            del self.asked[gone]
        for gone in self.differences.keys() - names:
            del self.differences[gone]
        self.taking &= names
        if not self.can_be_known or self.counts()[Agreement.DIFFERS]:
            self.trusted = False
        elif self.origin.kind is SourceKind.WORKER:
            self.trusted = bool(self.counts()[Agreement.AGREES])
        elif not self.trusted:
            all_asked = bool(present) and present <= self.asked.keys()
            self.trusted = all_asked and not self._unconfirmed

    @property
    def _unconfirmed(self) -> bool:
        """Return true if engines may tokenize differently and no worker confirmed our tokens."""
        sure = self.tokenizer is None or self.tokenizer.sure
        return not sure and not any(map(self.agrees, self.asked))

    @property
    def media(self) -> bool:
        """Return true if all workers agree on the tokens before an image too."""
        records = self.asked.values()
        return self.trusted and bool(records) and all(record.verdict.media for record in records)

    @property
    def left_out(self) -> bool | None:
        """Return true if workers leave tools out of prompts with `tool_choice: none`.

        None (not known) if workers differ in that, one did not tell, or none could be asked.
        """
        verdicts = [record.verdict for record in self.asked.values()]
        answers = {each.left_out for each in verdicts if each.state is Agreement.AGREES}
        return answers.pop() if len(answers) == 1 else None

    def model_of(self, served: Iterable[str]) -> str | None:
        """Return the first of these models that uses this source."""
        return next((name for name in served if name in self.models), None)

    def agrees(self, worker: str) -> bool:
        """Return true if a worker makes the same tokens, as far as is known."""
        record = self.asked.get(worker)
        return record is not None and record.verdict.state is Agreement.AGREES

    def counts(self) -> Mapping[Agreement, int]:
        """Return how many workers are in each state."""
        counts = dict.fromkeys(Agreement, 0)
        for record in self.asked.values():
            counts[record.verdict.state] += 1
        return counts

    def sentence(self) -> str:
        """Return which source is used, and why, as a sentence."""
        if self.trusted and self.tokenizer is not None:
            path = f" ({self.tokenizer.path})" if self.origin.kind is SourceKind.HUB else ""
            return (
                f"tokens by {self.tokenizer.library} ({self.tokenizer.why}),"
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
        if self.counts()[Agreement.DIFFERS]:
            return "a worker tokenizes differently"
        if self.origin.kind is SourceKind.WORKER and self.asked:
            return "no worker answers"
        if self.asked and self._unconfirmed:
            return "no worker confirms what engines may tokenize another way"
        return "no worker was asked yet"


class Recount:
    """When to check why a pool's workers count other tokens than the router.

    Some workers always do, so checks become rarer.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._due = 0.0
        self._pause = RECOUNT_INTERVAL_S

    def is_due(self, count: int, now: float) -> bool:
        """Return whether to check: `count`, of miscounted prompts, has grown, and it is time."""
        if count <= self._seen:
            self._seen = count  # another pool of this name has restarted the count
            return False
        if now < self._due:
            return False
        self._seen, self._due = count, now + self._pause
        self._pause = min(MAX_RECOUNT_INTERVAL_S, 2 * self._pause)
        return True
