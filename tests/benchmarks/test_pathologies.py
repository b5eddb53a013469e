"""Pathologies that users of other routers report do not happen here, thanks to parts of the cost.

The first line of each docstring names the pathology, and where it was reported. Every test runs
twice: with the product as it is, and without the part that prevents the pathology, or with another
router's rule that has it. The second run shows that the workload does cause it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import ENDS, Fleet, Placed
from benchmarks.routing.workloads import (
    Talk,
    Turn,
    Work,
    agents,
    bursts,
    chats,
    documents,
    long_answers,
    no_reuse,
    one_prefix,
)
from benchmarks.scenarios.checks import ROOMY, drive, hit_rate, run, ttft
from strategies.api import Prompt, WorkerView
from strategies.cost import cost
from strategies.cost.load import Load
from tests.benchmarks.parts import (
    without_booking,
    without_correction,
    without_decode,
    without_forgetting,
    without_full,
    without_home,
    without_lateness,
    without_pace,
    without_placements,
    without_preemption,
    without_price,
    without_room,
    without_turns,
    without_wait,
)


def largest_share(done: Sequence[Placed]) -> float:
    """Return the busiest worker's share of the requests."""
    return max(Counter(placed.seat.name for placed in done).values()) / len(done)


def computed(done: Sequence[Placed]) -> int:
    """Return the number of prompt tokens that were not found cached."""
    return sum(
        placed.asked.prompt.tokens - (placed.asked.job.cached_tokens or 0) for placed in done
    )


HOT = one_prefix(1, 40.0, number=600)


def test_one_shared_prompt_does_not_hold_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """One backend gets all that share a system prompt (production-stack #957, dynamo #737)."""
    assert largest_share(run(HOT)) < 0.16
    without_wait(monkeypatch)
    without_decode(monkeypatch)
    without_home(monkeypatch)
    assert largest_share(run(HOT)) > 0.5


def test_affinity_does_not_hurt_where_all_share_one_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache-aware is slower than round robin if all share one prefix (sglang #21199).

    The remaining loss is that workers compute the prefix one after the other, which weighs more the
    shorter the run.
    """
    works = [one_prefix(seed, 40.0, number=600) for seed in (1, 2, 3)]

    def mean(policy: str = "prefixaware") -> float:
        return fmean(ttft(run(work, policy)) for work in works)

    turns = mean("round robin")
    assert mean() < 1.1 * turns
    without_wait(monkeypatch)
    without_decode(monkeypatch)
    assert mean() > 1.5 * turns


def test_answers_do_not_pile_up_with_the_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that hold a prefix decode for everybody (dynamo #7836, #12300)."""

    def whole(done: Sequence[Placed]) -> float:
        return fmean(placed.ended_s for placed in done)

    work = long_answers(1, 8.0, number=3, users=80)
    turns = whole(run(work, "round robin"))
    assert whole(run(work)) < 1.1 * turns
    without_decode(monkeypatch)
    without_home(monkeypatch)
    assert whole(run(work)) > 1.5 * turns


def test_one_busy_worker_does_not_cost_the_others_their_hits() -> None:
    """An imbalance anywhere turns affinity off for all (vllm-router #238, sglang #32195).

    No part of our cost looks at an imbalance, so none can be removed; a rule with such a gate shows
    the pathology.
    """
    work = chats(1, 8.0, users=150, rounds=6)

    def loaded(policy: str) -> float:
        runs = drive(policy)
        for _ in range(100):
            runs.seats[0].load.book(0.0, 0.001)
        return hit_rate(runs.run(work))

    for policy, least, most in (("prefixaware", 0.97, 1.03), ("AIBrix prefix-cache", 0.0, 0.8)):
        assert least < loaded(policy) / hit_rate(run(work, policy)) < most


def test_a_newcomer_is_not_drowned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh worker has the smallest tree and gets every miss (sglang #14305, #14532)."""

    def share() -> float:
        return fmean(map(of_all, range(1, 5)))

    def of_all(seed: int) -> float:
        runs = drive()
        late = runs.eligible.pop(0)
        runs.at(5.0, lambda: runs.eligible.insert(0, late))
        done = runs.run(no_reuse(seed, 20.0, number=400))
        soon = [placed for placed in done if 5.0 < placed.at_s < 10.0]
        return sum(placed.seat is late for placed in soon) / len(soon)

    assert share() < 0.2
    without_wait(monkeypatch)
    without_decode(monkeypatch)
    without_home(monkeypatch)
    without_turns(monkeypatch)
    without_pace(monkeypatch)
    without_price(monkeypatch)
    assert share() > 0.9


def test_a_burst_does_not_herd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load is counted too late, and a burst goes to one worker (sglang #27547)."""
    whole = no_reuse(1, 1.0, number=160)
    work = Work("burst", [Talk(0.0, talk.session, talk.turns) for talk in whole.talks])
    good = ttft(run(work))
    without_booking(monkeypatch)
    without_turns(monkeypatch)
    assert ttft(run(work)) > 1.3 * good


def test_siblings_find_their_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Similar cold prompts scatter until events show the first (vllm-router, kv_aware)."""
    work = bursts(1, 12.0, number=6)
    alike = Counter(talk.session for talk in work.talks)

    def of_siblings() -> int:
        return computed([one for one in run(work) if alike[one.asked.talk.session] > 1])

    good = of_siblings()
    without_placements(monkeypatch)
    assert of_siblings() > 1.6 * good


def test_a_restarted_worker_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes of restarted workers stay in the tree (production-stack never removes any)."""
    work = chats(1, 8.0, users=150, rounds=6)

    def wrong() -> int:
        runs = drive()
        runs.at(60.0, lambda: runs.restart(runs.seats[0]))
        done = runs.run(work)
        return sum(
            max(0, placed.choice.held_tokens - (placed.asked.job.cached_tokens or 0))
            for placed in done
            if placed.seat.name == "w0" and placed.at_s > 60.0
        )

    good = wrong()
    without_forgetting(monkeypatch)
    assert wrong() > good + 10_000


def test_a_nearly_finished_prefill_scares_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prefill counts in full until its first token (dynamo, without a time model)."""
    runs = drive(fleet=ROOMY._replace(workers=2))
    holder, idle = runs.seats
    prompt = Prompt("model", 60 * 512 + 9, tuple(range(60)), ENDS)
    runs.strategy.placed(prompt, holder, 0.0)
    holder.load.book(0.0, 30.0)
    nearly = holder.load.wait(0.0) - 0.1

    def first(now: float) -> WorkerView:
        return runs.strategy.rank(prompt, runs.seats, now).candidates[0].worker

    assert first(1.0) is idle, "29 seconds are too long to wait"
    assert first(nearly) is holder, "a tenth of a second is not"
    monkeypatch.setattr(Load, "wait", lambda load, *_: sum(b.prefill_s for b in load.pending))
    monkeypatch.setattr(cost, "before", lambda _, wait, *__, **___: (wait, 0, 0.0))
    assert first(nearly) is idle


def test_nobody_waits_for_room_where_the_prefix_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts go to a holder whose KV cache is full, and wait for another answer to end.

    Four documents are asked about again on a worker that is giving twenty long answers; the other
    worker has just joined, and is idle.
    """

    def asked(at_s: float, document: int, answer: int) -> Talk:
        keys = tuple(range(1_000 * document, 1_000 * document + 38))
        return Talk(at_s, document, (Turn(keys, 38 * 512 + 9, answer),))

    def mean() -> float:
        early = [asked(5.0 * number, number, 100) for number in range(4)]
        others = [asked(40.0 + 0.1 * number, 100 + number, 2_500) for number in range(20)]
        again = [asked(90.0 + number, number, 100) for number in range(4)]
        runs = drive(fleet=ROOMY._replace(workers=2))
        late = runs.eligible.pop()
        runs.at(85.0, lambda: runs.eligible.append(late))
        done = runs.run(Work("documents", [*early, *others, *again]))
        return ttft([placed for placed in done if placed.asked.at_s >= 90.0])

    assert mean() < 5.0
    without_home(monkeypatch)  # which keeps turns away from workers that were full for long
    without_decode(monkeypatch)
    assert mean() < 5.0
    without_room(monkeypatch)
    assert mean() < 5.0, "it is seen that nothing there begins"
    without_lateness(monkeypatch)
    assert mean() > 10.0


@pytest.mark.parametrize(("without", "worse"), [(without_room, 1.03), (without_full, 1.02)])
def test_agents_do_not_queue_for_a_full_cache(
    without: Callable[[pytest.MonkeyPatch], None], worse: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests queue for one worker's full KV cache while others have room (dynamo #9688).

    What that costs depends on which agents share a worker, so several seeds are run.
    """
    works = [agents(seed, 1.0) for seed in range(1, 7)]

    def mean() -> float:
        return fmean(ttft(run(work)) for work in works)

    good = mean()
    without(monkeypatch)
    assert mean() > worse * good


def test_past_the_knee_caches_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues drown the cache term, hits fall and queues grow (Conductor, Dynamo at x2.2)."""
    work = documents(1, 3.0, number=120)
    good = run(work)
    without_price(monkeypatch)
    without_preemption(monkeypatch)  # which prevents most of it, too
    bad = run(work)
    assert hit_rate(good) > hit_rate(bad) + 0.02
    assert ttft(bad) > 1.2 * ttft(good)


def test_sessions_do_not_pile_up_where_their_tools_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """By prefixes alone, some workers long get more than their share (aibrix #842).

    Which workers, and how often their sessions ask, is chance, so several seeds are run.
    """
    works = [agents(seed, 1.0) for seed in (1, 2, 3)]

    def mean() -> float:
        return fmean(ttft(run(work)) for work in works)

    good = mean()
    without_home(monkeypatch)
    assert mean() > 1.05 * good


def test_a_slow_worker_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers count as equally fast (other routers' fixed weights and throughputs)."""
    work = no_reuse(1, 6.0, number=600)

    def share() -> float:
        runs = drive()
        engine = runs.seats[0].engine
        engine.profile = replace(engine.profile, prefill_tokens_per_s=5_000)
        done = runs.run(work)
        return sum(placed.seat.name == "w0" for placed in done) / len(done)

    good = share()
    assert good < 0.08
    without_pace(monkeypatch)
    assert share() > 1.3 * good


def test_a_mirror_forgets_as_its_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that never forgets believes in what was evicted long ago (smg #2213)."""
    work = chats(1, 6.0, users=300, rounds=5)
    tight = Fleet(SMALL, cache_tokens=SMALL.kv_tokens)

    def wrong(*, known: bool) -> int:
        runs = drive(fleet=tight)
        if not known:
            for seat in runs.seats:
                seat.kv_tokens = 1 << 40
        return sum(
            max(0, placed.choice.held_tokens - (placed.asked.job.cached_tokens or 0))
            for placed in runs.run(work)
        )

    good = wrong(known=True)
    without_correction(monkeypatch)
    assert wrong(known=False) > 2 * good + 100_000


def test_a_long_prompt_does_not_block_the_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever needs the worker of a long prompt waits until it is computed (head-of-line blocking).

    Here every worker computes a long prompt, and a short one comes ten times a second.
    """
    long, short = 100_000, 1_000
    turns = [
        *((0.0, Turn(tuple(range(first, first + 195)), long, 10)) for first in (1, 200)),
        *((0.5 + 0.1 * number, Turn((1000 + number,), short, 10)) for number in range(60)),
    ]
    work = Work("long", [Talk(at, number, [turn]) for number, (at, turn) in enumerate(turns)])

    def waits() -> tuple[float, float]:
        done = run(work, fleet=Fleet(SMALL, workers=2))
        times = {
            size: fmean(p.first_s for p in done if p.asked.prompt.tokens == size)
            for size in (long, short)
        }
        return times[short], times[long]

    short_s, long_s = waits()
    without_preemption(monkeypatch)
    blocked_s, alone_s = waits()
    assert short_s < 0.2 * blocked_s
    assert long_s < 1.3 * alone_s
