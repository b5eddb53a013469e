"""A folder for settings files."""

from pathlib import Path

import pytest

from tests.pems import write_pems


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with certificates; also sets a key in the environment."""
    monkeypatch.setenv("SOME_KEY", "0123456789abcdef")
    write_pems(tmp_path)
    return tmp_path
