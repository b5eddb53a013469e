"""Scenarios about changes of the fleet: workers join, leave, are slow, or lose their caches."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import NamedTuple

from benchmarks.routing.drive import Placed, VirtualDrive
from benchmarks.routing.workloads import Work, bursts, chats, no_reuse
from benchmarks.scenarios.checks import Check, drive, hit_rate, p99, run, ttft


def _chats(size: float) -> Work:
    return chats(1, 12.0, users=max(100, round(600 * size)), rounds=8)


#: Chats started a second. At this rate seven workers are busy half of the time, and not overloaded
#: while they recompute what an eighth one held, which is a third more work for half a minute.
_CHATS_PER_S = 3.0
#: Seconds after a change that are evaluated.
_CHANGE_S = 60.0
#: Seeds of the workloads in which the fleet changes.
_SEEDS = (1, 2, 3)


def scale_out(size: float) -> Sequence[Check]:
    """A worker joins seven others or leaves them: few prefixes move, and requests wait no longer.

    The waits are compared with those of the same fleet without the change; the worst of three
    seeds counts.
    """
    checks = []
    works = [chats(seed, _CHATS_PER_S, users=max(150, round(600 * size))) for seed in _SEEDS]
    for change, joins in (("joins", True), ("leaves", False)):
        changes = [_change(work, joins=joins) for work in works]
        moved, all_moved, slower, hits, got = zip(*changes, strict=True)
        checks += [
            Check(f"prefixes that move because one {change}", max(moved), 1 / 8 + 0.05),
            Check(f"all that move when one {change}", max(all_moved), 1 / 4),
            Check(f"p99 TTFT when one {change}, over unchanged", max(slower), 2.0),
            Check(f"hits when one {change}, over unchanged", min(hits), 0.85, least=True),
            Check("its share of what comes then", min(got), 1 / 32, least=True)
            if joins
            else Check("its share of what comes then", max(got), 0.0),
        ]
    return checks


def _change(work: Work, *, joins: bool) -> tuple[float, float, float, float, float]:
    """Run one change; return five numbers that describe the time after it.

    They are: the share of sessions that move, beyond that without a change (where 5 to 9 % move
    too, away from busy workers); the share that move in all; p99 TTFT and hit rate, each divided
    by that without a change; and the share of requests that the eighth worker gets.
    """
    changing, steady = drive(), drive()
    at_s = 0.7 * max(talk.at_s for talk in work.talks)
    eighth = changing.seats[-1]
    if joins:
        changing.eligible.remove(eighth)
        steady.eligible.pop()
        changing.at(at_s, lambda: changing.eligible.append(eighth))
    else:
        changing.at(at_s, lambda: changing.leave(eighth))
    done, usual = (
        [placed for placed in runs.run(work) if placed.at_s < at_s + _CHANGE_S]
        for runs in (changing, steady)
    )
    after, usual_after = (
        [placed for placed in several if placed.at_s >= at_s] for several in (done, usual)
    )
    moved = _moved(done, at_s)
    return (
        moved - _moved(usual, at_s),
        moved,
        p99(after) / p99(usual_after),
        hit_rate(after) / hit_rate(usual_after),
        _count(after, eighth.name) / len(after),
    )


def _moved(done: Sequence[Placed], at_s: float) -> float:
    """Return the share of sessions whose first request after `at_s` left the last one's worker."""
    before: dict[int, str] = {}
    after: dict[int, str] = {}
    for placed in sorted(done, key=lambda placed: placed.at_s):
        session = placed.asked.talk.session
        if placed.at_s < at_s:
            before[session] = placed.seat.name
        else:
            after.setdefault(session, placed.seat.name)
    both = before.keys() & after.keys()
    return sum(before[session] != after[session] for session in both) / max(1, len(both))


def _count(done: Sequence[Placed], worker: str) -> int:
    return sum(placed.seat.name == worker for placed in done)


def slow_worker(size: float) -> Sequence[Check]:
    """One worker is four times slower than the others, and nothing tells the router so."""
    work = _chats(size)
    few = no_reuse(1, 6.0, number=max(300, round(1_000 * size)))
    totals = {}
    for policy in (
        "prefixaware",
        "round robin",
        "least requests",
        "llm-d scorers 3:2:2, flow control",
    ):
        totals[policy] = _one_slow(policy).run(work)
    ours, turns = totals["prefixaware"], totals["round robin"]
    idle = _one_slow("prefixaware").run(few)
    return [
        Check("share of the slow worker", _count(ours, "w0") / len(ours), 1 / 8),
        Check("the same where nobody waits", _count(idle, "w0") / len(idle), 0.03),
        *(
            Check(f"mean TTFT over {policy}'s", ttft(ours) / ttft(done), 1.0)
            for policy, done in totals.items()
            if policy != "prefixaware"
        ),
        Check("p99 TTFT over round robin's", p99(ours) / p99(turns), 0.2),
    ]


def slow_in_bursts(size: float) -> Sequence[Check]:
    """The same slow worker, with a burst of 32 requests for one cold prompt every ten seconds."""
    number = max(4, round(24 * size))
    works = [bursts(seed, 12.0, number=number) for seed in _SEEDS]
    ours, turns = (
        [_one_slow(policy).run(work) for work in works] for policy in ("prefixaware", "round robin")
    )
    return [
        Check("mean TTFT over round robin's", mean(map(ttft, ours)) / mean(map(ttft, turns)), 0.4),
        Check("p99 TTFT over round robin's", mean(map(p99, ours)) / mean(map(p99, turns)), 0.15),
    ]


def _one_slow(policy: str) -> VirtualDrive:
    runs = drive(policy)
    slow = runs.seats[0].engine
    slow.profile = replace(
        slow.profile,
        prefill_tokens_per_s=slow.profile.prefill_tokens_per_s / 4,
        t0_s=4 * slow.profile.t0_s,
        ts_s=4 * slow.profile.ts_s,
        tk_s=4 * slow.profile.tk_s,
    )
    return runs


def restart(size: float) -> Sequence[Check]:
    """A worker restarts with an empty cache; in one case the router notices, in one not."""
    checks = []
    for case, noticed, wrong in (("noticed", True, 0.001), ("unnoticed", False, 0.025)):
        results = [_restarted(size, seed, noticed=noticed) for seed in _SEEDS]
        checks += [
            Check(
                f"requests without an answer, {case}", sum(result.missing for result in results), 0
            ),
            Check(
                f"tokens wrongly believed in the minute after, {case}",
                mean(result.wrong for result in results),
                wrong,
            ),
            Check(
                f"hits a minute later, {case}",
                mean(result.hits for result in results),
                0.9,
                least=True,
            ),
        ]
    return checks


class _Restarted(NamedTuple):
    """The results of one run with a restart."""

    missing: int
    """Requests without an answer."""
    wrong: float
    """Share of prompt tokens in the minute after it that were wrongly assumed to be cached."""
    hits: float
    """Hit rate after that minute, divided by the hit rate without a restart."""


def _restarted(size: float, seed: int, *, noticed: bool) -> _Restarted:
    work = chats(seed, _CHATS_PER_S, users=max(200, round(600 * size)))
    at_s = 0.7 * max(talk.at_s for talk in work.talks)
    runs = drive()
    runs.at(at_s, partial(runs.restart, runs.seats[0], noticed=noticed))
    done = runs.run(work)
    soon = [placed for placed in done if at_s <= placed.at_s < at_s + _CHANGE_S]
    late = [placed for placed in done if placed.at_s > at_s + _CHANGE_S]
    plain = [placed for placed in run(work) if placed.at_s > at_s + _CHANGE_S]
    answered = len(done) + sum(_left(placed) for placed in runs.cut)
    return _Restarted(work.requests - answered, _wrong(soon), hit_rate(late) / hit_rate(plain))


def _left(placed: Placed) -> int:
    """Turns of the conversation that are lost with an answer that broke off, including its own."""
    return len(placed.asked.talk.turns) - placed.asked.place


def _wrong(done: Sequence[Placed]) -> float:
    """Return the tokens wrongly assumed to be cached, as a share of all prompt tokens.

    (What a preempted request had computed itself does not count as cached.)
    """
    wrong = sum(
        max(0, placed.choice.held_tokens - (placed.asked.job.cached_tokens or 0))
        for placed in done
        if not placed.asked.prompt.resumed
    )
    return wrong / sum(placed.asked.prompt.tokens for placed in done)
