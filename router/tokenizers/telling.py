"""Log lines about tokenizers: each thing is logged once, and again when it changes."""

import logging
from collections.abc import Iterable

from router.tokenizers.state import Case

log = logging.getLogger("warmroute.tokenizers")

#: Most models named in one line.
NAMED = 3
#: What becomes of a strategy that looks prompts up among KV events.
BLIND = "without tokens, none of their KV events can be used"


def tell(case: Case, *, by_blocks: bool = False) -> None:
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


def tell_of(case: Case, worker: str) -> None:
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
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
