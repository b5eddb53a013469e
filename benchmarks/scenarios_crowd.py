"""Many want the same, or all at once, or there are many workers."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.routing_columns import SMALL
from benchmarks.routing_drive import Fleet, Placed
from benchmarks.routing_made import bursts, chats, no_reuse, one_prefix
from benchmarks.routing_work import Talk, Work
from benchmarks.scenarios_check import ROOMY, Check, hit_rate, imbalance, p99, run, ttft


def hot_prefix(size: float) -> Sequence[Check]:
    """Everybody has the same prefix: it must not hold everybody at one worker.

    Turns suit equal requests perfectly: they compute the prefix on all workers at once, and nobody
    comes twice in a row. So beside them the seconds in which it is computed and those after them
    are looked at apart: of all together, the p99 is one number or the other by one request.
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


#: Seconds in which the prefix is computed for the first time, wherever it is; and a large one.
_EARLY_S, _LARGE_S = 5.0, 80.0
#: In which all workers are to come to hold another one.
_AFTER_S = 60.0


def _halves(done: Sequence[Placed], early_s: float = _EARLY_S) -> tuple[list[Placed], list[Placed]]:
    """Who came early, and who came then."""
    early = [placed for placed in done if placed.asked.at_s <= early_s]
    return early, [placed for placed in done if placed.asked.at_s > early_s]


def large_prefix(size: float) -> Sequence[Check]:
    """The prefix that everybody has is large: more than half of a small KV cache, so that it does
    not fit twice, and need not; or large enough that who holds it gets all, until answers crawl.

    All workers must come to hold it, while turns have it computed everywhere at once.
    """
    little, much = max(160, round(400 * size)), max(600, round(1_500 * size))
    small = Fleet(replace(SMALL, kv_tokens=100_000), 2)
    checks = []
    for what, fleet, work in (
        ("small caches", small, one_prefix(1, 0.8, number=little, shared=60_000)),
        ("many answers", ROOMY, one_prefix(1, 4.0, number=much, shared=64_000)),
    ):
        early, ours = _halves(run(work, fleet=fleet), _LARGE_S)
        their_early, turns = _halves(run(work, "round robin", fleet), _LARGE_S)
        checks += [
            Check(f"mean TTFT at first, {what}", ttft(early) / ttft(their_early), 1.6),
            Check(f"mean TTFT over round robin's, {what}", ttft(ours) / ttft(turns), 1.2),
            Check(f"end to end over round robin's, {what}", _whole(ours) / _whole(turns), 1.2),
        ]
    return checks


def new_prefix(size: float) -> Sequence[Check]:
    """Everybody's system prompt is replaced by another one, on a fleet that is busy with answers.

    Turns have it computed everywhere at once. Who waits for the few who hold it waits longer, and
    where they keep it for themselves they answer for all.
    """
    half = max(300, round(600 * size))
    ours, turns = list[Placed](), list[Placed]()
    for seed in (1, 2, 3):
        work = one_prefix(seed, 4.0, number=2 * half, shared=64_000, another=half)
        began = work.talks[half].at_s
        for policy, kept in (("prefixaware", ours), ("round robin", turns)):
            done = run(work, policy)
            kept += [one for one in done if began <= one.asked.at_s <= began + _AFTER_S]
    return [
        Check("mean TTFT of the minute after over round robin's", ttft(ours) / ttft(turns), 1.6),
        Check("end to end over round robin's", _whole(ours) / _whole(turns), 1.5),
    ]


def _whole(done: Sequence[Placed]) -> float:
    return fmean(placed.ended_s for placed in done)


def cold_siblings(size: float) -> Sequence[Check]:
    """Thirty-two ask the same cold prompt at once: it is computed by few, and nobody waits long."""
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
    """A thousand different requests in one instant are spread like the work they are."""
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
    """Two workers, sixty-four, five hundred: always better than not knowing."""
    checks = []
    for workers in (2, 64, 500):
        fleet = Fleet(SMALL, workers, cache_tokens=2_000_000)
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
