"""Scenarios about caches: too small for the work, of misreported size, or with false reports."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import EngineFleet, Placed
from benchmarks.routing.workloads import Work, chats, documents, no_reuse
from benchmarks.scenarios.checks import Check, drive, hit_rate, run, ttft
from strategies.api import Bytes
from strategies.policies.prefix_aware import PrefixAware, PrefixAwareOptions

#: A fleet with GPU memory only.
_TIGHT = EngineFleet(SMALL)
#: Memory limit of the prefix tree in bytes, which new prompts soon fill.
_TREE_BYTES = Bytes(100_000)


def _overflowing(size: float) -> Work:
    """Chats of some 14,000 tokens each, together four times as large as the caches of `_small`."""
    users = max(60, round(900 * size))
    return chats(1, 8.0 * min(1.0, 2 * size), users=users, rounds=6)


def _small(size: float) -> EngineFleet:
    """A fleet whose caches together hold a quarter of `_overflowing`."""
    work = _overflowing(size)
    tokens = sum(talk.turns[-1].prompt_tokens for talk in work.talks)
    return EngineFleet(replace(SMALL, kv_tokens=max(50_000, tokens // 4 // 8)))


def tight(size: float) -> Sequence[Check]:
    """The working set is four times as large as all caches together."""
    work, fleet = _overflowing(size), _small(size)
    ours, exact = run(work, fleet=fleet), run(work, "kvaware", fleet)
    plain, sticky = run(work, "leastload", fleet), run(work, "session sticky", fleet)
    return [
        Check("mean TTFT over exact knowledge's", ttft(ours) / ttft(exact), 1.10),
        Check("mean TTFT over leastload's", ttft(ours) / ttft(plain), 1.0),
        Check("hits over stickiness'", hit_rate(ours) / hit_rate(sticky), 0.9, least=True),
    ]


def wrong_capacity(size: float) -> Sequence[Check]:
    """The router assumes half, twice or four times the real cache size, or does not know it."""
    work, fleet = _overflowing(size), _small(size)
    right = ttft(run(work, fleet=fleet))
    checks = []
    for assumed, factor in (("half", 0.5), ("twice", 2.0), ("four times", 4.0), ("unknown", None)):
        runs = drive(fleet=fleet)
        for seat in runs.seats:
            if factor is None:
                seat.room_tokens = None
            else:
                seat.kv_tokens = round(factor * (seat.room_tokens or 0))
        checks.append(
            Check(f"mean TTFT, {assumed}, over right", ttft(runs.run(work)) / right, 1.15)
        )
    return checks


def lies(size: float) -> Sequence[Check]:
    """Workers report no cached tokens, zero, the whole prompt, or random numbers."""
    work, chance = _overflowing(size), Random(1)
    reports: dict[str, Callable[[Placed], int | None]] = {
        "nothing": lambda _: None,
        "zero": lambda _: 0,
        "everything": lambda placed: placed.asked.prompt.tokens - 1,
        "anything": lambda placed: chance.randrange(placed.asked.prompt.tokens),
    }
    plain = ttft(run(work, "leastload"))
    checks = []
    for report, reported in reports.items():
        runs = drive()
        for seat in runs.seats:  # the cache size is known and correct
            seat.kv_tokens = seat.engine.cache.capacity * seat.engine.block_tokens
        runs.reports = reported
        done = runs.run(work)
        checks += [
            Check(f"requests without an answer, {report}", work.requests - len(done), 0),
            Check(f"mean TTFT over leastload's, {report}", ttft(done) / plain, 0.88),
        ]
    return checks


def churn(size: float) -> Sequence[Check]:
    """Every prompt is new: no worse than without a memory, which stays within its limit."""
    work = no_reuse(1, 26.0, number=max(300, round(6_000 * size)))
    runs = drive(fleet=_TIGHT)
    runs.strategy = PrefixAware(PrefixAwareOptions(memory=_TREE_BYTES))
    done, plain = runs.run(work), run(work, "leastload", _TIGHT)
    return [
        Check("mean TTFT over leastload's", ttft(done) / ttft(plain), 1.02),
        Check("bytes of the tree", runs.strategy.gauges()["prefix_tree_bytes"], _TREE_BYTES),
    ]


def long_documents(size: float) -> Sequence[Check]:
    """Questions about long documents: each is computed once, unless waiting costs more."""
    work = documents(1, 3.0, number=max(16, round(100 * size)))
    ours, plain = run(work), run(work, "leastload")
    return [
        Check("mean TTFT over leastload's", ttft(ours) / ttft(plain), 0.5),
        Check("hits over leastload's", hit_rate(ours) / hit_rate(plain), 1.5, least=True),
    ]
