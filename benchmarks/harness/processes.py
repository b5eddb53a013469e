"""Start and stop other programs, and measure their CPU time and memory from outside."""

import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

#: `CPUCLOCK_SCHED` of the kernel's include/linux/posix-timers.h: the nanoseconds that all threads
#: of a process have run, including those that have ended.
_CPUCLOCK_SCHED = 2
_STOP_TIMEOUT_S = 10.0
#: Open files, enough for more than ten thousand streams: a proxy needs two for each.
MAX_FILES = 65_536
_SPAWN = multiprocessing.get_context("spawn")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stopped(Exception):
    """The benchmark was stopped by a signal."""


class NotReady(Exception):
    """A proxy did not start."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds, user and system."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def machine_seconds() -> float:
    """Return the CPU seconds of everything on this machine, with what its host took (steal)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, irq, soft_irq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + soft_irq + steal) / _TICKS_PER_S


def tree(root: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(stat.parent.name))
    pids = [root]
    for pid in pids:
        pids.extend(children[pid])
    return pids


def memory_bytes(pids: Sequence[int]) -> int:
    """Return the memory of processes in bytes (PSS), a shared page divided among its users."""
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
    available = sorted(os.sched_getaffinity(0))
    if cores >= len(available):
        raise ValueError(f"{cores} cores for a proxy leave none of {len(available)} for the load")
    return set(available[-cores:]), set(available[:-cores] or available)


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
        process.wait(_STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):  # what is left of its group
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def child(
    serve: Callable[..., None], *args: object
) -> Iterator[tuple["Connection[Any, Any]", int]]:
    """Run `serve(channel, *args)` in its own process; it ends when the channel closes."""
    parent_end, child_end = _SPAWN.Pipe()
    process = _SPAWN.Process(target=serve, args=(child_end, *args), daemon=True)
    process.start()
    child_end.close()
    try:
        yield parent_end, process.pid or 0
    finally:
        parent_end.close()
        process.join(5.0)
        process.kill()
        process.join()


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into the exception Stopped, so that all processes are stopped."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def raise_file_limit() -> None:
    """Raise the limit on open files as far as allowed; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, MAX_FILES), max(hard, MAX_FILES)))
    except ValueError:  # only root may exceed the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
