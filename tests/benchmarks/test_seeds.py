"""The table of HyperPod's published results: its workloads, and what it counts."""

from pickle import dumps, loads

import pytest

from benchmarks.routing.workloads import PromptTurn
from benchmarks.seeds.cells import SeedResult, Task, bound, cell
from benchmarks.seeds.fleet import ROUTERS, SETUPS
from benchmarks.seeds.workloads import SEEDS, Seed

NAMED = {seed.name: seed for seed in SEEDS}
BY_NAME = {router.name: router for router in ROUTERS}


def run(router: str, setup: int = 0, seed: str = "8k contexts", span: float = 60.0) -> SeedResult:
    """Run a simulated minute."""
    return cell(Task(NAMED[seed], BY_NAME[router], SETUPS[setup], 60, 30, 1, span))


def first_turns(seed: Seed) -> list[PromptTurn]:
    """Return the first turns of three clients."""
    return [talk.turns[0] for talk in seed.work(1, 3, 50).talks]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: str(seed.name))
def test_every_router_gets_the_same(seed: Seed) -> None:
    """Turns depend on seed, client and number alone, in whatever order and process they are
    read."""
    one, other = (seed.work(1, 3, 50).talks for _ in range(2))
    turns = [[talk.turns[place] for place in range(5)] for talk in one]
    by_place = [[talk.turns[place] for talk in reversed(other)] for place in range(5)]
    for number, mine in enumerate(reversed(turns)):
        assert mine == [several[number] for several in by_place]
        assert len({turn.keys for turn in mine}) > 1
    assert seed.work(2, 3, 50).talks[0].turns[0] not in first_turns(seed)
    for router in ROUTERS:
        again = loads(dumps(Task(seed, router, SETUPS[1], 60, 30, 1, 10.0)))  # noqa: S301 - ours
        assert first_turns(again.seed) == first_turns(seed)


def test_caches_that_are_looked_at_pay() -> None:
    """A simulated minute is enough to show it; the same task gives the same cell, and none hits
    more than an infinite cache."""
    base, ours = run("random"), run("kvaware")
    assert base == run("random")
    assert ours.hit > 2 * base.hit
    assert ours.p50_s < 0.5 * base.p50_s
    assert ours.throughput > base.throughput
    assert ours.cost < base.cost
    assert ours.least_share <= 1 / 7 <= ours.most_share
    assert ours.hit <= bound(NAMED["8k contexts"], 60, 30, 1, ours.requests // 30 + 1) + 0.02
