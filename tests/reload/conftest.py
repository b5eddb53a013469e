"""A folder for settings files."""

from pathlib import Path

import pytest

from router import reload
from tests.pems import write_pems


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with certificates; also sets a key in the environment and polls fast."""
    monkeypatch.setenv("SOME_KEY", "0123456789abcdef")
    monkeypatch.setattr(reload, "LOOK_S", 0.01)
    write_pems(tmp_path)
    return tmp_path
