"""The cost of a decision beside that of another version."""

from pathlib import Path

import pytest
from typer import BadParameter

from benchmarks.decision import _measured_there

EARLY = """
def _measure(size, count):
    return size, count, size + count
"""


def test_the_other_version_measures_by_itself(tmp_path: Path) -> None:
    """With its own file, in which the earliest ones had another name for it."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "decision.py").write_text(EARLY)
    assert _measured_there(tmp_path, [(400, 8), (700, 64)]) == [[400, 8, 408], [700, 64, 764]]


def test_a_folder_without_a_version(tmp_path: Path) -> None:
    """This version is not measured in its place."""
    with pytest.raises(BadParameter, match=r"has no benchmarks/decision\.py"):
        _measured_there(tmp_path, [(400, 8)])
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "decision.py").write_text("raise ValueError('too old')")
    with pytest.raises(BadParameter, match="too old"):
        _measured_there(tmp_path, [(400, 8)])
