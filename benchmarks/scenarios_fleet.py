"""The fleet changes: workers join and leave, are slow, lose their caches."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.routing_drive import Drive, Placed
from benchmarks.routing_made import bursts, chats
from benchmarks.routing_work import Work
from benchmarks.scenarios_check import Check, drive, hit_rate, p99, run, ttft


def _chats(size: float) -> Work:
    return chats(1, 12.0, users=max(100, round(600 * size)), rounds=8)


def scale_out(size: float) -> Sequence[Check]:
    """A worker joins seven others, and leaves again: few prefixes move, nobody waits for it."""
    work = _chats(size)
    last = max(talk.at_s for talk in work.talks)
    joins, leaves = 0.4 * last, 0.8 * last
    changing, steady = drive(), drive()
    newcomer = changing.seats[-1]
    changing.eligible.remove(newcomer)
    changing.at(joins, lambda: changing.eligible.append(newcomer))
    changing.at(leaves, lambda: changing.leave(newcomer))
    steady.eligible.pop()
    done, seven = changing.run(work), steady.run(work)
    during, usual = (
        [
            placed
            for placed in several
            if joins <= placed.at_s < joins + 60 or leaves <= placed.at_s < leaves + 60
        ]
        for several in (done, seven)
    )
    after, before = (
        [placed for placed in several if placed.at_s >= leaves] for several in (done, seven)
    )
    hits = hit_rate(_again(after)) / hit_rate(_again(before))
    return [
        Check("prefixes that move when one joins", _moved(done, joins, leaves), 1 / 8 + 0.05),
        Check("prefixes that move when it leaves", _moved(done, leaves, 2 * last), 1 / 7 + 0.05),
        Check(
            "hits after it left over seven workers'",
            hit_rate(after) / hit_rate(before),
            0.9,
            least=True,
        ),
        Check("the same, from each one's second turn on", hits, 0.98, least=True),
        Check("p99 TTFT of the change over seven workers'", p99(during) / p99(usual), 2.0),
        Check("requests that a worker which left gets", _count(after, newcomer.name), 0),
        Check("requests that a newcomer gets", _count(done, newcomer.name), 1, least=True),
    ]


def _moved(done: Sequence[Placed], start: float, stop: float) -> float:
    """Share of the sessions that are on another worker at first after `start` than last before."""
    before: dict[int, str] = {}
    after: dict[int, str] = {}
    for placed in sorted(done, key=lambda placed: placed.at_s):
        session = placed.asked.talk.session
        if placed.at_s < start:
            before[session] = placed.seat.name
        elif placed.at_s < stop:
            after.setdefault(session, placed.seat.name)
    both = before.keys() & after.keys()
    return sum(before[session] != after[session] for session in both) / max(1, len(both))


def _again(done: Sequence[Placed]) -> Sequence[Placed]:
    """All but each session's first."""
    seen: set[int] = set()
    again = []
    for placed in sorted(done, key=lambda placed: placed.at_s):
        session = placed.asked.talk.session
        if session in seen:
            again.append(placed)
        seen.add(session)
    return again


def _count(done: Sequence[Placed], worker: str) -> int:
    return sum(placed.seat.name == worker for placed in done)


def slow_worker(size: float) -> Sequence[Check]:
    """One worker is four times slower than the others, and nobody says so."""
    work = _chats(size)
    totals = {}
    for policy in ("prefixaware", "round robin", "least requests", "llm-d scorers 2:1:1"):
        totals[policy] = _one_slow(policy).run(work)
    ours, turns = totals["prefixaware"], totals["round robin"]
    return [
        Check("share of the slow worker", _count(ours, "w0") / len(ours), 1 / 8),
        *(
            Check(f"mean TTFT over {policy}'s", ttft(ours) / ttft(done), 1.0)
            for policy, done in totals.items()
            if policy != "prefixaware"
        ),
        Check("p99 TTFT over round robin's", p99(ours) / p99(turns), 0.2),
    ]


def slow_in_bursts(size: float) -> Sequence[Check]:
    """The same slow worker, and every ten seconds 32 requests of one cold prompt at once."""
    work = bursts(1, 12.0, number=max(4, round(24 * size)))
    ours, turns = (_one_slow(policy).run(work) for policy in ("prefixaware", "round robin"))
    return [
        Check("mean TTFT over round robin's", ttft(ours) / ttft(turns), 0.5),
        Check("p99 TTFT over round robin's", p99(ours) / p99(turns), 0.2),
    ]


def _one_slow(policy: str) -> Drive:
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
    """A worker restarts empty; once the router notices, once it does not."""
    work = _chats(size)
    at_s = 0.5 * max(talk.at_s for talk in work.talks)
    checks = []
    for noticed in (True, False):
        runs = drive()
        runs.at(at_s, partial(runs.restart, runs.seats[0], noticed=noticed))
        done = runs.run(work)
        late = [placed for placed in done if placed.at_s > at_s + 60]
        said = "noticed" if noticed else "unnoticed"
        plain = [placed for placed in run(work) if placed.at_s > at_s + 60]
        answered = len(done) + sum(_left(placed) for placed in runs.cut)
        checks += [
            Check(f"requests without an answer, {said}", work.requests - answered, 0),
            Check(f"tokens wrongly believed a minute later, {said}", _wrong(late), 0.02),
            Check(
                f"hits a minute later, {said}", hit_rate(late) / hit_rate(plain), 0.9, least=True
            ),
        ]
    return checks


def _left(placed: Placed) -> int:
    """Turns that an answer which broke off takes with it, its own too."""
    return len(placed.asked.talk.turns) - placed.asked.place


def _wrong(done: Sequence[Placed]) -> float:
    """Tokens that were believed held and were not, over those of all prompts."""
    wrong = sum(
        max(0, placed.choice.held_tokens - (placed.asked.job.cached_tokens or 0)) for placed in done
    )
    return wrong / sum(placed.asked.prompt.tokens for placed in done)
