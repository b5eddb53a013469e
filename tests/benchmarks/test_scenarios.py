"""The scenarios, small: what must hold holds, with some slack for their size."""

import pytest
from typer import BadParameter, Exit

from benchmarks import scenarios
from benchmarks.scenarios import SCENARIOS, main
from benchmarks.scenarios_check import Check

#: Bounds are stated for large workloads; of numbers that are to be nothing, nothing is let off.
SLACK = 1.3


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_holds(name: str) -> None:
    """Every check of it."""
    checks = SCENARIOS[name](0.3)
    assert checks
    for check in checks:
        if check.least:
            assert check.value >= check.bound / SLACK, check
        else:
            assert check.value <= check.bound * SLACK, check


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
    main(scenario=["good"])
    with pytest.raises(Exit):
        main(scenario=["bad"])
    assert "does not hold" in capsys.readouterr().out
    with pytest.raises(BadParameter, match="one of bad, good"):
        main(scenario=["ugly"])
