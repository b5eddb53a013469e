"""Situations that a fleet must survive well, at a small size."""

import pytest

from benchmarks.scenarios import SCENARIOS
from benchmarks.scenarios.checks import Check

#: Share of the benchmark's size, and the factor by which so small a run may miss a bound. Bounds of
#: zero have no slack.
SIZE, SLACK = 0.2, 1.05


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
