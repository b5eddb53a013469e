"""A program that a test starts, waits for, and ends together with everything it started."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import httpx

#: Most seconds for a program to start, and to stop.
START_S, STOP_S = 400.0, 20.0
_SHARED = "/dev/shm/"  # noqa: S108 - that is its name


class Program:
    """A program with an HTTP health check, from `run` to `stop`. Its output is in `log`."""

    name: ClassVar[str]

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], well: str) -> None:
        """Start it and wait until `well` answers 200.

        Raises RuntimeError if it ends or takes too long. The program's folder is added to the path,
        because the tools that it needs are there.
        """
        path = f"{Path(arguments[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                env={**os.environ, **environment, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that the whole group can be ended
            )
        try:
            self._wait(well)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and everything it started, and remove its shared memory if no one else uses it."""
        self._end(STOP_S)

    def kill(self) -> None:
        """Do the same at once."""
        self._end(None)

    def _end(self, patience: float | None) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        segments = shared_memory(process.pid)
        if patience is not None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        with suppress(ProcessLookupError):  # the group ends with its last process
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        remove(segments, process.pid)

    def _wait(self, well: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} has ended:\n{self._said()}")
            with suppress(httpx.TransportError):
                if httpx.get(well, timeout=5).status_code == 200:
                    return
            time.sleep(0.25)
        raise RuntimeError(f"{self.name} is not there after {START_S:g}s:\n{self._said()}")

    def _said(self) -> str:
        """Return the end of its log, preceded by error lines, which may be far above."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        wrong = [line for line in lines[:-30] if "Error: " in line]
        return "\n".join([*wrong[:10], *lines[-30:]])


# Shared memory that programs leave behind when they end; it would stay until a reboot.


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
