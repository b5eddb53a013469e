"""Shared memory that programs leave behind when they end; it would stay until a reboot."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_SHARED = "/dev/shm/"  # noqa: S108 - that is its name


def shared_memory(group: int, *, others: bool = False) -> set[Path]:
    """Return segments that a process group has open now, or that all `others` have."""
    found: set[Path] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and (_group(process) == group) is not others:
            with suppress(OSError):  # the process is gone, or not ours
                found |= _mapped((process / "maps").read_text())
    return found


def remove(segments: Iterable[Path], group: int) -> None:
    """Remove segments that a group had open, if they still exist and no other process uses them."""
    for one in set(segments) - shared_memory(group, others=True):
        one.unlink(missing_ok=True)


def _group(process: Path) -> int:
    """Return its process group; 0 if the process is gone."""
    with suppress(OSError, ValueError, IndexError):
        stat = (process / "stat").read_text()
        return int(stat.rpartition(")")[2].split()[2])
    return 0


def _mapped(maps: str) -> set[Path]:
    names = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if _SHARED in line}
    return {Path(name) for name in names if not name.endswith("(deleted)")}
