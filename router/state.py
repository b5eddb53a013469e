"""What strategies leave in a folder at the end, for the router that is started after this one.

One file for each pool and process, which nobody else may read: keys of prefixes stand in it, no
text. What cannot be used, or is old, is passed over with a line in the log: it is a start as any.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from os import O_CREAT, O_TRUNC, O_WRONLY, fdopen
from os import open as open_
from pathlib import Path
from time import time
from typing import Protocol, cast, runtime_checkable
from urllib.parse import quote

from router.fleet import Fleet
from router.rebuild import CannotBuild

log = logging.getLogger("warmroute.state")

#: Bytes of a file that is read.
LARGEST = 1 << 30
#: Seconds after which caches have nothing in common with what they were.
OLDEST_S = 3600.0


@runtime_checkable
class Leaves(Protocol):
    """A strategy that has something to leave."""

    def left(self) -> bytes:
        """What it knows, as bytes; empty if that is nothing."""

    def take_over(self, data: bytes) -> str:
        """Begin with what another one left; return what that was, in words. Raises ValueError with
        a sentence."""


def take_over(fleet: Fleet, folder: str | None, place: int | None) -> None:
    """Begin where the router before ended. Raises CannotBuild if nothing could be left there."""
    if folder is None:
        return
    for pool, strategy, file in _files(fleet, folder, place):
        try:
            with _beside(file).open("wb"):  # now, and not only when there is something to lose
                pass
            _beside(file).unlink()
        except OSError as error:
            raise CannotBuild(f"shutdown.state: {folder}: {error.strerror}") from None
        try:
            said = _take(strategy, file)
        except (OSError, ValueError) as error:
            said = f"it starts cold: {error}"
        log.info("pool %s: %s", pool, said)


def leave(fleet: Fleet, folder: str | None, place: int | None) -> None:
    """Write down what the next one can begin with. Raises nothing."""
    if folder is None:
        return
    for pool, strategy, file in _files(fleet, folder, place):
        try:
            _write(file, strategy.left())
        except OSError as error:
            log.error(
                "pool %s: its knowledge of caches could not be saved: %s: %s",
                pool,
                file,
                error.strerror,
            )


def _take(strategy: Leaves, file: Path) -> str:
    """Raises OSError, ValueError."""
    if not file.exists():
        return "it starts cold: nothing was left for it"
    about = file.stat()
    age = time() - about.st_mtime
    if age > OLDEST_S:
        raise ValueError(f"what was left is {age / 60:.0f} minutes old")
    if about.st_size > LARGEST:
        raise ValueError(f"what was left has {about.st_size} bytes")
    data = file.read_bytes()
    file.unlink()  # it is true once
    return strategy.take_over(data)


def _files(fleet: Fleet, folder: str, place: int | None) -> Iterator[tuple[str, Leaves, Path]]:
    for pool in fleet.pools:
        if isinstance(pool.chooser, Leaves):
            name = f"{quote(pool.name, safe='')}.{place or 1}.prefixes"
            yield pool.name, cast("Leaves", pool.chooser), Path(folder) / name


def _write(file: Path, data: bytes) -> None:
    """Never leave half of one, nor for others to read."""
    fresh = _beside(file)
    with suppress(FileNotFoundError):
        fresh.unlink()
    with fdopen(open_(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0o600), "wb") as out:
        out.write(data)
    fresh.replace(file)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.new")
