"""What operators see of tokenizers: `/tokenizers`, a metric, and log lines.

Each thing is logged once, and again when it changes.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, Self

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from router.fleet.pool import Pool
from router.observe.models import Shown
from router.tokenizers.state import SourceCase, WorkerRecord
from router.tokenizers.verify import Agreement, DifferenceStatus


class TokenizerWorkerStatus(Shown):
    """What a worker says of our tokens."""

    name: str
    state: str
    """`agrees`, `unverified` or `differs`."""
    why: str
    difference: DifferenceStatus | None

    @classmethod
    def of(cls, name: str, record: WorkerRecord) -> Self:
        """Return the form in which a worker's result is shown."""
        verdict = record.verdict
        return cls(name=name, state=verdict.state, why=verdict.why, difference=verdict.difference)


class TokenizerStatus(Shown):
    """Models of a pool that have their tokenizer from one source."""

    pool: str
    models: list[str]
    source: str
    """`folder`, `hub`, `worker` or `text`."""
    name: str
    """The folder or the hub id; of workers, what they have loaded."""
    why: str
    """Why this source."""
    library: str | None
    """What tokenizes, and why it is that."""
    keyed: Literal["tokens", "text"]
    """What prompts are keyed by now."""
    reason: str
    """Why not by tokens."""
    workers: list[TokenizerWorkerStatus]

    @classmethod
    def of(cls, case: SourceCase) -> Self:
        """Return the form in which a source is shown."""
        tokenizer = case.tokenizer
        return cls(
            pool=case.pool,
            models=sorted(case.models),
            source=case.origin.kind,
            name=case.origin.name,
            why=case.origin.why,
            library=f"{tokenizer.library}: {tokenizer.why}" if tokenizer else None,
            keyed="tokens" if case.trusted else "text",
            reason=case.reason,
            workers=[TokenizerWorkerStatus.of(*item) for item in sorted(case.asked.items())],
        )


def tokenizer_metrics(pools: Iterable[Pool], cases: Iterable[SourceCase]) -> Iterator[Metric]:
    """Yield whether workers make the same tokens as the router."""
    counts_of: dict[str, Counter[Agreement]] = {pool.name: Counter() for pool in pools}
    for case in cases:
        counts_of.setdefault(case.pool, Counter()).update(case.counts())
    workers = GaugeMetricFamily(
        "warmroute_tokenizer_workers",
        "Workers by whether they make the same tokens, once for each tokenizer.",
        labels=("pool", "state"),
    )
    for pool, counts in counts_of.items():
        for state in Agreement:
            workers.add_metric((pool, state.value), counts[state])
    yield workers


log = logging.getLogger("warmroute.tokenizers")

#: Most models named in one line.
MAX_NAMED_MODELS = 3
#: What becomes of a strategy that looks prompts up among KV events.
BLIND = "without tokens, none of their KV events can be used"


def log_source(case: SourceCase, *, by_blocks: bool) -> None:
    """Log which source is used and why, once that is known, and when it has changed.

    `by_blocks`: the pool looks prompts up among blocks of tokens, for which text is no use.
    """
    blind = by_blocks and not case.trusted
    sentence = case.sentence() + (f"; {BLIND}" if blind else "")
    if sentence == case.logged or (case.can_be_known and not case.asked):
        return
    case.logged = sentence
    counts = ", ".join(f"{count} {state}" for state, count in case.counts().items() if count)
    workers = f" (workers: {counts})" if counts else ""
    guessed = not (case.can_be_known or case.origin.told)
    remedy = "; the setting `tokenizer` can name a folder or a hub id" if guessed else ""
    level = logging.WARNING if blind else logging.INFO
    log.log(level, "pool %s: %s: %s%s%s", case.pool, _names(case.models), sentence, workers, remedy)


def log_difference(case: SourceCase, worker: str) -> None:
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


def log_recount(pool: str, count: int) -> None:
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
