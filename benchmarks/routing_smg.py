"""The newer rules of smg, which was SGLang's model gateway.

`model_gateway/src/policies/least_load.rs` and `cache_aware.rs` of github.com/smg-project/smg.
"""

from collections.abc import Sequence
from math import inf
from statistics import fmean

from benchmarks.routing_fleet import Seat
from benchmarks.routing_peers import Peer
from benchmarks.routing_rules import Knowing, Placements
from simulator.strides import BLOCK_TOKENS, Job
from strategies.base import Prompt

#: Tokens per second that a queue is divided by where no live rate is reported, seconds that KV
#: pressure is worth, and the most KV use that is told apart: `least_load`'s defaults.
THROUGHPUT, PRESSURE_S, MOST = 2_000.0, 0.15, 0.999
#: A matched worker is left if it has more than this many times the mean requests in flight, and
#: more than so many above it; and the least share of a prompt that counts as a match in a tree.
#: Its command line's defaults.
RELATIVE, ABSOLUTE, SHARE = 1.5, 64, 0.3


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


class LeastLoad(Peer):
    """The least expected wait; caches do not count."""

    def score(self, prompt: Prompt, now: float) -> Sequence[float]:
        """Score by the expected waits."""
        return expected_waits(self.seats)


class SmgTrees(Placements):
    """`cache_aware` over HTTP: of all that were sent the longest match, the least expected wait.

    The match has to cover more than 0.3 of the prompt. (Its trees lose what is oldest once they
    have 2^26 characters; here they do not.)
    """

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Match, then compare the expected waits."""
        depths = self.depths(prompt)
        deepest = max(depths)
        enough = deepest * BLOCK_TOKENS > SHARE * prompt.tokens
        return _chosen(self, [enough and depth == deepest for depth in depths])


class SmgEvents(Knowing):
    """`cache_aware` with KV events (gRPC): of those that hold most, the least expected wait.

    Any match counts, so whoever holds a first block that all prompts share gets all that is new,
    until it is too busy. smg's newest code gives one in so many requests with a short match to a
    worker that holds far less than the others; that is left out.
    """

    def choose(self, prompt: Prompt, now: float) -> Seat:
        """Match, then compare the expected waits."""
        held = self.held(prompt, now)
        most = max(held)
        return _chosen(self, [most > 0 and kept == most for kept in held])


def _chosen(peer: Peer, matched: Sequence[bool]) -> Seat:
    loads = [seat.load.in_flight for seat in peer.seats]
    waits = expected_waits(peer.seats)
    return peer.least(
        [wait if may else inf for wait, may in zip(waits, allowed(matched, loads), strict=True)]
    )
