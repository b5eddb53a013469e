"""`kvaware`: a prompt goes where its prefix is, according to the engines' KV events.

The memory says what each worker holds and on which tier. Running requests are added, because their
events have not arrived yet. If a worker's events are missing or cannot be trusted, a shadow of what
was sent there is used instead, as in `prefixaware`, and the reason of the decision says so.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from strategies.api import (
    Bytes,
    Candidate,
    Capabilities,
    Decision,
    KvSources,
    Outcome,
    Prompt,
    Seconds,
    Strategy,
    WorkerView,
    option,
)
from strategies.cost.cost import held_tokens
from strategies.cost.prefill import Held, Loading
from strategies.policies.prefix_aware import PrefixAware, PrefixAwareOptions, reason
from strategies.prefix.tree import Placement, PrefixTree

#: Most requests kept after their end; the oldest are dropped.
MAX_ENDED = 1 << 16


@dataclass(frozen=True)
class KvAwareOptions:
    """What an operator may set."""

    index: Bytes = option(
        Bytes(256 << 20),
        "Most memory for the index of all workers' blocks; the least recently used go first.",
    )
    shadow: Bytes = option(
        Bytes(64 << 20),
        "Most memory for what was sent to workers without usable events, as in prefixaware.",
    )
    unconfirmed: Seconds = option(
        Seconds(1.0),
        "How long an answered prompt still counts where it was sent, as its events may be on their "
        "way.",
    )
    threshold: int = option(
        0,
        "If every worker would have to compute more tokens of a prompt than this, the least loaded "
        "takes it, whatever others hold; 0: what workers hold always counts.",
    )

    def __post_init__(self) -> None:
        if self.threshold < 0:
            raise ValueError(f"threshold must be at least 0, not {self.threshold}")


class InFlight:
    """Prefixes of running requests by worker, and of those that ended at most `seconds` ago.

    Takes at most `limit_bytes`. An engine cannot evict what a running request uses, and soon after
    its end all its events have arrived: from then on only events tell what is left.
    """

    def __init__(self, limit_bytes: int, seconds: float) -> None:
        self._tree = PrefixTree(limit_bytes)
        self._seconds = seconds
        self._ended: deque[tuple[float, Placement]] = deque()
        """What has ended, each with the time until which it counts."""

    def insert(self, keys: Sequence[int], worker: str, now: float) -> Placement:
        """Record that `worker` is sent the prompt with these keys; to be settled once."""
        self._let_go(now)
        return self._tree.insert(keys, worker)

    def held(self, keys: Sequence[int], now: float) -> dict[str, int]:
        """Return how many of the prompt's first blocks each worker has from these requests."""
        self._let_go(now)
        return self._tree.held(keys)

    def settle(self, placement: Placement, now: float, *, took: bool) -> None:
        """End the request; if the worker did not accept it (`took`), drop it at once."""
        if not took:
            self._tree.leave(placement)
            return
        self._ended.append((now + self._seconds, placement))
        if len(self._ended) > MAX_ENDED:
            self._tree.leave(self._ended.popleft()[1])

    def forget(self, worker: str) -> None:
        """Drop everything the worker was sent."""
        self._tree.forget(worker)

    def _let_go(self, now: float) -> None:
        ended = self._ended
        while ended and ended[0][0] <= now:
            self._tree.leave(ended.popleft()[1])

    def __len__(self) -> int:
        """Return the number of blocks, counted once for each holder."""
        return len(self._tree)


class _Placed(NamedTuple):
    sent: Placement
    """Its placement in the tree of running requests."""
    shadowed: bool
    """The shadow made the prediction, so the outcome corrects the shadow."""
    judged: bool
    """No running request affected the prediction: the outcome shows how right the memory is."""
    predicted: int | None
    """What the memory predicted, if the decision did not use it."""
    heard: int
    """Number of events that had come from the worker by then."""


class KvAware(Strategy):
    """Believes the engines' events; without a memory it works like `prefixaware`."""

    Options: ClassVar[type[Any]] = KvAwareOptions
    capabilities = Capabilities(hears_others=True)

    def __init__(self, options: KvAwareOptions) -> None:
        self._shadow = PrefixAware(PrefixAwareOptions(options.shadow))
        self._costs = self._shadow.costs
        self._threshold = options.threshold
        self._in_flight = InFlight(options.shadow // 8, options.unconfirmed)
        self._promoted = PrefixTree(options.shadow // 8)
        """Starts of prompts that workers loaded from L2 and keep on L1, although no event says so:
        until an answer shows that they do not."""
        self.kv: KvSources = KvSources(options.index)
        # By prompt and worker; only requests in flight have an entry.
        self._placed: dict[tuple[int, str], _Placed] = {}

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Put the cheapest worker first; each is credited with what its events say it holds."""
        reported: Mapping[str, Held] = {}
        if self.kv.memory is not None and prompt.blocks:
            reported = self.kv.memory.held(prompt, [worker.name for worker in workers])
        stored = self._stored(prompt)
        match = self._shadow.tree.match(prompt.keys)
        shadow = match.held()
        in_flight = self._in_flight.held(prompt.keys, now)
        promoted = self._promoted.held(prompt.keys) if self.kv.loads.promotes else {}
        tokens: dict[str, int] = {}
        loading: dict[str, Loading] = {}
        for worker in workers:
            name = worker.name
            doubt = self._doubt(prompt, name)
            held = Held(held_tokens(prompt, shadow.get(name, 0)))
            if not doubt:
                held = reported.get(name, _NOTHING)
                if name in promoted:
                    held = held.at_least(l1=held_tokens(prompt, promoted[name]))
            held = self._counted(held, stored)
            if not doubt:
                held = held.at_least(gpu=_sent(prompt, in_flight.get(name, 0)))
            tokens[name] = held.total
            if held.total > held.gpu:
                loading[name] = self.kv.loads.of(held, worker.pace)
        most = max(tokens.values())
        below = self._threshold and most < prompt.tokens - self._threshold
        plain = self._costs.rank(prompt, workers, now, match=match) if below else ()
        candidates: Sequence[Candidate] = self._costs.rank(
            prompt, workers, now, tokens, loading=loading, match=match
        )
        if below:
            by_name = {candidate.worker.name: candidate for candidate in candidates}
            candidates = [by_name[candidate.worker.name] for candidate in plain]
        best = candidates[0]
        why = "below_threshold" if below else reason(best.held_tokens, most)
        if why == "prefix" and best.believed.tier != "gpu":
            why = best.believed.tier
        doubt = self._doubt(prompt, best.worker.name)
        return Decision(candidates, f"{why} ({doubt})" if doubt else why)

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Count the placement at once, so that the second request of a burst finds the first."""
        self._shadow.placed(prompt, worker, now)
        name = worker.name
        judged = bool(prompt.blocks) and name not in self._in_flight.held(prompt.keys, now)
        predicted = None
        if self.kv.memory is not None and judged and self.kv.memory.doubt(name, prompt):
            reported = self.kv.memory.held(prompt, [name]).get(name, _NOTHING)
            predicted = self._counted(reported, self._stored(prompt)).total
        sent = self._in_flight.insert(prompt.keys, name, now)
        shadowed = bool(self._doubt(prompt, name))
        heard = self.kv.memory.heard(name) if self.kv.memory is not None else 0
        self._placed[id(prompt), name] = _Placed(sent, shadowed, judged, predicted, heard)

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Compare prediction and outcome; take back a placement that the worker refused."""
        name = candidate.worker.name
        placed = self._placed.pop((id(prompt), name), None)
        if placed is None:
            return
        took = outcome.began and outcome.kept_tokens is None
        # (How another process predicted with a memory is not known here.)
        known = self.kv.memory is None or not prompt.elsewhere
        self._shadow.end(prompt, candidate, outcome, now, corrects=placed.shadowed and known)
        self._in_flight.settle(placed.sent, now, took=took)
        if not (took and known):
            return
        cached = outcome.cached_tokens
        if self.kv.store is not None and outcome.ok:
            self.kv.store.computed(prompt, candidate.held_tokens if cached is None else cached)
        self._learn(prompt, candidate, outcome, shadowed=placed.shadowed)
        if self.kv.memory is not None:
            predicted = candidate.held_tokens if placed.predicted is None else placed.predicted
            judged = predicted if placed.judged and not prompt.resumed else None
            self.kv.memory.observe(name, judged, outcome, placed.heard)

    def _learn(
        self, prompt: Prompt, candidate: Candidate, outcome: Outcome, *, shadowed: bool
    ) -> None:
        """Learn from loaded blocks: how fast tiers load, what stays on L1, and what was wrong."""
        name, cached, believed = candidate.worker.name, outcome.cached_tokens, candidate.believed
        if not outcome.ok or cached is None:
            return
        tiers = outcome.found or believed.found(cached)
        if tiers != believed and candidate.loading.tokens:
            self._missed(prompt, name, tiers.gpu + tiers.l1)
            if self.kv.memory is not None and not shadowed:
                sure = outcome.found is not None
                self.kv.memory.correct(name, prompt, believed, tiers, sure=sure)
        if outcome.found is not None or cached == candidate.held_tokens:  # else it is not certain
            if outcome.computed_s and (tiers.l1 or tiers.l2):
                rest = max(0, prompt.tokens - cached), cached
                self.kv.loads.learn(tiers, rest, candidate.worker.pace, outcome.computed_s)
            if tiers.l2 and self.kv.loads.promotes:
                promoted = self._promoted
                promoted.close(promoted.insert(prompt.keys[: prompt.blocks_in(cached)], name))

    def _missed(self, prompt: Prompt, worker: str, tokens: int) -> None:
        """Expect nothing on the worker's L1 if it had fewer `tokens` there and on its GPU."""
        blocks = self._promoted.held(prompt.keys).get(worker, 0)
        if held_tokens(prompt, blocks) > tokens + prompt.unit_tokens:
            self._promoted.forget(worker)

    def waits(self, prompt: Prompt) -> Callable[[], object]:
        """Count a request that is held in the router, until the returned function is called."""
        return self._shadow.waits(prompt)

    def forget(self, worker: str) -> None:
        """Drop all that is known of the worker."""
        self._shadow.forget(worker)
        self._in_flight.forget(worker)
        self._promoted.forget(worker)
        if self.kv.memory is not None:
            self.kv.memory.forget(worker)

    def gauges(self) -> Mapping[str, float]:
        """Return sizes of the shadow and of placements not confirmed by events."""
        return {
            **self._shadow.gauges(),
            "unconfirmed_blocks": len(self._in_flight),
            "promoted_blocks": len(self._promoted),
        }

    def _stored(self, prompt: Prompt) -> int:
        return 0 if self.kv.store is None else self.kv.store.held(prompt)

    def _counted(self, held: Held, stored: int) -> Held:
        """Return what counts of what a worker holds; a store has the first `stored`, which do."""
        return self.kv.loads.counted(self.kv.loads.counted(held).at_least(l2=stored))

    def _doubt(self, prompt: Prompt, worker: str) -> str:
        if self.kv.memory is None:
            return "no memory"
        return self.kv.memory.doubt(worker, prompt) or ("" if prompt.blocks else "text")


_NOTHING = Held()


def _sent(prompt: Prompt, blocks: int) -> int:
    """Return tokens of running requests' blocks, in whole engine blocks; never the last token."""
    tokens = held_tokens(prompt, blocks)
    return tokens - tokens % min(prompt.blocks, default=1)
