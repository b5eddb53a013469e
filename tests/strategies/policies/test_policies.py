"""The policies that look at no cache, and what is true of all."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.api import Candidate, Cost, NoOptions, Outcome
from strategies.policies.chbl import Chbl, ChblOptions
from strategies.policies.power_of_two import PowerOfTwo
from strategies.registry import find, names
from tests.strategies.workers import LONG, Run, Stand, fleet, prompt


def test_the_built_in_strategies_are_found_by_name() -> None:
    """Strategies are found by their entry points; the error for an unknown name lists them."""
    assert {"roundrobin", "leastload", "prefixaware"} <= set(names())
    with pytest.raises(KeyError, match=r"leastload, .*prefixaware, roundrobin"):
        find("nearest")


@pytest.mark.parametrize("name", ["roundrobin", "leastload", "prefixaware"])
def test_every_worker_is_a_candidate(name: str) -> None:
    """Failover takes the next candidate, so every worker must be listed exactly once."""
    run = Run(name, fleet(5))
    run.place(prompt(LONG))
    decision = run.strategy.rank(prompt(LONG), run.workers, 0.0)
    assert sorted(c.worker.name for c in decision.candidates) == [w.name for w in run.workers]
    candidate = Candidate(run.workers[0], Cost())
    run.strategy.settled(prompt(LONG), candidate, Outcome(ok=True), 1.0)


def test_a_slow_worker_gets_less() -> None:
    """Cost is in seconds, so a worker four times slower takes a quarter of the work."""
    run = Run("leastload", fleet(2))
    run.workers[1].pace.slower *= 4.0
    counts = Counter(run.place(prompt(f"{n} " * 4000)).name for n in range(100))
    assert counts["w0"] == pytest.approx(80, abs=3)


def test_answers_are_slower_among_many() -> None:
    """With all else equal, the worker that decodes fewer requests is chosen."""
    run = Run("leastload", fleet(2))
    for _ in range(10):
        load = run.workers[0].load
        load.first_byte(load.book(0.0, 0.0, 4000), 0.0)
    run.workers[1].load.turn = 9
    assert run.place(prompt("x" * 4000)).name == "w1"


def test_of_two_drawn_the_one_with_less_to_do_is_taken() -> None:
    """The busiest worker is never first: whichever it is drawn with has less to do."""
    workers = fleet(4)
    workers[0].load.book(0.0, 9.0)
    strategy = PowerOfTwo(NoOptions())
    firsts = [strategy.rank(prompt("x"), workers, 0.0).candidates for _ in range(100)]
    assert all(found[0].worker.name != "w0" for found in firsts)
    assert len({found[0].worker.name for found in firsts}) == 3
    assert all(len(found) == 4 for found in firsts)


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=60))
def test_round_robin_is_even_under_joins_and_leaves(present: list[set[int]]) -> None:
    """For workers that are always there, the counts never differ by more than one."""
    everyone = fleet(6)
    run = Run("roundrobin", everyone)
    steady = {0, 1}
    counts: Counter[str] = Counter()
    for here in present:
        run.workers = [everyone[number] for number in sorted(here | steady)]
        counts[run.place(prompt("x"), book=False).name] += 1
        assert abs(counts["w0"] - counts["w1"]) <= 1


def test_round_robin_gives_a_newcomer_one_turn_at_a_time() -> None:
    """A worker that joins late is not flooded with requests to make it catch up."""
    run = Run("roundrobin", fleet(2))
    for _ in range(10):
        run.place(prompt("x"), book=False)
    run.workers.append(Stand("late"))
    placed = [run.place(prompt("x"), book=False).name for _ in range(6)]
    assert Counter(placed) == {"w0": 2, "w1": 2, "late": 2}


def test_a_hashed_prefix_has_one_worker_whoever_asks() -> None:
    """Two routers agree on the worker of a prefix; what follows the prefix does not matter."""
    texts = [f"{n} " * 3000 for n in range(40)]
    homes = []
    for question in ("one", "two"):
        strategy = Chbl(ChblOptions())
        found = [strategy.rank(prompt(t + question), fleet(8), 0.0).candidates[0] for t in texts]
        homes.append([candidate.worker.name for candidate in found])
    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 4


def test_a_worker_that_joins_moves_only_what_it_takes() -> None:
    """Prefixes move to the new worker only, never between the old ones."""
    texts = [f"{n} " * 3000 for n in range(200)]
    strategy = Chbl(ChblOptions())
    seven, eight = (
        [strategy.rank(prompt(t), fleet(count), 0.0).candidates[0].worker.name for t in texts]
        for count in (7, 8)
    )
    moved = [after for before, after in zip(seven, eight, strict=True) if before != after]
    assert set(moved) == {"w7"}
    assert len(moved) < 200 * (1 / 8 + 0.05)


def test_a_hashed_prefix_spills_beyond_the_bound() -> None:
    """If all send the same prompt, no worker gets more than its bounded share."""
    workers = fleet(4)
    strategy = Chbl(ChblOptions())
    for _ in range(100):
        choice = strategy.rank(prompt(LONG), workers, 0.0).candidates[0]
        next(w for w in workers if w is choice.worker).load.book(0.0, 0.1)
    assert max(worker.load.in_flight for worker in workers) <= 1.25 * 101 / 4 + 1


@pytest.mark.parametrize("name", names())
def test_all_may_be_told_everything(name: str) -> None:
    """Of waiting requests, workers that left, and what another process knew."""
    before, after = Run(name, fleet(2)), Run(name, fleet(2))
    asked = prompt(LONG)
    over = before.strategy.waits(asked)
    before.place(asked)
    over()
    before.strategy.forget("w1")
    assert after.strategy.restore_state(before.strategy.dump_state())
    assert set(after.strategy.known_workers()) <= {"w0"}
    assert all(size >= 0 for size in after.strategy.gauges().values())
