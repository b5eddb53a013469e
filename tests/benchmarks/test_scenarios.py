"""Scenarios at a small size: each holds, and fails without the part that it guards."""

import pytest
from typer import BadParameter, Exit

from benchmarks.scenarios import __main__ as scenarios
from benchmarks.scenarios.__main__ import SCENARIOS, main
from benchmarks.scenarios.checks import Check
from tests.benchmarks import parts
from tests.benchmarks.parts import Without

#: Share of the benchmark's size, and the factor by which so small a run may miss a bound. Bounds of
#: zero have no slack.
SIZE, SLACK = 0.2, 1.05

#: What each scenario guards: if any one of these parts is removed, the scenario fails.
GUARDED: dict[str, tuple[Without, ...]] = {
    "scale_out": (parts.without_prefixes,),
    "slow_worker": (parts.without_pace, parts.without_wait),
    "slow_in_bursts": (parts.without_booking,),
    "restart": (parts.without_forgetting, parts.without_correction),
    "hot_prefix": (parts.without_wait,),
    "large_prefix": (parts.without_use, parts.without_copies),
    "new_prefix": (parts.without_copies, parts.without_waiting),
    "cold_siblings": (parts.without_placements,),
    "all_at_once": (parts.without_booking, parts.without_wait, parts.without_order),
    "fleets": (parts.without_prefixes,),
    "tight": (parts.without_prefixes,),
    "wrong_capacity": (parts.without_correction,),
    "lies": (parts.without_prefixes,),
    "churn": (parts.without_bounds,),
    "long_documents": (parts.without_prefixes,),
}


def holds(check: Check) -> bool:
    """Return whether a check holds, with the slack for its size."""
    if check.least:
        return check.value >= check.bound / SLACK
    return check.value <= check.bound * SLACK


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_holds(name: str) -> None:
    """Every one of its checks holds."""
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
    """If a part that the scenario guards is removed, a check fails."""
    without(monkeypatch)
    assert not all(map(holds, SCENARIOS[name](SIZE)))


def test_each_scenario_looks_after_something() -> None:
    """Every scenario guards at least one part."""
    assert GUARDED.keys() == SCENARIOS.keys()


def test_a_check_is_met_up_to_its_bound() -> None:
    """At most the bound, or with `least` at least."""
    assert Check("x", 1.0, 1.0).met
    assert not Check("x", 1.1, 1.0).met
    assert Check("x", 1.1, 1.0, least=True).met
    assert not Check("x", 0.9, 1.0, least=True).met


def test_the_command_says_what_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It exits with 1, and marks the line."""
    made = {"bad": lambda _: [Check("sunshine", 2.0, 1.0)], "good": lambda _: []}
    monkeypatch.setattr(scenarios, "SCENARIOS", made)
    main(scenario=["good"], jobs=1)
    with pytest.raises(Exit):
        main(scenario=["bad"], jobs=1)
    assert "does not hold" in capsys.readouterr().out
    with pytest.raises(BadParameter, match="one of bad, good"):
        main(scenario=["ugly"], jobs=1)
