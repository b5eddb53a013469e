"""The cost in seconds: one number a worker, and every strategy that compares workers uses it."""

from collections.abc import Iterable

from strategies.base import Candidate, Cost, Prompt, WorkerView

#: Share of its prefill seconds that each request decoding there is delayed by, as it counts here.
CROWD = 0.02
#: Share of its prefill seconds that those who come later wait for it. So of two equally early
#: answers the one that computes less is taken, and siblings of a burst wait for their first.
LATER = 0.1
#: Seconds that a half-full KV cache is worth; grows as used / free.
PRESSURE_S = 0.05
#: Beyond this share of use the cache counts as this full: the cost stays finite and comparable.
FULLEST = 0.98


def cost(prompt: Prompt, worker: WorkerView, held_tokens: float, now: float) -> Cost:
    """Price `prompt` on `worker`, which holds the first `held_tokens` tokens of it."""
    load = worker.load
    prefill = worker.pace.prefill(prompt.tokens - held_tokens, held_tokens)
    room = worker.kv_tokens
    pressure = 0.0
    if room:
        share = (load.kv_tokens + prompt.tokens + prompt.answer_tokens) / room
        share = min(share, FULLEST)
        pressure = PRESSURE_S * share / (1.0 - share)
    return Cost(load.wait(now), prefill, (LATER + CROWD * load.decoding) * prefill, pressure)


def held_tokens(prompt: Prompt, blocks: int) -> int:
    """Tokens of `blocks` held blocks; the last token of a prompt is always computed.

    Source: vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`.
    """
    if not blocks:
        return 0
    return min(int(prompt.ends[blocks] * prompt.unit_tokens), max(0, prompt.tokens - 1))


def cheapest_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort by cost; ties go to the least booked, then to the least recently chosen."""
    return sorted(candidates, key=_rank)


def _rank(candidate: Candidate) -> tuple[float, float, int]:
    wait, prefill, crowd, pressure = candidate.cost
    return (wait + prefill + crowd + pressure, wait, candidate.worker.load.turn)
