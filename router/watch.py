"""Notices when files change, by looking at them now and then.

A file is told by where it lies, its size and its time, links followed: so an editor's rename and
the swapped link of a Kubernetes ConfigMap are seen like any other write. A change counts once
nothing has moved between two looks; until then somebody may still be writing.
"""

from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG

_Mark = tuple[int, int, int, int] | None


class Watch:
    """Some files, as they were when they were last taken note of."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known: dict[Path, _Mark] = {}
        self._last: dict[Path, _Mark] = {}
        self.follow(paths)

    def follow(self, paths: Iterable[Path]) -> None:
        """Look at these from now on; one that is new here is known as it is now."""
        self._known = {path: self._known.get(path) or _mark(path) for path in paths}

    def changed(self) -> bool:
        """Look; True, once, if they differ from what is known and have stopped changing."""
        before, self._last = self._last, self._look()
        if self._last == self._known or self._last != before:
            return False
        self._known = self._last
        return True

    def take_note(self) -> None:
        """They are about to be read: as they are now is what is known."""
        self._known = self._look()

    def _look(self) -> dict[Path, _Mark]:
        return {path: _mark(path) for path in self._known}


def _mark(path: Path) -> _Mark:
    try:
        found = path.stat()
    except OSError:
        return None
    if not S_ISREG(found.st_mode):
        return None  # a pipe moves when it is read, and can be read once
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
