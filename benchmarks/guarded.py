"""A router of our own in a process of its own, which ends with us however we end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.request import urlopen

from benchmarks.bench import NotReady, Stopped
from benchmarks.processes import started, tree

#: PR_SET_PDEATHSIG of linux/prctl.h: whoever is killed cannot stop what it has started.
_GUARDED = (
    "import ctypes, os, sys;"
    "ctypes.CDLL(None).prctl(1, 9);"
    "os.execv(sys.executable, [sys.executable, '-m', 'router', *sys.argv[1:]])"
)
_ROOT = Path(__file__).parent.parent
_READY_S = 30.0
#: For the end in order; `started` ends what takes longer.
_END_S = 15.0


@dataclass(frozen=True, slots=True)
class Router:
    """A router that runs."""

    process: "subprocess.Popen[bytes]"
    port: int
    settings: Path
    """Its file."""
    log: Path

    @property
    def pids(self) -> list[int]:
        """Its processes, now."""
        return tree(self.process.pid)

    def change(self, settings: dict[str, Any]) -> None:
        """Write other settings, as a whole, and tell it so."""
        beside = self.settings.with_suffix(".new")
        beside.write_text(json.dumps(settings))
        beside.replace(self.settings)
        self.process.send_signal(signal.SIGHUP)

    def ready(self) -> bool:
        """It has a worker to send requests to."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=2):
                return True
        except OSError:
            return False

    def last_words(self, length: int = 2000) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-length:]

    def end(self) -> int:
        """Tell it to end, in order; return its exit code."""
        self.process.terminate()
        return self.process.wait(_END_S)


@contextmanager
def router(folder: Path, settings: dict[str, Any], options: Sequence[str] = ()) -> Iterator[Router]:
    """Run `warmroute serve` until the block ends, once it is ready. Raises NotReady.

    `settings` lack `listen`: it gets a free port. JSON is YAML enough.
    """
    port = free_ports(1)[0]
    settings = {"listen": f"127.0.0.1:{port}", **settings}
    file, log = folder / "warmroute.yaml", folder / "warmroute.log"
    file.write_text(json.dumps(settings))
    command = [sys.executable, "-c", _GUARDED, "serve", "--config", str(file), *options]
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with started(command, log, {"PYTHONPATH": os.pathsep.join(paths)}) as process:
        one = Router(process, port, file, log)
        deadline = time.monotonic() + _READY_S
        while not one.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotReady(f"the router does not answer; its log:\n{one.last_words()}")
            time.sleep(0.1)
        yield one


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end us as an exception, so that everything is stopped."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
