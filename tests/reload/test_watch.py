"""When a watched file counts as changed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from router.settings.files import Watch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file to watch."""
    path = tmp_path / "warmroute.yaml"
    path.write_text("one")
    return path


def settled(watch: Watch, looks: int = 3) -> int:
    """Poll that many times; return how often a change was reported."""
    return [watch.changed() for _ in range(looks)].count(True)


def written(file: Path) -> None:
    """Write something longer."""
    file.write_text("longer")


def of_the_same_length(file: Path) -> None:
    """Write as much; only the modification time differs."""
    before = file.stat().st_mtime_ns
    file.write_text("two")
    os.utime(file, ns=(before, before + 1))


def renamed(file: Path) -> None:
    """Put another file in its place, as editors do, of the same size and modification time."""
    other, was = file.with_suffix(".new"), file.stat()
    other.write_text("two")
    os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
    other.replace(file)


def unreadable_before(file: Path) -> None:
    """Let it be read by others."""
    file.chmod(0o644)


@pytest.mark.parametrize("change", [written, of_the_same_length, renamed, unreadable_before])
def test_a_change(file: Path, change: Callable[[Path], None]) -> None:
    """Each is reported once; a file that is not changed, never."""
    file.chmod(0o600)
    watch = Watch([file])
    assert settled(watch) == 0
    change(file)
    assert settled(watch) == 1
    assert settled(watch) == 0


def test_half_a_file(file: Path) -> None:
    """While a file changes from poll to poll it is still being written, so nothing is reported."""
    watch = Watch([file])
    for size in range(10, 15):
        file.write_text("x" * size)
        assert not watch.changed()
    assert watch.changed()
    assert settled(watch) == 0


def test_a_file_that_is_gone_for_a_while(file: Path) -> None:
    """Deleting a file and writing it again is one change; deleting it for good is one too."""
    watch = Watch([file])
    file.unlink()
    assert not watch.changed()
    file.write_text("another")
    assert settled(watch) == 1
    file.unlink()
    assert settled(watch) == 1


def test_a_file_that_comes_back_once_it_was_read_as_gone(file: Path) -> None:
    """Following it again, as every reload does, does not take its return as known."""
    watch = Watch([file])
    file.unlink()
    assert settled(watch) == 1
    file.write_text("back")
    watch.follow([file])
    assert settled(watch) == 1


def test_a_config_map(tmp_path: Path) -> None:
    """Kubernetes updates a ConfigMap by swapping the link to its folder; that is a change."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "warmroute.yaml").write_text("same")
        os.utime(tmp_path / name / "warmroute.yaml", ns=(0, 0))
    data, file = tmp_path / "..data", tmp_path / "warmroute.yaml"
    data.symlink_to("one")
    file.symlink_to("..data/warmroute.yaml")
    watch = Watch([file])
    (tmp_path / "tmp").symlink_to("two")
    (tmp_path / "tmp").replace(data)
    assert settled(watch) == 1


def test_a_pipe(tmp_path: Path) -> None:
    """A pipe can be read only once, so it is never reported."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    watch = Watch([pipe])
    with os.fdopen(os.open(pipe, os.O_RDWR), "rb+", buffering=0) as both:
        both.write(b"x")
        assert settled(watch) == 0


def test_what_is_about_to_be_read(file: Path) -> None:
    """Changes before `take_note` are not reported; later ones are."""
    watch = Watch([file])
    file.write_text("longer")
    watch.take_note()
    assert settled(watch) == 0
    file.write_text("longer still")
    assert settled(watch) == 1


def test_other_files(file: Path, tmp_path: Path) -> None:
    """A newly followed file counts as known; one no longer followed is not watched."""
    watch = Watch([file])
    other = tmp_path / "door.pem"
    other.write_text("certificate")
    file.write_text("changed before")
    watch.follow([file, other])
    assert settled(watch) == 1
    other.write_text("renewed")
    assert settled(watch) == 1
    watch.follow([file])
    other.write_text("renewed again")
    assert settled(watch) == 0
