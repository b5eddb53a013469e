"""Peers that know no caches, or only where they sent what, each from its published rule.

Every peer has ideal information, while in practice its gauges are seconds old. So the only thing
that can put a peer at a disadvantage here is its rule.
"""

from collections.abc import Sequence
from math import inf
from random import Random
from statistics import fmean, pstdev

from benchmarks.routing.drive import Seat
from benchmarks.routing.strides import BLOCK_TOKENS, Job
from benchmarks.routing.workloads import Talk, follows
from strategies.api import FREE, Candidate, Decision, Prompt, Strategy, WorkerView

#: Tokens per second that a queue is divided by where no live rate is reported, seconds that KV
#: pressure is worth, and the most KV use that is told apart: `least_load`'s defaults.
THROUGHPUT, PRESSURE_S, MOST = 2_000.0, 0.15, 0.999
#: A matched worker is left if it has more than this many times the mean requests in flight, and
#: more than so many above it; and the least share of a prompt that counts as a match in a tree.
#: Its command line's defaults.
RELATIVE, ABSOLUTE, SHARE = 1.5, 64, 0.3


class Peer(Strategy):
    """Base of peer policies: chooses the seat with the least `score`, ties broken at random."""

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        self.seats = seats
        self.chance = Random(seed)
        self.session = 0

    def about(self, talk: Talk) -> None:
        """Announce the talk of the next request, for policies that use sessions."""
        self.session = talk.session

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Return a decision with the chosen seat as the only candidate."""
        return Decision([Candidate(self.choose(prompt, now), FREE)], "peer")

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Return the seat with the least score."""
        return self.least(self.score(prompt, now))

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Return a score for each seat; the least is the best."""
        return [0.0] * len(self.seats)

    def least(self, scores: Sequence[float]) -> Seat:
        """Return the seat with the least score, drawn at random among equals."""
        best = min(scores)
        ties = [seat for seat, score in zip(self.seats, scores, strict=True) if score == best]
        return ties[0] if len(ties) == 1 else self.chance.choice(ties)

    def computed(self, prompt: Prompt, worker: WorkerView) -> None:
        """Note that the first token of a request has arrived."""


class AtRandom(Peer):
    """A random worker."""


class LeastRequests(Peer):
    """The worker with the fewest requests in flight."""

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Score by requests in flight."""
        return [seat.load.in_flight for seat in self.seats]


class TwoChoices(Peer):
    """The one of two workers drawn at random that has fewer requests in flight."""

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Draw two and compare."""
        two = self.chance.sample(self.seats, min(2, len(self.seats)))
        return min(two, key=lambda seat: seat.load.in_flight)


class Sticky(Peer):
    """A session stays on the worker that had the fewest requests in flight when it began."""

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self._bound: dict[int, Seat] = {}

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Return the session's seat, binding the session first if it is new."""
        if self.session not in self._bound:
            self._bound[self.session] = self.least([seat.load.in_flight for seat in self.seats])
        return self._bound[self.session]


class BoundedLoad(Peer):
    """Consistent hashing with bounded loads, on the prompt's first block.

    After KubeAI `internal/loadbalancer/balance_chwbl.go`: the first worker on the ring with at most
    1.25 times the mean load, counting the new request; the first on the ring if none qualifies
    (as happens with few requests in flight).
    """

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Walk the ring from the position of the first block."""
        key = prompt.keys[0] if prompt.keys else prompt.tokens
        bound = 1.25 * (sum(seat.load.in_flight for seat in self.seats) + 1) / len(self.seats)
        ring = sorted(range(len(self.seats)), key=lambda place: follows(key, place))
        for place in ring:
            if self.seats[place].load.in_flight + 1 <= bound:
                return self.seats[place]
        return self.seats[ring[0]]


class Placements(Peer):
    """Base of policies that know only their own placements, and never forget them.

    Their trees are thus far larger than the caches.
    """

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        super().__init__(seats, seed)
        self.sent: dict[str, set[int]] = {seat.name: set() for seat in seats}

    def depths(self, prompt: Prompt) -> list[int]:
        """Leading blocks of the prompt that were sent to each seat before."""
        return [depth_of(prompt.keys, self.sent[seat.name]) for seat in self.seats]

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Record all blocks of the prompt."""
        self.sent[worker.name].update(prompt.keys)

    def forget(self, worker: str) -> None:
        """Drop all records of a worker."""
        self.sent[worker].clear()


class Brix(Placements):
    """AIBrix's `prefix-cache` (`algorithms/prefix_cache.go`), with its Helm chart's 16 and 2.

    The best match whose load is at most the mean plus two standard deviations; the least loaded if
    there is none. While loads differ by more than 16, matches count only among the least loaded.
    """

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Find the highest acceptable load, then match."""
        loads = [seat.load.in_flight for seat in self.seats]
        bound = fmean(loads) + 2.0 * pstdev(loads)
        if max(loads) - min(loads) > 16:
            bound = min(loads)
        fitting = [
            (-depth, load, place)
            for place, (depth, load) in enumerate(zip(self.depths(prompt), loads, strict=True))
            if depth and load <= bound
        ]
        return self.seats[min(fitting)[2]] if fitting else self.least(loads)


class RayPrefix(Placements):
    """Ray Serve's `PrefixCacheAffinityRouter`: the longest match, whatever the load, its default.

    `python/ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py`. Of the
    workers with the longest match, the one with the shortest queue; if that covers less than a
    tenth of the prompt, those that were sent the least text.
    """

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Match, then compare the queues."""
        depths = self.depths(prompt)
        if max(depths) * BLOCK_TOKENS < 0.1 * prompt.tokens:
            depths = [-len(self.sent[seat.name]) for seat in self.seats]
        best = max(depths)
        loads = [seat.load.in_flight for seat in self.seats]
        return self.least(
            [load if depth == best else inf for load, depth in zip(loads, depths, strict=True)]
        )


class SmgTrees(Placements):
    """smg's `cache_aware` over HTTP (`model_gateway/src/policies`, github.com/smg-project/smg).

    Of all workers that were sent the longest match, the least expected wait. The match has to cover
    more than 0.3 of the prompt. (Its trees lose what is oldest once they have 2^26 characters; here
    they do not.)
    """

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Match, then compare the expected waits."""
        depths = self.depths(prompt)
        deepest = max(depths)
        enough = deepest * BLOCK_TOKENS > SHARE * prompt.tokens
        matched = [enough and depth == deepest for depth in depths]
        may = allowed(matched, [seat.load.in_flight for seat in self.seats])
        waits = expected_waits(self.seats)
        return self.least([wait if one else inf for wait, one in zip(waits, may, strict=True)])


def expected_waits(seats: Sequence[Seat]) -> list[float]:
    """`least_load`'s score in seconds: queued tokens / throughput + 0.15 k / (1 - k).

    *k* is the share of the KV cache in use. smg adds what it sent since it last asked the worker,
    ten seconds ago at most, to the queue that the worker reported. Here, the queue is known, and
    the rest of the prompt that is being computed counts as well.
    """
    waits = []
    for seat in seats:
        engine = seat.engine
        used = min(engine.usage, MOST)
        tokens = sum(_lacking(seat, job) for job in engine.waiting)
        if engine.prefilling is not None:
            tokens += engine.prefilling.prompt_tokens - engine.prefilling.computed
        waits.append(tokens / THROUGHPUT + PRESSURE_S * used / (1.0 - used))
    return waits


def _lacking(seat: Seat, job: Job) -> int:
    limit = (job.prompt_tokens - 1) // BLOCK_TOKENS
    return job.prompt_tokens - seat.engine.cache.held(job.keys, limit) * BLOCK_TOKENS


def allowed(matched: Sequence[bool], loads: Sequence[int]) -> list[bool]:
    """Which workers a request may go to: those matched, unless all of them are too busy.

    Too busy is for each worker by itself. Then all that are not too busy are left to choose from.
    """
    mean = fmean(loads)
    calm = [not (load > RELATIVE * mean and load > mean + ABSOLUTE) for load in loads]
    fitting = [one and other for one, other in zip(matched, calm, strict=True)]
    if any(fitting):
        return fitting
    return calm if any(matched) and any(calm) else [True] * len(loads)


def depth_of(keys: Sequence[int], known: dict[int, int] | set[int]) -> int:
    """How many leading keys are known, by bisection: known paths are complete from the root."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in known:
            low = middle
        else:
            high = middle - 1
    return low
