"""Goals that a few seeds do not decide are judged by more."""

from math import inf

import pytest
from msgspec.structs import replace

from benchmarks import routing_unsure
from benchmarks.routing import surer
from benchmarks.routing_cells import Cell, Task, computed, means
from benchmarks.routing_columns import chosen, columns
from benchmarks.routing_goals import Found, Goal, goals
from benchmarks.routing_policies import policy_named
from benchmarks.routing_unsure import by_seed, judged, needed, unsure
from benchmarks.routing_work import Ideal
from tests.benchmarks.test_routing_goals import cell


def cells(column: str, policy: str, *ttft_s: float) -> list[Cell]:
    """Return the results of one policy, a seed each."""
    return [
        replace(cell(column, policy, seconds), seed=seed)
        for seed, seconds in enumerate(ttft_s, start=1)
    ]


def reached(several: list[Cell], seeds: int = 3) -> list[Goal]:
    """Return the goals for the mean TTFT, by the first seeds."""
    first = [one for one in several if one.seed <= seeds]
    ideals = {one.column: Ideal(0.4, 0.5) for one in first}
    found = goals(Found(means(first), ideals, ()))
    return [goal for goal in found if goal.name == "mean TTFT, s"]


@pytest.mark.parametrize(
    ("ttft_s", "open_"),
    [
        ((0.80, 0.60, 1.00), True),  # a mean at the bound
        ((0.72, 0.62, 0.82), True),  # 1.4 errors below it
        ((0.68, 0.58, 0.78), True),  # 2.1 errors below it
        ((0.60, 0.50, 0.70), False),  # 3.5 errors below it
        ((0.70, 0.69, 0.71), False),
        ((0.90, 0.89, 0.91), False),
        ((0.80, 0.80, 0.80), True),
    ],
)
def test_a_number_is_decided_if_it_is_some_errors_away(
    ttft_s: tuple[float, ...], *, open_: bool
) -> None:
    """Whether it is met does not matter."""
    several = cells("conversation x2", "prefixaware", *ttft_s)
    (goal,) = reached(several)
    assert (unsure([goal], by_seed(several)) == [goal]) is open_


def test_one_seed_decides_nothing() -> None:
    """Nothing is known of how much seeds differ."""
    several = cells("conversation x2", "prefixaware", 0.1)
    assert len(unsure(reached(several), by_seed(several))) == 1


def test_only_the_first_seeds_say_what_is_decided() -> None:
    """Else more seeds would be run until a goal is met."""
    several = cells("conversation x2", "prefixaware", 0.7, 0.8, 0.9, *[0.1] * 9)
    assert len(unsure(reached(several), by_seed(several))) == 1


def test_what_differs_alike_on_both_sides_is_decided() -> None:
    """Seeds that are hard for one are hard for the other: their difference counts."""
    several = [
        *cells("mixed", "prefixaware", 1.0, 2.0, 3.0),
        *cells("mixed", "random", 1.1, 2.1, 3.2),
    ]
    assert not unsure(reached(several), by_seed(several))
    several[0] = replace(several[0], ttft_s=1.4)
    assert len(unsure(reached(several), by_seed(several))) == 1


def test_peers_near_the_best_may_be_the_best_with_more_seeds() -> None:
    """All of them are needed, and the best of all seeds counts in the end."""
    several = [
        *cells("mixed", "prefixaware", 1.0, 1.2, 0.8, 1.1),
        *cells("mixed", "random", 1.0, 1.0, 1.0, 1.4),
        *cells("mixed", "round robin", 1.01, 1.01, 1.01, 0.97),
        *cells("mixed", "power of two", 1.06, 1.06, 1.06, 0.1),
    ]
    (goal,) = reached(several)
    assert goal.rivals == ("random", "round robin")
    assert needed([goal]) == [("mixed", name) for name in ("prefixaware", "random", "round robin")]
    again = judged(goal, by_seed(several))
    assert (again.seeds, again.against) == (4, "round robin x 1.02")
    assert (again.value, again.bound) == pytest.approx((1.025, 1.02))
    assert not again.met


def test_only_seeds_of_all_sides_count() -> None:
    """A comparison of means over different seeds would say little."""
    several = [
        *cells("mixed", "prefixaware", 1.0, 1.2, 0.8, 9.0),
        *cells("mixed", "random", 1.0, 1.0, 1.0),
    ]
    again = judged(reached(several)[0], by_seed(several))
    assert again.seeds == 3
    assert again.value == pytest.approx(1.0)


def test_a_number_stays_the_same_bound() -> None:
    """Without rivals only the measured value changes."""
    several = cells("conversation x2", "prefixaware", 0.7, 0.8, 0.9, 0.4)
    again = judged(reached(several)[0], by_seed(several))
    assert (again.bound, again.seeds) == (0.8, 4)
    assert again.value == pytest.approx(0.7)


def test_more_seeds_are_run_of_what_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were run before are not run again; other goals stay as they are."""
    monkeypatch.setattr(routing_unsure, "ERRORS", inf)
    (column,) = chosen(["long_answers"], columns(None))
    tasks = [
        Task(column, policy_named(name), seed, column.rate)
        for name in ("prefixaware", "Ray Serve prefix-aware")
        for seed in (1, 2)
    ]
    several = computed(tasks, 1, lambda: None)
    ideals = {"long_answers": Ideal(0.6, 0.1)}
    before = goals(Found(means(several), ideals, ()))
    open_goals = unsure(before, by_seed(several))
    after, every = surer(before, several, [column], 4, 1)
    assert open_goals
    assert [(one.policy, one.seed) for one in every] == [
        *((task.policy.name, task.seed) for task in tasks),
        *((name, seed) for name in ("prefixaware", "Ray Serve prefix-aware") for seed in (3, 4)),
    ]
    for old, new in zip(before, after, strict=True):
        assert new.seeds == 4 if old in open_goals else new == old


def test_counts_and_costs_are_not_judged_anew() -> None:
    """A hit rate and a rate have nothing to be measured again by."""
    several = cells("sessions x0.1", "prefixaware", 1.0, 2.0)
    found = goals(Found(means(several), {"sessions x0.1": Ideal(0.4, 0.5)}, ()))
    assert [goal.name for goal in found] == ["hit rate"]
    assert not unsure(found, by_seed(several))
