"""The scenarios, small: what must hold holds, and does not without the part that sees to it."""

import pytest
from typer import BadParameter, Exit

from benchmarks import scenarios
from benchmarks.scenarios import SCENARIOS, main
from benchmarks.scenarios_check import Check
from tests.benchmarks import parts
from tests.benchmarks.parts import Without

#: Of the benchmark's size; and by how much what is so small may miss a bound. Of numbers that are
#: to be nothing, nothing is let off.
SIZE, SLACK = 0.2, 1.05

#: What each scenario looks after: without any one of these parts it does not hold.
GUARDED: dict[str, tuple[Without, ...]] = {
    "scale_out": (parts.without_prefixes,),
    "slow_worker": (parts.without_pace, parts.without_wait),
    "slow_in_bursts": (parts.without_booking,),
    "restart": (parts.without_forgetting, parts.without_correction),
    "hot_prefix": (parts.without_wait,),
    "large_prefix": (parts.without_use, parts.without_copies),
    "new_prefix": (parts.without_copies,),
    "cold_siblings": (parts.without_placements,),
    "all_at_once": (parts.without_booking, parts.without_wait, parts.without_holding),
    "fleets": (parts.without_prefixes,),
    "tight": (parts.without_prefixes,),
    "wrong_capacity": (parts.without_correction,),
    "lies": (parts.without_prefixes,),
    "churn": (parts.without_bounds,),
    "long_documents": (parts.without_prefixes,),
}


def holds(check: Check) -> bool:
    """Whether it does, with the slack for its size."""
    if check.least:
        return check.value >= check.bound / SLACK
    return check.value <= check.bound * SLACK


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_holds(name: str) -> None:
    """Every check of it."""
    checks = SCENARIOS[name](SIZE)
    assert checks
    assert [check for check in checks if not holds(check)] == []


@pytest.mark.parametrize(
    ("name", "without"),
    [(name, without) for name, several in GUARDED.items() for without in several],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_scenario_does_not_hold_without(
    name: str, without: Without, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the part missing that it looks after, it would be seen."""
    without(monkeypatch)
    assert not all(map(holds, SCENARIOS[name](SIZE)))


def test_each_scenario_looks_after_something() -> None:
    """None is without a part that it would miss."""
    assert GUARDED.keys() == SCENARIOS.keys()


def test_a_check_is_met_up_to_its_bound() -> None:
    """At most, or at least where that is said."""
    assert Check("x", 1.0, 1.0).met
    assert not Check("x", 1.1, 1.0).met
    assert Check("x", 1.1, 1.0, least=True).met
    assert not Check("x", 0.9, 1.0, least=True).met


def test_the_command_says_what_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, and the line is marked."""
    made = {"bad": lambda _: [Check("sunshine", 2.0, 1.0)], "good": lambda _: []}
    monkeypatch.setattr(scenarios, "SCENARIOS", made)
    main(scenario=["good"], jobs=1)
    with pytest.raises(Exit):
        main(scenario=["bad"], jobs=1)
    assert "does not hold" in capsys.readouterr().out
    with pytest.raises(BadParameter, match="one of bad, good"):
        main(scenario=["ugly"], jobs=1)
