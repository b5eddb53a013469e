"""A settings file that cannot be read."""

from pathlib import Path

import pytest

from router.settings.errors import SettingsError
from router.settings.loader import load
from tests.settings.wrong import WORKER


def test_a_file_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, a folder, too large, not UTF-8, empty, not a path, or not permitted."""
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    (tmp_path / "latin").write_bytes(b"# a\n# \xe9\n")
    (tmp_path / "empty").write_text("# only\n")
    for name, said in [
        ("missing", ": no such file"),
        (".", ": is a directory; name the file in it"),
        ("large", ": is larger than 1MiB"),
        ("latin", ":2: is not UTF-8"),
        ("empty", ": is empty; it needs at least workers"),
        ("a\0b", ": cannot be read: embedded null byte"),
    ]:
        with pytest.raises(SettingsError) as caught:
            load(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}{said}"

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SettingsError, match=r"^some: cannot be read: Permission denied$"):
        load("some")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbf" + WORKER.encode())
    assert load(str(tmp_path / "bom")).workers[0].url == "http://a:1"
