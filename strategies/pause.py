"""A pause for answers: long prompts do not follow each other on a worker without a break.

While an engine computes a long prompt, each request that decodes there gets one token per chunk of
it: their answers nearly stand still. If long prompts follow each other, as when a fleet starts with
empty caches, answers that have begun do not end until all prompts are computed. So before the next
long prompt, a worker may have a pause of about as long as an answer takes, in which those that have
begun come to their end. Shorter prompts are not held up.

A pause makes everyone who comes later wait, so there is one only if it spares the answers there
much more than it takes, and if it is likely to end most of them: few of them, and short ones. Where
many decode, new answers begin as fast as others end. And only if most workers are busy with long
prompts: else they do not follow each other, as some worker is always free for the next one.
"""

from collections.abc import Sequence
from typing import Final

from strategies.base import Candidate, Decision, Prompt
from strategies.load import LONG_S, Load

#: Seconds of pause for each token of the answer that is expected.
TOKEN_S = 0.013
#: The most tokens of an answer for which to pause.
SHORT_ANSWER = 256
#: The most answers on the worker for which to pause.
FEW: Final = 12
#: A pause has to spare the answers there so many times its length together, in predicted seconds,
#: which are more than the actual ones (see `pace.py`).
WORTH = 12.0
#: There is none if so many held requests a worker come before it: where many wait, the time is
#: needed for them.
MOST_WAITING = 1.5
#: There is one only if this share of the workers compute a long prompt, or have their own pause.
MOST_BUSY = 0.6


def pauses(prompt: Prompt, decision: Decision, now: float) -> bool:
    """Whether its worker should not be given the prompt yet, for the sake of the answers there."""
    choice = decision.candidates[0]
    prefill_s, answer = choice.cost.prefill, prompt.answer_tokens
    if prefill_s < LONG_S or choice.preempts or not 0 < answer <= SHORT_ANSWER:
        return False
    load, pause = choice.worker.load, TOKEN_S * answer
    decoding = load.decoding
    if decoding > FEW or decoding * prefill_s < WORTH * pause:
        return False
    return _is_busy(load, pause, now) and _all_are(decision.candidates, pause, now)


def _is_busy(load: Load, pause: float, now: float) -> bool:
    """Whether a worker computes a long prompt, or one has ended there less than a pause ago."""
    return now - load.long_at < pause or load.computes_long()


def _all_are(workers: Sequence[Candidate], pause: float, now: float) -> bool:
    """Whether most workers are busy with long prompts, and not much waits for them."""
    busy = waiting = 0
    for one in workers:
        busy += _is_busy(one.worker.load, pause, now)
        waiting += len(one.worker.load.promises)
    return busy >= MOST_BUSY * len(workers) and waiting < MOST_WAITING * len(workers)
