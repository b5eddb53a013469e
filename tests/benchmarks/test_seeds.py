"""The table of seeds: its workloads, what it counts, and what it says of itself."""

from pickle import dumps, loads
from random import Random

import msgspec
import pytest

from benchmarks.lengths import skewed
from benchmarks.routing.workloads import Turn
from benchmarks.seeds.cells import Cell, Task, bound, calibrated, cell
from benchmarks.seeds.fleet import BARE, BASELINE, HOST_TOKENS, ROUTERS, SETUPS, STORE_TOKENS
from benchmarks.seeds.tables import lines, verdicts
from benchmarks.seeds.workloads import (
    LEAST,
    SAID,
    SEEDS,
    SINGLE,
    TOLD,
    TURNS,
    Endless,
    Seed,
    _turns,
)

NAMED = {seed.name: seed for seed in SEEDS}
BY_NAME = {router.name: router for router in ROUTERS}


def run(router: str, setup: int = 0, seed: str = "8k contexts", span: float = 60.0) -> Cell:
    """Run a simulated minute; the result is without the time that took here."""
    found = cell(Task(NAMED[seed], BY_NAME[router], SETUPS[setup], 60, 30, 1, span))
    return msgspec.structs.replace(found, cpu_s=0.0)


def first_ones(seed: Seed) -> list[Turn]:
    """Return the first turns of three clients."""
    return [talk.turns[0] for talk in seed.work(1, 3, 50).talks]


def test_everyone_is_asked_the_same() -> None:
    """Turns depend only on seed, client and number, in whatever order they are read."""
    for seed in SEEDS:
        one, other = (seed.work(1, 3, 50).talks for _ in range(2))
        turns = [[talk.turns[place] for place in range(5)] for talk in one]
        by_place = [[talk.turns[place] for talk in reversed(other)] for place in range(5)]
        for number, mine in enumerate(reversed(turns)):
            assert mine == [asked[number] for asked in by_place]
            assert len({turn.keys for turn in mine}) > 1
        assert seed.work(2, 3, 50).talks[0].turns[0] not in first_ones(seed)


def test_turns_come_one_after_another() -> None:
    """Only the latest turn can be read again."""
    talk = NAMED["chats"].work(1, 1, 1000).talks[0]
    first = talk.turns[0]
    assert (talk.turns[0], isinstance(talk.turns, Endless)) == (first, True)
    talk.turns[1]
    with pytest.raises(IndexError, match="turn 0 after turn 1"):
        talk.turns[0]


def test_a_conversation_grows_by_what_was_said_and_told() -> None:
    """Each turn begins with the one before it; the next conversation begins with something else."""
    client = NAMED["chats"].work(1, 1, 1 << 30).talks[0]
    session, before = client.session, client.turns[0]
    for place in range(1, 20):
        turn = client.turns[place]
        shared = turn.keys[: len(before.keys)] == before.keys
        assert shared == (client.session == session) or not before.keys
        session, before = client.session, turn
    assert session != NAMED["chats"].work(1, 1, 1 << 30).talks[0].session


def test_caches_that_are_looked_at_pay() -> None:
    """A simulated minute is enough to show it; the same task gives the same cell."""
    base, ours = run("random"), run("kvaware")
    assert base == run("random")
    assert ours.hit > 2 * base.hit
    assert ours.p50_s < 0.5 * base.p50_s
    assert ours.throughput > base.throughput
    assert ours.cost < base.cost
    assert ours.least_share <= 1 / 7 <= ours.most_share


def test_tiers_are_counted_by_tier() -> None:
    """With tiers, what GPUs have evicted comes from L1, far more from L2, and total hits more than
    double."""
    base, tiered = (run("random", setup, "64k contexts", 300.0) for setup in (0, 1))
    assert (base.l1, base.l2) == (0.0, 0.0)
    assert tiered.l2 > 0.2 > tiered.l1 > 0.005
    assert tiered.gpu > 0.2
    assert tiered.hit > 2 * base.hit
    assert HOST_TOKENS * 7 == STORE_TOKENS


def test_the_baseline_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The population is chosen so that its hit rate is the published one."""
    monkeypatch.setattr("benchmarks.seeds.cells.TRIAL_S", 120.0)
    seed = NAMED["8k contexts"]
    population = calibrated(seed, 30, 1)
    found = cell(Task(seed, BASELINE, BARE, population, 30, 1, 120.0))
    assert 0.25 <= found.hit <= 0.30


def test_nothing_hits_more_than_can_be_had() -> None:
    """The bound is an infinite cache with as many requests."""
    seed = NAMED["8k contexts"]
    for setup in (0, 1):
        ours = run("kvaware", setup)
        assert ours.hit <= bound(seed, 60, 30, 1, ours.requests // 30 + 1) + 0.02


def test_conversations_are_as_published() -> None:
    """Mean lengths of questions and answers, mean turns, and the share of single turns."""
    chance, number = Random(1), 20_000
    turns = [_turns(chance) for _ in range(number)]
    assert sum(turns) / number == pytest.approx(TURNS, rel=0.03)
    assert turns.count(1) / number == pytest.approx(SINGLE, rel=0.05)
    for mean in (SAID, TOLD):
        drawn = [skewed(mean, chance, least=LEAST) for _ in range(number)]
        assert sum(drawn) / number == pytest.approx(mean, rel=0.05)


def test_a_task_can_be_given_to_another_process() -> None:
    """A task can be pickled with everything in it."""
    for router in ROUTERS:
        for seed in SEEDS:
            again = loads(dumps(Task(seed, router, SETUPS[1], 60, 30, 1, 10.0)))  # noqa: S301 - ours
            assert (again.seed.name, again.router.name) == (seed.name, router.name)
            assert first_ones(again.seed) == first_ones(seed)


def test_every_line_says_that_it_is_simulated() -> None:
    """Except for lines with published figures, and the frame of the table."""
    base = Cell("8k contexts", "random", "GPU", 9, 1.0, 2.0, 100.0, 0.2, 0.0, 0.0, 0.14, 0.15)
    ours = Cell("8k contexts", "kvaware", "GPU", 9, 0.1, 0.2, 200.0, 0.9, 0.0, 0.0, 0.14, 0.15)
    seed: Seed = NAMED["8k contexts"]
    told = [*lines(seed, 60, 0.97, [base, ours]), *verdicts(seed, 0.97, [base, ours])]
    for line in filter(None, told):
        assert "simulated" in line or line.startswith(("|---", "|  |", "| published"))
    assert "0.100 s (-90%)" in told[-3]
    assert told[-1].endswith("meets or beats all that is published")
    (missed,) = verdicts(NAMED["chats"], 0.795, [base, msgspec.structs.replace(ours, gpu=0.3)])
    assert "misses hit rate (30.0% of 79.5% that can be had)" in missed
    assert "share" not in missed, "it is published of shared prefixes"
    crowded = msgspec.structs.replace(ours, most_share=0.1546)
    (missed,) = verdicts(NAMED["shared prefixes"], 0.97, [base, crowded])
    assert missed.endswith("misses share of a replica")
