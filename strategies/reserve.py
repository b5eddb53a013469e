"""A reserve in each KV cache: its last part is left to prompts that take little time to compute.

While an engine computes a prompt, the answers there nearly stand still, and what they hold of the
KV cache does not come free. Where the cache is nearly full of answers, prompts that lack most of
their prefix would fill it up one after the other. Then those of which nearly everything lies there
find no room for the little that they need, though they would be computed in a moment. So a prompt
that takes long, compared with how often answers end there, is held while it would use the last part
of the cache.
"""

from typing import Final

from strategies.base import Candidate, Prompt

#: The share of a KV cache that counts as full for prompts that take long.
NEARLY: Final = 0.92
#: A prompt takes long if so many answers end there on average, in the time that its prefill is
#: predicted to take. So it waits for little compared with its own time. And where all prompts are
#: alike, none takes long: no more answers can end than are computed, in the long run, which is one
#: in the time of a prefill, or `pace.MARGIN` by predicted times.
ANSWERS: Final = 2.5
#: It is held for so many seconds at most: a cache may stay nearly full for long.
MOST_S: Final = 5.0
#: Seconds that its later turns are expected to wait there (the cost's *home*), at the least: where
#: little is asked for again, no prompts come of which nearly everything lies there.
LATER_S: Final = 0.2


def left_to_others(prompt: Prompt, choice: Candidate, held_s: float) -> bool:
    """Whether the prompt would use what is left to shorter ones in the KV cache of its worker.

    `held_s`: seconds for which the request has been held. One that gave way has its place already,
    and one that takes more of the cache than all others there waits for none of them.
    """
    load, space = choice.worker.load, choice.worker.room_tokens
    if not space or prompt.resumed or choice.preempts:
        return False
    if held_s >= MOST_S or choice.cost.home < LATER_S:
        return False
    # (What is loaded from slower tiers takes room as what is computed does.)
    lacks = prompt.tokens - choice.held_tokens + choice.loading.tokens
    own = lacks + prompt.answer_tokens
    used = load.kv_tokens - load.shared_tokens
    if own > used or used + own <= NEARLY * space:
        return False
    # (By Little's law, `in_flight / stay_s` of them end per second.)
    return choice.cost.prefill * load.in_flight >= ANSWERS * load.stay_s
