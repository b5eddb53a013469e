"""Pathologies that users of other routers report do not happen here.

The first line of each docstring names the pathology, and where it was reported. Those that depend
on a changing fleet, on crowds or on caches are scenarios.
"""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import ENDS, EngineFleet, Placed
from benchmarks.routing.workloads import PromptTurn, Talk, Work, chats, long_answers, no_reuse
from benchmarks.scenarios.checks import drive, hit_rate, run, ttft
from strategies.api import Prompt, WorkerView

#: Two workers with host memory.
TWO = EngineFleet(SMALL, 2, cache_tokens=2_000_000)


def test_answers_do_not_pile_up_with_the_holder() -> None:
    """Workers that hold a prefix decode for everybody (dynamo #7836, #12300)."""

    def whole(done: Sequence[Placed]) -> float:
        return fmean(placed.ended_s for placed in done)

    work = long_answers(1, 8.0, number=3, users=80)
    assert whole(run(work)) < 1.1 * whole(run(work, "round robin"))


def test_one_busy_worker_does_not_cost_the_others_their_hits() -> None:
    """An imbalance anywhere turns affinity off for all (vllm-router #238, sglang #32195).

    A router's rule that has such a gate shows the pathology.
    """
    work = chats(1, 8.0, users=150, rounds=6)

    def loaded(policy: str) -> float:
        runs = drive(policy)
        for _ in range(100):
            runs.seats[0].load.book(0.0, 0.001)
        return hit_rate(runs.run(work))

    for policy, least, most in (("prefixaware", 0.97, 1.03), ("AIBrix prefix-cache", 0.0, 0.8)):
        assert least < loaded(policy) / hit_rate(run(work, policy)) < most


def test_a_newcomer_is_not_drowned() -> None:
    """A fresh worker has the smallest tree and gets every miss (sglang #14305, #14532)."""

    def share(seed: int) -> float:
        runs = drive()
        late = runs.eligible.pop(0)
        runs.at(5.0, lambda: runs.eligible.insert(0, late))
        done = runs.run(no_reuse(seed, 20.0, number=400))
        soon = [placed for placed in done if 5.0 < placed.at_s < 10.0]
        return sum(placed.seat is late for placed in soon) / len(soon)

    assert fmean(map(share, range(1, 5))) < 0.2


def test_a_nearly_finished_prefill_scares_nobody() -> None:
    """A long prefill counts in full until its first token (dynamo, without a time model)."""
    runs = drive(fleet=TWO)
    holder, idle = runs.seats
    prompt = Prompt("model", 60 * 512 + 9, tuple(range(60)), ENDS)
    runs.strategy.placed(prompt, holder, 0.0)
    holder.load.book(0.0, 30.0)

    def first(now: float) -> WorkerView:
        return runs.strategy.rank(prompt, runs.seats, now).candidates[0].worker

    assert first(1.0) is idle, "29 seconds are too long to wait"
    assert first(holder.load.wait(0.0) - 0.1) is holder, "a tenth of a second is not"


def test_no_prompt_waits_for_room_where_its_prefix_lies() -> None:
    """Prompts go to a holder whose KV cache is full, and wait for another answer to end.

    Four documents are asked about again on a worker that is giving twenty long answers; the other
    worker has just joined, and is idle.
    """

    def asked(at_s: float, document: int, answer: int) -> Talk:
        keys = tuple(range(1_000 * document, 1_000 * document + 38))
        return Talk(at_s, document, (PromptTurn(keys, 38 * 512 + 9, answer),))

    early = [asked(5.0 * number, number, 100) for number in range(4)]
    others = [asked(40.0 + 0.1 * number, 100 + number, 2_500) for number in range(20)]
    again = [asked(90.0 + number, number, 100) for number in range(4)]
    runs = drive(fleet=TWO)
    late = runs.eligible.pop()
    runs.at(85.0, lambda: runs.eligible.append(late))
    done = runs.run(Work("documents", [*early, *others, *again]))
    assert ttft([placed for placed in done if placed.asked.at_s >= 90.0]) < 5.0


def test_a_long_prompt_does_not_block_the_short_ones() -> None:
    """Whoever needs the worker of a long prompt waits until it is computed (head-of-line blocking).

    Here every worker computes a long prompt, and a short one comes ten times a second.
    """
    long, short = 100_000, 1_000
    turns = [
        *((0.0, PromptTurn(tuple(range(first, first + 195)), long, 10)) for first in (1, 200)),
        *((0.5 + 0.1 * number, PromptTurn((1000 + number,), short, 10)) for number in range(60)),
    ]
    work = Work("long", [Talk(at, number, [turn]) for number, (at, turn) in enumerate(turns)])

    def waits(policy: str) -> list[float]:
        done = run(work, policy, EngineFleet(SMALL, workers=2))
        return [
            fmean(one.first_s for one in done if one.asked.prompt.tokens == size)
            for size in (short, long)
        ]

    ours, blocked = waits("prefixaware"), waits("round robin")
    assert ours[0] < 0.2 * blocked[0]
    assert ours[1] < 1.3 * blocked[1]
