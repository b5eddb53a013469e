"""Cache hits: the tokens that a worker reports as cached, and on which tiers it found them.

What an answer teaches: its worker's pace, and how many tokens its prompt's text has.
"""

from router.dispatch.preemption import Preempting
from router.dispatch.request import Job
from router.fleet.worker import Worker
from router.upstream.usage import Usage
from strategies.api import Candidate
from strategies.cost.booking import Booking
from strategies.cost.tiers import Held


def with_cached(usage: Usage, worker: Worker, path: str) -> Usage:
    """Add a missing 0: older vLLMs report cached tokens only if there are any.

    Done once the worker has reported them on the same path. Source: vLLM 0.9,
    `entrypoints/openai/serving_chat.py`.
    """
    tells = worker.tells_cached
    if usage.cached is not None:
        tells.add(path)
        worker.reused |= usage.cached > 0
    elif usage.prompt is not None and path in tells:
        return usage._replace(cached=0)
    return usage


def tiers(choice: Candidate, usage: Usage) -> Held | None:
    """Return on which tiers the worker found them; None if it does not report that."""
    if usage.cached is None or usage.gpu is None:
        return None
    return choice.believed.found(usage.cached, usage.gpu, usage.host)


def count(
    job: Job, choice: Candidate, usage: Usage, prompt_tokens: int, cached: int | None
) -> None:
    """Count the tokens that the worker reported; `cached` is at most `prompt_tokens`."""
    expected = min(choice.held_tokens, prompt_tokens)
    job.metrics.used(prompt_tokens, cached, expected)
    if cached is None:
        return
    if job.pool.prompts.keyed and not job.prompt.further:
        job.metrics.compared(cached, expected)
    found, kv = tiers(choice, usage), job.pool.kv
    if found is not None or kv is not None:
        hit = found or choice.believed.found(cached)
        job.metrics.hit(kv.loads.shown(hit) if kv is not None else hit)


def count_resumed(job: Job, prompt_tokens: int, cached: int | None) -> None:
    """Count them for a request that was preempted: what it had got done itself is no hit."""
    first = min(job.held_first, prompt_tokens)
    job.metrics.used(prompt_tokens, None if cached is None else min(cached, first), first)


def learn(
    job: Job,
    worker: Worker,
    choice: Candidate,
    booking: Booking,
    usage: Usage,
    *,
    preempting: Preempting,
) -> None:
    """Learn from the tokens that its worker reported, if it did, and count them."""
    prompt_tokens = usage.prompt
    if prompt_tokens is None:
        return
    job.pool.prompts.learn(job.prompt, prompt_tokens)
    cached = None if usage.cached is None else min(usage.cached, prompt_tokens)
    if job.last is None:
        count(job, choice, usage, prompt_tokens, cached)
    else:
        count_resumed(job, prompt_tokens, cached)
        if cached is not None and worker is job.last:
            first = min(job.held_first, prompt_tokens)
            held = min(choice.held_tokens, prompt_tokens)
            preempting.judge(worker, held - first, cached - first)
    if job.prompt.further or not _computed(choice, usage):
        return
    if cached is None:
        cached = min(choice.held_tokens, prompt_tokens)
    if booking.computed_s is not None:
        worker.pace.observe(prompt_tokens - cached, cached, booking.computed_s)
    elif booking.whole_s is not None:
        worker.pace.bound(prompt_tokens - cached, cached, booking.whole_s)


def _computed(choice: Candidate, usage: Usage) -> bool:
    """Whether the prefill was all computing.

    Otherwise its time says something about how fast a slower tier loads.
    """
    found = tiers(choice, usage)
    loading = choice.loading if found is None else found
    return not (loading.l1 or loading.l2)
