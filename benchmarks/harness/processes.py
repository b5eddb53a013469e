"""Start and stop other programs, and measure their CPU time and memory from outside."""

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

#: `CPUCLOCK_SCHED` of the kernel's include/linux/posix-timers.h: the nanoseconds that all threads
#: of a process have run, including those that have ended.
_SCHED = 2
_STOP_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process in seconds, user and system."""
    return time.clock_gettime((~pid << 3) | _SCHED)


def machine_seconds() -> float:
    """CPU time of everything on this machine in seconds, including what its host took (steal)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, irq, soft_irq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + soft_irq + steal) / _TICKS


def tree(root: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found.extend(children[pid])
    return found


def memory_bytes(pids: Sequence[int]) -> int:
    """Memory of processes in bytes (PSS): a shared page is divided among those that share it."""
    return sum(map(_memory, pids)) * 1024


def _memory(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def shared_out(cores: int) -> tuple[set[int], set[int]]:
    """Split our cores into `cores` of them for a proxy and the rest for everything else.

    If `cores` is 0, both get all cores. Raises ValueError if none would be left for the rest.
    """
    ours = sorted(os.sched_getaffinity(0))
    if cores >= len(ours):
        raise ValueError(f"{cores} cores for a proxy leave none of {len(ours)} for the load")
    return set(ours[-cores:]), set(ours[:-cores] or ours)


@contextmanager
def only_on(cores: set[int]) -> Iterator[None]:
    """Pin threads and processes started within the block to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def started(
    command: Sequence[str], log: Path, env: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command with its output in a file; at the end stop it with all its children."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with suppress(ProcessLookupError):  # what is left of its group
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
