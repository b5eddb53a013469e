"""`shutdown.state`: a folder that is checked when the settings are read, as files are."""

from pathlib import Path

import pytest

from router.processes.child import opened, seal
from router.settings.errors import SettingsError
from router.settings.loader import load
from router.settings.model import Settings


def read(file: Path, state: str) -> Settings:
    """Write settings with this folder, and read them."""
    file.write_text(f"workers: [http://10.0.0.1:8000]\nshutdown: {{state: {state}}}\n")
    return load(file)


def test_it_starts_at_the_folder_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path does, whatever the working directory; so it is in every process."""
    (tmp_path / "state").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for state in ("state", "./state", str(tmp_path / "state")):
        settings = read(tmp_path / "w.yaml", state)
        assert settings.shutdown.state == str(tmp_path / "state")
        assert opened(seal(settings)).shutdown.state == settings.shutdown.state


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("missing", 'folder "{folder}/missing" does not exist'),
        ("w.yaml", 'folder "{folder}/w.yaml" does not exist'),
        ("locked", 'folder "{folder}/locked" cannot be written in'),
        ("x" * 300, "cannot be used: File name too long"),
        ('""', '"" is not a path'),
        ("7", "7 is not a path"),
    ],
)
def test_it_must_be_one_that_can_be_written_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, why: str
) -> None:
    """Otherwise what is learned would be lost at the shutdown."""
    (tmp_path / "locked").mkdir()
    if state == "locked":  # by its mode it would not be locked for root
        monkeypatch.setattr("router.settings.files.access", lambda *_: False)
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / "w.yaml", state)
    (problem,) = refused.value.problems
    assert (problem.line, problem.field) == (2, "shutdown.state")
    assert why.format(folder=tmp_path) in problem.message
