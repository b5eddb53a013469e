"""Scenarios about crowds: hot prefixes, simultaneous requests, and large fleets."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import EngineFleet, Placed
from benchmarks.routing.workloads import Talk, Work, bursts, chats, no_reuse, one_prefix
from benchmarks.scenarios.checks import ROOMY, Check, hit_rate, imbalance, p99, run, ttft


def hot_prefix(size: float) -> Sequence[Check]:
    """All requests have the same prefix, which must not draw all of them to one worker.

    Round robin suits equal requests perfectly: it computes the prefix on all workers at once, and
    no worker gets two requests in a row. The seconds in which the prefix is computed and the time
    after are compared separately, because a single request decides which of the two determines the
    overall p99.
    """
    work = one_prefix(1, 40.0, number=max(400, round(3_000 * size)))
    ours, turns = run(work), run(work, "round robin")
    (early, late), (their_early, their_late) = _halves(ours), _halves(turns)
    return [
        Check("mean TTFT over round robin's", ttft(ours) / ttft(turns), 1.02),
        Check("p99 TTFT of the first 5 s over round robin's", p99(early) / p99(their_early), 1.02),
        Check("p99 TTFT after them over round robin's", p99(late) / p99(their_late), 1.2),
        Check("end to end over round robin's", _whole(ours) / _whole(turns), 1.02),
        Check("booked seconds, max over mean", imbalance(ours, 8), 1.15),
    ]


#: Seconds from the start in which workers compute the prefix for the first time: normal, large.
_EARLY_S, _LARGE_S = 5.0, 80.0
#: Seconds after a change of the prefix, by which all workers should hold the new one.
_CHANGE_S = 60.0


def _halves(done: Sequence[Placed], early_s: float = _EARLY_S) -> tuple[list[Placed], list[Placed]]:
    """Split requests into those that came in the first `early_s` seconds and the others."""
    early = [placed for placed in done if placed.asked.at_s <= early_s]
    return early, [placed for placed in done if placed.asked.at_s > early_s]


def large_prefix(size: float) -> Sequence[Check]:
    """All requests share a large prefix, in two variants.

    Either it takes more than half of a small KV cache, so that it does not fit twice; or it is so
    large that its holders attract all requests until their answers become slow. In both, all
    workers must come to hold it. Round robin computes it everywhere at once.
    """
    little, much = max(160, round(400 * size)), max(600, round(1_500 * size))
    small = EngineFleet(replace(SMALL, kv_tokens=100_000), 2)
    checks = []
    for what, fleet, work in (
        ("small caches", small, one_prefix(1, 0.8, number=little, shared=60_000)),
        ("many answers", ROOMY, one_prefix(1, 4.0, number=much, shared=64_000)),
    ):
        early, ours = _halves(run(work, fleet=fleet), _LARGE_S)
        their_early, turns = _halves(run(work, "round robin", fleet), _LARGE_S)
        checks += [
            Check(f"mean TTFT at first, {what}", ttft(early) / ttft(their_early), 1.4),
            Check(f"mean TTFT over round robin's, {what}", ttft(ours) / ttft(turns), 1.2),
            Check(f"end to end over round robin's, {what}", _whole(ours) / _whole(turns), 1.2),
        ]
    return checks


def new_prefix(size: float) -> Sequence[Check]:
    """The shared system prompt is replaced by a new one, on a fleet that is busy with answers.

    Round robin computes it everywhere at once. Requests that wait for the few workers that hold it
    wait longer; and if only these hold it, they must decode all answers.
    """
    half = max(400, round(600 * size))
    ours, turns = list[Placed](), list[Placed]()
    for seed in (1, 2, 3):
        work = one_prefix(seed, 4.0, number=2 * half, shared=64_000, another=half)
        began = work.talks[half].at_s
        for policy, several in (("prefixaware", ours), ("round robin", turns)):
            done = run(work, policy)
            several += [
                placed for placed in done if began <= placed.asked.at_s <= began + _CHANGE_S
            ]
    return [
        Check("mean TTFT of the minute after over round robin's", ttft(ours) / ttft(turns), 1.3),
        Check("end to end over round robin's", _whole(ours) / _whole(turns), 1.3),
    ]


def _whole(done: Sequence[Placed]) -> float:
    return fmean(placed.ended_s for placed in done)


def cold_siblings(size: float) -> Sequence[Check]:
    """Bursts of 32 requests for one cold prompt: few workers compute it, and none waits long."""
    work = bursts(1, 12.0, number=max(4, round(24 * size)))
    ours, exact = run(work), run(work, "vllm-router kv_aware")
    return [
        Check("tokens computed over kv_aware's", _computed(ours) / _computed(exact), 0.9),
        Check("mean TTFT over kv_aware's", ttft(ours) / ttft(exact), 1.02),
    ]


def _computed(done: Sequence[Placed]) -> int:
    return sum(
        placed.asked.prompt.tokens - (placed.asked.job.cached_tokens or 0) for placed in done
    )


def all_at_once(_: float) -> Sequence[Check]:
    """A thousand different requests at the same time are spread by the work they need."""
    count = 1_000
    whole = no_reuse(1, 1.0, number=count)
    work = Work("at once", [Talk(0.0, talk.session, talk.turns) for talk in whole.talks])
    ours, fewest = run(work), run(work, "least requests")
    return [
        Check("requests without an answer", count - len(ours), 0),
        Check("booked seconds, max over mean", imbalance(ours, 8), 1.15),
        Check("mean TTFT over least requests'", ttft(ours) / ttft(fewest), 0.8),
    ]


def fleets(size: float) -> Sequence[Check]:
    """Fleets of 2, 64 and 500 workers: always better than without knowledge of caches."""
    checks = []
    for workers in (2, 64, 500):
        fleet = EngineFleet(SMALL, workers, cache_tokens=2_000_000)
        users = max(8, round(min(37 * workers, 1_000) * size))
        work = chats(1, 0.9 * workers, users=users, rounds=6)
        ours, plain = run(work, fleet=fleet), run(work, "leastload", fleet)
        checks += [
            Check(f"mean TTFT over leastload's, {workers}", ttft(ours) / ttft(plain), 0.7),
            Check(
                f"hits over leastload's, {workers}",
                hit_rate(ours) / hit_rate(plain),
                1.2,
                least=True,
            ),
        ]
    return checks
