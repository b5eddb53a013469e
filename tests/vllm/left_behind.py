"""What programs leave in shared memory when they end: it is nobody's, and stays until a reboot."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_SHARED = "/dev/shm/"  # noqa: S108 - that is its name


def shared_memory(group: int, *, others: bool = False) -> set[Path]:
    """Segments that processes of a group have open now, or all `others`."""
    found: set[Path] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and (_group(process) == group) is not others:
            with suppress(OSError):  # it is gone, or not ours
                found |= _mapped((process / "maps").read_text())
    return found


def remove(segments: Iterable[Path], group: int) -> None:
    """Remove what a group had open, where it is still there and nobody else has it open."""
    for one in set(segments) - shared_memory(group, others=True):
        one.unlink(missing_ok=True)


def _group(process: Path) -> int:
    """Its process group; 0 where there is none any more."""
    with suppress(OSError, ValueError, IndexError):
        stat = (process / "stat").read_text()
        return int(stat.rpartition(")")[2].split()[2])
    return 0


def _mapped(maps: str) -> set[Path]:
    names = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if _SHARED in line}
    return {Path(name) for name in names if not name.endswith("(deleted)")}
