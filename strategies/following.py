"""Following: a prompt that everybody sends is sent behind others like it, not held.

When a fleet computes a prompt that everybody sends, one worker after the other is done. What was
held until then would all go to the first of them, as the others seem busy for longer than they are.
"""

from collections.abc import Collection
from typing import Final

from strategies.base import Candidate, Prompt
from strategies.load import Load
from strategies.preemption import computes_most

#: It is sent to a worker with at most this many seconds of prefill booked, which is just computing
#: most of the same prompt, unless others are held for that worker.
OWN_READY_S: Final = 1.6
#: Requests are alike if at least this share of the workers hold, or compute, equally much of the
#: prompt. A burst for one prompt that only few workers compute is held for these: if it followed,
#: more workers would compute the prompt.
WIDELY: Final = 0.5


def follows(prompt: Prompt, load: Load, wait: float) -> bool:
    """Whether a request that is one of many alike is sent to this worker, though it waits there."""
    return wait <= OWN_READY_S and not load.promises and computes_most(load, prompt)


def alike(candidates: Collection[Candidate], held: int) -> bool:
    """Whether as many workers as that hold `held` tokens of the prompt."""
    same = sum(one.held_tokens == held for one in candidates)
    return same >= WIDELY * len(candidates)
