"""Notices when files change, by polling.

A file is identified by device, inode, size, modification time, owner and permissions, following
links. So an editor's rename, the swapped link of a Kubernetes ConfigMap, and the permission to read
are seen like any other write. A change counts once two polls in a row see the same; until then
somebody may still be writing.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from stat import S_ISREG

Mark = tuple[int, ...] | None
"""The state of a file; None if there is none."""


class Watch:
    """A set of files, and their last known state."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known: dict[Path, Mark] = {}
        self._last: dict[Path, Mark] = {}
        self.follow(paths)

    def follow(self, paths: Iterable[Path], read: Mapping[Path, Mark] | None = None) -> None:
        """Watch these from now on, and those that were `read`, which maps each to its state then.

        The current state of another new one counts as known.
        """
        known = {**(read or {}), **self._known}
        paths = {*paths, *(read or ())}
        self._known = {path: known[path] if path in known else mark(path) for path in paths}

    def changed(self) -> bool:
        """Poll; True, once, if the files differ from what is known and have stopped changing."""
        before, self._last = self._last, self._look()
        if self._last == self._known or self._last != before:
            return False
        self._known = self._last
        return True

    def take_note(self) -> None:
        """Take the current state as known, before the files are read."""
        self._known = self._look()

    def _look(self) -> dict[Path, Mark]:
        return {path: mark(path) for path in self._known}


def mark(path: Path) -> Mark:
    """Look at a file: equal marks mean that it has not changed."""
    try:
        found = path.stat()
    except OSError:
        return None
    if not S_ISREG(found.st_mode):
        return None  # a pipe changes by being read, and can be read only once
    what = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return *what, found.st_uid, found.st_gid, found.st_mode
