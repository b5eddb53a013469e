"""The cost in seconds: one number a worker, and every strategy that compares workers uses it.

    wait + prefill + price + decode + room

Each term is a time that somebody waits: this request, those that decode, those that come later.
Where a term comes from is said beside its constant.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp

from strategies.base import Candidate, Cost, Prompt, WorkerView

#: A second of prefill delays everybody who comes while it lasts: about s / (1 - s) of them are
#: waiting, s being the share of workers with prefill to do (a queue's length at that load).
PRICE = 3.0
#: Nearly idle or overrun, the price stays within these: so of two equally early answers the one
#: that computes less is taken, and siblings of a burst wait for their first.
LEAST_PRICE, MOST_PRICE = 0.1, 24.0
#: Seconds over which the share of busy workers is smoothed.
SMOOTHED_S = 20.0
#: Seconds that a step takes to read a full KV cache: memory over bandwidth is about the same on
#: every accelerator (H100 80 GB at 3.35 TB/s, A100 80 at 2.0, L40S 48 at 0.86: 24 to 55 ms).
FULL_STEP_S = 0.025
#: Part of the slowness of its own answer, and of others', that counts beside the first token.
DECODE = 0.3
CROWD = 0.0
#: From this share of the KV cache on, a request may have to wait until another one leaves.
FULL = 1.0
#: Part of a request's stay that this wait is at least, when it comes to it.
LEAST_WAIT = 0.25


class Costs:
    """Prices prompts on workers; remembers only how busy they have been."""

    def __init__(self) -> None:
        self._share = 0.0
        self._seen = 0.0

    def rank(
        self,
        prompt: Prompt,
        workers: Sequence[WorkerView],
        now: float,
        held: Mapping[str, int] | None = None,
        shared: Mapping[str, float] | None = None,
    ) -> list[Candidate]:
        """Return a candidate for each worker, cheapest first.

        `held` is how many tokens of the prompt a worker holds, `shared` how many tokens its
        requests have in common, by its name. Ties go to the least booked, then to the least
        recently chosen.
        """
        waits = [worker.load.wait(now) + worker.load.promised_s for worker in workers]
        glob = self.price(workers, now)
        tokens, answer = prompt.tokens, prompt.answer_tokens
        decode = DECODE * answer * FULL_STEP_S
        ranked = []
        for place, worker in enumerate(workers):
            name, load, wait = worker.name, worker.load, waits[place]
            has = held.get(name, 0) if held else 0
            prefill = worker.pace.prefill(tokens - has, has)
            slow = room = 0.0
            price = glob + CROWD * load.decoding
            space = worker.room_tokens
            if space:
                used = float(load.kv_tokens + tokens + answer)
                slow = decode * used / space
                if shared:
                    used -= shared.get(name, 0.0)
                full = used / space
                if full > FULL:
                    room = load.stay_s * min(1.0, full - FULL + LEAST_WAIT)
            cost = Cost(wait, prefill, price * prefill, slow, room)
            total = wait + (1.0 + price) * prefill + slow + room
            ranked.append((total, wait, load.turn, place, Candidate(worker, cost, has)))
        ranked.sort()
        return [entry[4] for entry in ranked]

    def price(self, workers: Iterable[WorkerView], now: float) -> float:
        """What a second of prefill costs everybody else, in seconds."""
        loads = [worker.load for worker in workers]
        share = sum(1 for load in loads if load.pending) / len(loads)
        if now > self._seen:
            self._share += (1.0 - exp((self._seen - now) / SMOOTHED_S)) * (share - self._share)
            self._seen = now
        busy = self._share
        return min(MOST_PRICE, LEAST_PRICE + PRICE * busy / max(0.05, 1.0 - busy))


def held_tokens(prompt: Prompt, blocks: int) -> int:
    """Tokens of `blocks` held blocks; the last token of a prompt is always computed.

    Source: vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`.
    """
    if not blocks:
        return 0
    return min(int(prompt.ends[blocks] * prompt.unit_tokens), max(0, prompt.tokens - 1))
