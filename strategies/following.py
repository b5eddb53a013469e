"""Following: a prompt that everybody sends is sent behind others like it, not held.

When a fleet computes a prompt that everybody sends, one worker after the other is done. What was
held until then would all go to the first of them, as the others seem busy for longer than they are.
"""

from typing import Final

from strategies.base import Decision, Prompt
from strategies.load import Load
from strategies.preemption import MOSTLY, computes_most

#: It is sent to a worker with at most this many seconds of prefill booked, which is just computing
#: most of the same prompt, unless others are held for that worker.
OWN_READY_S: Final = 1.6
#: Requests are alike if at least this share of the workers hold, or compute, as much of the prompt
#: as the first choice does, or most of it. A burst for one prompt that only few workers compute is
#: held for these: if it followed, more workers would compute the prompt.
WIDELY: Final = 0.5


def follows(prompt: Prompt, load: Load, wait: float) -> bool:
    """Whether a request that is one of many alike is sent to this worker, though it waits there."""
    return wait <= OWN_READY_S and not load.promises and computes_most(load, prompt)


def alike(prompt: Prompt, decision: Decision) -> bool:
    """Whether the prompt is one of many alike, by what the workers that were compared hold of it.

    What is reported of a prompt and what was sent of it end at different blocks, so workers that
    hold most of it need not hold equally much. Where nothing is known to be held, none is alike.
    """
    compared = decision.candidates[: len(decision.candidates) - decision.aside]
    held = compared[0].held_tokens
    least = min(held, MOSTLY * prompt.tokens)
    same = sum(one.held_tokens >= least for one in compared)
    return held > 0 and same >= WIDELY * len(compared)
