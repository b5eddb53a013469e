"""State that strategies save in a folder at shutdown, for the next start of the router.

One file per pool and process, readable by its owner only. It holds keys of prefixes, no text. A
file that cannot be used, or is too old, is logged and ignored: the router then starts cold.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from os import O_CREAT, O_TRUNC, O_WRONLY, fdopen
from os import open as open_
from pathlib import Path
from time import time
from urllib.parse import quote

from router.fleet.build import CannotBuild
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from strategies.api import Strategy

log = logging.getLogger("warmroute.state")

#: Most bytes of a file that is read.
MAX_FILE_BYTES = 1 << 30
#: Age in seconds from which a file is ignored, because caches have changed completely since.
MAX_AGE_S = 3600.0


def take_over(fleet: Fleet, folder: str | None, place: int | None) -> None:
    """Restore what the previous run saved. Raises CannotBuild if the folder is not writable."""
    if folder is None:
        return
    for pool, file in _files(fleet, folder, place):
        try:
            with _beside(file).open("wb"):  # check now, not only when there is something to lose
                pass
            _beside(file).unlink()
        except OSError as error:
            raise CannotBuild(f"shutdown.state: {folder}: {error.strerror}") from None
        try:
            summary = _take(pool.strategy, file)
            absent = _forget_absent(pool)
        except (OSError, ValueError) as error:
            summary, absent = f"it starts cold: {error}", 0
        except Exception:
            log.exception("pool %s: its strategy raised an error", pool.name)
            continue
        log.info("pool %s: %s", pool.name, summary)
        if absent:
            log.info("pool %s: workers that it has no more: %d; forgotten", pool.name, absent)


def _forget_absent(pool: Pool) -> int:
    """Forget workers that have left meanwhile, and return how many there were.

    Nobody else would forget them. Each has a share of memory, and would be saved again.
    """
    absent = set(pool.strategy.known_workers()).difference(pool.named)
    for name in absent:
        pool.strategy.forget(name)
    return len(absent)


def leave(fleet: Fleet, folder: str | None, place: int | None) -> None:
    """Save state for the next run. Errors are only logged."""
    if folder is None:
        return
    for pool, file in _files(fleet, folder, place):
        try:
            _write(file, pool.strategy.dump_state())
        except OSError as error:
            log.error(
                "pool %s: its knowledge of caches could not be saved: %s: %s",
                pool.name,
                file,
                error.strerror,
            )
        except Exception:
            log.exception("pool %s: its strategy raised an error", pool.name)


def _take(strategy: Strategy, file: Path) -> str:
    """Restore one file; return what to log. Raises OSError, ValueError."""
    if not file.exists():
        return "it starts cold: nothing was left for it"
    about = file.stat()
    age = time() - about.st_mtime
    if age > MAX_AGE_S:
        raise ValueError(f"what was left is {age / 60:.0f} minutes old")
    if about.st_size > MAX_FILE_BYTES:
        raise ValueError(f"what was left has {about.st_size} bytes")
    data = file.read_bytes()
    file.unlink()  # it is valid only once
    return strategy.restore_state(data)


def _files(fleet: Fleet, folder: str, place: int | None) -> Iterator[tuple[Pool, Path]]:
    for pool in fleet.pools:
        if pool.capabilities.keeps_state:
            name = f"{quote(pool.name, safe='')}.{place or 1}.prefixes"
            yield pool, Path(folder) / name


def _write(file: Path, data: bytes) -> None:
    """Write the file atomically, readable by its owner only."""
    fresh = _beside(file)
    with suppress(FileNotFoundError):
        fresh.unlink()
    try:
        with fdopen(open_(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0o600), "wb") as out:
            out.write(data)
        fresh.replace(file)
    except OSError:
        with suppress(OSError):  # half a file would only take the room of others
            fresh.unlink()
        raise


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.new")
