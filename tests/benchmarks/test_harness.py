"""The cores that a proxy has for itself."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.harness.processes import only_on, shared_out, started


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some for a proxy, the others for the rest; by default all are for everything."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert shared_out(0) == ({0, 1, 2, 3}, {0, 1, 2, 3})
    assert shared_out(1) == ({3}, {0, 1, 2})
    with pytest.raises(ValueError, match="4 cores for a proxy leave none of 4 for the load"):
        shared_out(4)


def test_what_is_started_stays_there(tmp_path: Path) -> None:
    """The process started keeps its cores, and the starting process returns to its own."""
    before = os.sched_getaffinity(0)
    core = {min(before)}
    show = "import os; print(os.sched_getaffinity(0))"
    with only_on(core), started([sys.executable, "-c", show], tmp_path / "log", {}) as process:
        process.wait(30)
    assert (tmp_path / "log").read_text().strip() == str(core)
    assert os.sched_getaffinity(0) == before
