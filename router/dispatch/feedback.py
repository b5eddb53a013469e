"""What the usage in an answer teaches: cache hits, its worker's pace, its prompt's length."""

from router.dispatch.preemption import Preemptions
from router.dispatch.request import InferenceRequest
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
    request: InferenceRequest,
    choice: Candidate,
    usage: Usage,
    prompt_tokens: int,
    cached: int | None,
) -> None:
    """Count the tokens that the worker reported; `cached` is at most `prompt_tokens`."""
    expected = min(choice.held_tokens, prompt_tokens)
    request.metrics.used(prompt_tokens, cached, expected)
    if cached is None:
        return
    if request.pool.prompts.keyed and not request.prompt.further:
        request.metrics.compared(cached, expected)
    found, kv = tiers(choice, usage), request.pool.kv
    if found is not None or kv is not None:
        hit = found or choice.believed.found(cached)
        request.metrics.hit(kv.loads.shown(hit) if kv is not None else hit)


def count_resumed(request: InferenceRequest, prompt_tokens: int, cached: int | None) -> None:
    """Count them for a request that was preempted: what it had got done itself is no hit."""
    first = min(request.held_first, prompt_tokens)
    request.metrics.used(prompt_tokens, None if cached is None else min(cached, first), first)


def learn(
    request: InferenceRequest,
    worker: Worker,
    choice: Candidate,
    booking: Booking,
    usage: Usage,
    *,
    preempting: Preemptions,
) -> None:
    """Learn from the tokens that its worker reported, if it did, and count them."""
    prompt_tokens = usage.prompt
    if prompt_tokens is None:
        return
    request.pool.prompts.learn(request.prompt, prompt_tokens)
    cached = None if usage.cached is None else min(usage.cached, prompt_tokens)
    if request.last is None:
        count(request, choice, usage, prompt_tokens, cached)
    else:
        count_resumed(request, prompt_tokens, cached)
        if cached is not None and worker is request.last:
            first = min(request.held_first, prompt_tokens)
            held = min(choice.held_tokens, prompt_tokens)
            preempting.judge(worker, held - first, cached - first)
    if request.prompt.further or not _computed(choice, usage):
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
