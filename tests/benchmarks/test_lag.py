"""`benchmarks.lag` starts the router with the intended settings."""

import sys
from pathlib import Path

import pytest

from benchmarks.lag import _proxy
from benchmarks.proxies import Place
from benchmarks.streams import quantile
from router.settings.loader import load
from tests.identity_live.models import make_model


@pytest.mark.parametrize("tokenized", [True, False])
def test_the_settings_are_good(tmp_path: Path, tokenized: bool) -> None:
    """With a folder or without a tokenizer; the command sets the switch interval."""
    folder = make_model(tmp_path / "model") if tokenized else None
    place = Place(tmp_path, 8080, 8081, ["127.0.0.1:9001"])
    launch = _proxy(folder, 0.5).launch([sys.executable], "", place)
    assert "setswitchinterval(0.0005)" in launch.command[2]
    settings = load(tmp_path / "warmroute.yaml")
    assert settings.tokenizer.source == (str(folder) if folder else "bytes")
    assert settings.strategy.name == "prefixaware"


def test_quantiles_are_milliseconds() -> None:
    """Quantiles are in milliseconds, and 0 without values."""
    assert quantile([0.001, 0.002, 0.1], 0.5) == 2.0
    assert quantile([0.001, 0.002, 0.1], 1.0) == 100.0
    assert quantile([], 0.99) == 0.0
