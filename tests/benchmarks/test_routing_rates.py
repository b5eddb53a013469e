"""Sustainable rates: they are found, with no more simulation than necessary."""

from math import log

import pytest

from benchmarks import routing_rates
from benchmarks.routing_cells import Cell, Task, cell
from benchmarks.routing_columns import chosen, columns
from benchmarks.routing_policies import policy_named
from benchmarks.routing_rates import FARTHEST, STEP, Search, highest, in_time, sustainable

(BURSTS,) = chosen(["bursts"], columns(None))


@pytest.mark.parametrize("limit", [-90, -3, -1, 0, 1, 2, 3, 17, 100])
@pytest.mark.parametrize("start", [0, 5])
def test_the_highest_is_found_from_anywhere(limit: int, start: int) -> None:
    """Above or below the start of the search."""
    assert highest(lambda steps: steps <= limit, start) == limit


def test_a_search_has_an_end() -> None:
    """If no rate is sustained there is none; if all are, it is the last one tried."""
    assert highest(lambda _: False) is None
    assert highest(lambda _: True) == FARTHEST


@pytest.mark.parametrize("rate", [6.0, 30.0])
def test_a_run_that_ends_early_says_the_same(rate: float) -> None:
    """It gives the same verdict as the whole run."""
    task = Task(BURSTS, policy_named("round robin"), 1, rate)
    assert in_time(task) is sustained(cell(task))


def test_who_lets_a_few_starve_sustains_nothing() -> None:
    """Nine in ten begin at once if the longest prompts never do."""
    (column,) = chosen(["no_reuse"], columns(None))
    task = Task(column, policy_named("Dynamo, weight 32, shortest first"), 1, 1.4 * column.rate)
    whole = cell(task)
    assert whole.in_time >= 0.9
    assert whole.ttft_p99_s > 30.0
    assert not in_time(task)


def sustained(whole: Cell) -> bool:
    """Whether a run kept every bound, from its numbers."""
    return whole.in_time >= 0.9 and whole.ttft_p99_s <= 30.0


def test_only_the_best_peer_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are tried once, one step above the best peer's rate."""
    limits = {"prefixaware": 7, "session sticky": 3, "Dynamo, weight 1": 2, "Dynamo, weight 8": 5}
    tried: list[tuple[str, float]] = []

    def bears(task: Task) -> bool:
        tried.append((task.policy.name, task.rate))
        return log(task.rate / BURSTS.rate, STEP) < limits[task.policy.name] + 0.5

    monkeypatch.setattr(routing_rates, "in_time", bears)
    rates = sustainable(Search(BURSTS, [policy_named(name) for name in limits]))
    steps = {"prefixaware": 7, "session sticky": 3, "Dynamo, weight 1": 4, "Dynamo, weight 8": 5}
    assert {rate.policy: rate.rate for rate in rates} == {
        name: pytest.approx(BURSTS.rate * STEP**step) for name, step in steps.items()
    }
    assert [rate.policy for rate in rates if rate.below] == ["Dynamo, weight 1"]
    assert [name for name, _ in tried].count("Dynamo, weight 1") == 1
