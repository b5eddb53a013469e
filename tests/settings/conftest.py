"""Keys in the environment."""

import pytest

from tests.settings.wrong import KEYS


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables of `KEYS`."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
