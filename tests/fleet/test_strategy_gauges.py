"""Sizes that strategies report as metrics."""

from collections.abc import Mapping
from decimal import Decimal

import pytest
from prometheus_client import generate_latest

from router.fleet.fleet import Fleet
from router.fleet.metrics import fleet_metrics
from router.fleet.pool import Pool
from strategies.api import NoOptions
from strategies.policies.round_robin import RoundRobin


class Telling(RoundRobin):
    """A strategy of another package, which reports `told`."""

    told: object = None

    def gauges(self) -> Mapping[str, float]:
        """Return whatever the test set."""
        return self.told  # type: ignore[return-value]


def scraped(told: object) -> str:
    """Return the metrics of two pools, the first of which reports `told`."""
    telling = Telling(NoOptions())
    telling.told = told
    sound = Telling(NoOptions())
    sound.told = {"plugin_size": 2}
    fleet = Fleet([Pool("a", ("a",), [], telling), Pool("b", ("b",), [], sound)])
    return generate_latest(fleet_metrics(fleet).registry).decode()


def test_any_number_will_do() -> None:
    """Any numeric type is accepted."""
    found = scraped({"plugin_size": Decimal("1.5")})
    assert 'warmroute_plugin_size{pool="a"} 1.5' in found
    assert 'warmroute_plugin_size{pool="b"} 2.0' in found


@pytest.mark.parametrize("told", [None, {"plugin_size": "large"}, {"plugin_size": None}])
def test_a_fault_hides_nothing_else(told: object, caplog: pytest.LogCaptureFixture) -> None:
    """The metrics of other strategies are still there, and the fault is logged."""
    found = scraped(told)
    assert 'warmroute_plugin_size{pool="a"}' not in found
    assert 'warmroute_plugin_size{pool="b"} 2.0' in found
    assert "pool a: its strategy raised an error" in caplog.text
