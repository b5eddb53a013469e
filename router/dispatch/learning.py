"""What an answer teaches: its worker's pace, and how many tokens its prompt's text has."""

from router.dispatch import feedback as hits
from router.dispatch.preemption import Preempting
from router.dispatch.request import Job
from router.fleet.worker import Worker
from router.upstream.usage import Usage
from strategies.api import Candidate
from strategies.cost.booking import Booking


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
        hits.count(job, choice, usage, prompt_tokens, cached)
    else:
        hits.count_resumed(job, prompt_tokens, cached)
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
    found = hits.tiers(choice, usage)
    loading = choice.loading if found is None else found
    return not (loading.l1 or loading.l2)
