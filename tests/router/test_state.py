"""What strategies save at the shutdown, where there is no room for it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from router.state import leave
from tests.router.fleets import choice, fleet, prompt


@contextmanager
def no_room() -> Iterator[None]:
    """Let files have 100 bytes: for who writes one, the disk is full by then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_half_a_file_is_not_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is of no use to anybody, and on a full disk it takes the room of others."""
    ours = fleet(workers=1)
    ours.pools[0].book(prompt("a prefix " * 200), choice(ours, 0), 0.0)
    with no_room():
        leave(ours, str(tmp_path), None)
    assert "could not be saved" in caplog.text
    assert list(tmp_path.iterdir()) == []
    leave(ours, str(tmp_path), None)
    (file,) = tmp_path.iterdir()
    assert file.name == "p.1.prefixes"
    assert file.stat().st_size > 100
