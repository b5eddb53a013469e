"""Cache-aware peer policies, each from its published rule; exact knowledge replaces KV events.

Sources are named in each docstring. Where a rule counts blocks, tokens are counted here. That
changes no comparison, because all terms of a sum have the same unit.
"""

from collections.abc import Sequence
from statistics import fmean, pstdev

from benchmarks.routing.fleet import Seat
from benchmarks.routing.peers import Peer
from simulator.strides import BLOCK_TOKENS
from strategies.base import Candidate, Cost, Decision, Outcome, Prompt, WorkerView


class Knowing(Peer):
    """Base of policies with exact knowledge of every cache and of the prefill that they placed."""

    #: Seconds for which placements count as held before their events arrive; 0: not at all.
    ahead_s = 0.0

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self._ahead = {seat.name: dict[int, float]() for seat in seats}
        self.pending = dict.fromkeys((seat.name for seat in seats), 0)
        """Uncached tokens of the prompts sent to each worker that had no first token yet."""
        self._own: dict[int, int] = {}
        self._held: list[int] = []

    def held(self, prompt: Prompt, now: float) -> list[int]:
        """Tokens of the prompt that each seat has cached; the last token is always computed."""
        limit = (prompt.tokens - 1) // BLOCK_TOKENS
        keys = prompt.keys[:limit]
        self._held = []
        for seat in self.seats:
            blocks, ahead = seat.engine.cache.held(keys), self._ahead[seat.name]
            while blocks < len(keys) and ahead.get(keys[blocks], 0.0) > now:
                blocks += 1
            self._held.append(blocks * BLOCK_TOKENS)
        return self._held

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Add the prompt's uncached tokens to the worker's pending ones."""
        if self.ahead_s:
            self._ahead[worker.name].update(dict.fromkeys(prompt.keys, now + self.ahead_s))
        place = next(n for n, seat in enumerate(self.seats) if seat is worker)
        own = prompt.tokens - self._held[place]  # held as of the choice, which was just made
        self._own[id(prompt)] = own
        self.pending[worker.name] += own

    def computed(self, prompt: Prompt, worker: WorkerView) -> None:
        """Remove the prompt's tokens from the pending ones."""
        self.pending[worker.name] -= self._own.pop(id(prompt), 0)


class Conductor(Peer):
    """Mooncake's: least predicted time to first token (FAST'25 section 4), from the true pace."""

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Add queued prefill and this prompt's prefill, in seconds."""
        limit = (prompt.tokens - 1) // BLOCK_TOKENS
        costs, totals = [], []
        for seat in self.seats:
            held = seat.engine.cache.held(prompt.keys, limit) * BLOCK_TOKENS
            prefill = seat.engine.profile.prefill_seconds(prompt.tokens - held, held)
            cost = Cost(wait=seat.load.wait(now), prefill=prefill)
            costs.append(Candidate(seat, cost, held))
            totals.append(cost.wait + cost.prefill)
        best = self.least(totals)
        return Decision([costs[self.seats.index(best)]], "peer")


class KvAware(Knowing):
    """vllm-router's `kv_aware`: (new + active prefill tokens) x (active requests + 1)."""

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Score as in `policies/kv_aware.rs`."""
        return [
            (prompt.tokens - held + self.pending[seat.name]) * (seat.load.in_flight + 1)
            for seat, held in zip(self.seats, self.held(prompt, now), strict=True)
        ]


class Dynamo(Knowing):
    """NVIDIA Dynamo's: weight x prefill blocks + decode blocks; shared active blocks count once.

    `lib/kv-router/src/scheduling/selector/default.rs`; without overlap decay, the default. With
    `--router-predicted-ttl-secs` (`lib/kv-router`, off by default) placements of the last seconds
    count as held: for each worker the larger match of both indexes is used.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        seed: int = 0,
        *,
        weight: float = 1.0,
        predicted_s: float = 0.0,
    ) -> None:
        super().__init__(seats, seed)
        self._weight = weight
        self.ahead_s = predicted_s
        self._active: dict[str, dict[int, int]] = {seat.name: {} for seat in seats}

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Add prefill and decode blocks, in tokens."""
        scores = []
        for seat, held in zip(self.seats, self.held(prompt, now), strict=True):
            active = self._active[seat.name]
            prefill = self.pending[seat.name] + prompt.tokens - held
            new = len(prompt.keys) + 1 - _depth(prompt.keys, active)
            scores.append(self._weight * prefill + (len(active) + new) * BLOCK_TOKENS)
        return scores

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Mark the prompt's blocks as active on the worker."""
        super().placed(prompt, worker, now)
        active = self._active[worker.name]
        for key in prompt.keys:
            active[key] = active.get(key, 0) + 1

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Unmark the prompt's active blocks."""
        active = self._active[candidate.worker.name]
        for key in prompt.keys:
            active[key] -= 1
            if not active[key]:
                del active[key]


class Scorers(Knowing):
    """llm-d's weighted scorers: prefix share, waiting requests, KV use.

    Weights are 2:1:1 in `deploy/config/epp-precise-prefix-cache-config.yaml` and 3:2:2 in guides.
    Each score is between 0 and 1; the largest sum wins. `speculativeIndexing` (off by default)
    counts placements of the last two seconds as held (`pkg/kvcache`).
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        seed: int = 0,
        *,
        weights: tuple[float, ...] = (2, 1, 1),
        speculative_s: float = 0.0,
    ) -> None:
        super().__init__(seats, seed)
        self._weights = weights
        self.ahead_s = speculative_s

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Return the negated weighted sums, because the least score wins here."""
        prefix, queue, usage = self._weights
        waiting = [len(seat.engine.waiting) for seat in self.seats]
        most, spread = max(waiting), max(waiting) - min(waiting)
        return [
            -(
                prefix * held / prompt.tokens
                + queue * ((most - waits) / spread if spread else 1.0)
                + usage * (1.0 - seat.engine.usage)
            )
            for seat, held, waits in zip(self.seats, self.held(prompt, now), waiting, strict=True)
        ]


class Affinity(Knowing):
    """llm-d's recipe of 2026: the prefix affinity filter, then the fewest tokens in flight.

    The filter keeps the workers that hold 80 % of the prompt, unless the best of them is over 18 s
    of prefill behind the best worker (`scheduling/filter/prefixcacheaffinity`). `token-load-scorer`
    decides among the rest. llm-d counts in the engine's blocks, usually of 16 tokens, while blocks
    here have 512. With `in_tokens`, a match is therefore extended to just before the next block.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        seed: int = 0,
        *,
        in_tokens: bool = False,
        speculative_s: float = 0.0,
    ) -> None:
        super().__init__(seats, seed)
        self._more = BLOCK_TOKENS - 1 if in_tokens else 0
        self.ahead_s = speculative_s

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Filter the seats, then compare their pending prefill."""
        waits = [
            self.pending[seat.name] / seat.engine.profile.prefill_tokens_per_s
            for seat in self.seats
        ]
        held = self.held(prompt, now)
        near = [kept > 0 and kept + self._more >= 0.8 * prompt.tokens for kept in held]
        if any(near) and not all(near):
            best = min(wait for wait, kept in zip(waits, near, strict=True) if kept)
            if best - min(waits) <= 18.0:
                waits = [
                    wait if kept else float("inf") for wait, kept in zip(waits, near, strict=True)
                ]
        return self.least(waits)


class Placements(Peer):
    """Base of policies that know only their own placements, and never forget them.

    Their trees are thus far larger than the caches.
    """

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self.sent: dict[str, set[int]] = {seat.name: set() for seat in seats}

    def depths(self, prompt: Prompt) -> list[int]:
        """Leading blocks of the prompt that were sent to each seat before."""
        return [_depth(prompt.keys, self.sent[seat.name]) for seat in self.seats]

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Record all blocks of the prompt."""
        self.sent[worker.name].update(prompt.keys)

    def forget(self, worker: str) -> None:
        """Drop all records of a worker."""
        self.sent[worker].clear()


class CacheAware(Placements):
    """SGLang's `cache_aware` by request counts, with its command line's defaults: 0.3, 64, 1.5.

    `model_gateway/src/policies/cache_aware.rs`: the least loaded worker while loads differ by more
    than 64 and by more than a factor of 1.5; otherwise the best match if it covers more than 0.3
    of the prompt; otherwise the least loaded.
    """

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Check the balance of loads, then match."""
        loads = [seat.load.in_flight for seat in self.seats]
        low, high = min(loads), max(loads)
        depths = self.depths(prompt)
        deepest = max(depths)
        unbalanced = high - low > 64 and high > 1.5 * low
        if unbalanced or deepest * BLOCK_TOKENS <= 0.3 * prompt.tokens:
            return self.least(loads)
        return self.least(
            [
                load if depth == deepest else float("inf")
                for load, depth in zip(loads, depths, strict=True)
            ]
        )


class PrefixStack(Placements):
    """vLLM production-stack's `prefixaware`: a random one of the longest matches, load ignored.

    `routers/routing_logic.py` and `prefix/hashtrie.py`, `prefix_min_match_length` 0.
    """

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Score by the match alone."""
        return [-depth for depth in self.depths(prompt)]


class Brix(Placements):
    """AIBrix's `prefix-cache` (`algorithms/prefix_cache.go`), with its code's defaults: 8 and 1.

    The best match whose load is at most the mean plus one standard deviation; the least loaded if
    there is none. While loads differ by more than 8, matches count only among the least loaded.
    Its Helm chart sets 16 and 2. Its newest code asks for a difference of 8 or more, and besides
    for a highest load of more than twice the mean plus one (`means` 2).
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        seed: int = 0,
        *,
        apart: int = 8,
        deviations: float = 1.0,
        means: float = 0.0,
    ) -> None:
        super().__init__(seats, seed)
        self._apart = apart
        self._deviations = deviations
        self._means = means

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Find the highest acceptable load, then match."""
        loads = [seat.load.in_flight for seat in self.seats]
        mean, high = fmean(loads), max(loads)
        bound = mean + self._deviations * pstdev(loads)
        if high - min(loads) > self._apart and high > self._means * (mean + 1):
            bound = min(loads)
        fitting = [
            (-depth, load, place)
            for place, (depth, load) in enumerate(zip(self.depths(prompt), loads, strict=True))
            if depth and load <= bound
        ]
        return self.seats[min(fitting)[2]] if fitting else self.least(loads)


def _depth(keys: Sequence[int], known: dict[int, int] | set[int]) -> int:
    """How many leading keys are known, by bisection: known paths are complete from the root."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in known:
            low = middle
        else:
            high = middle - 1
    return low
