"""Warmroute in its own process, which ends with the benchmark even if that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.processes import NotReady, free_ports, started, tree

#: Has the kernel kill the router when its parent dies (PR_SET_PDEATHSIG, 1, of linux/prctl.h; 9 is
#: SIGKILL), because a killed benchmark cannot stop it.
_EXEC_WITH_PARENT = (
    "import ctypes, os, sys;"
    "ctypes.CDLL(None).prctl(1, 9);"
    "os.execv(sys.executable, [sys.executable, '-m', 'router', *sys.argv[1:]])"
)
_ROOT = Path(__file__).parents[2]
_START_TIMEOUT_S = 30.0
#: Time limit for loading a tokenizer.
_LOAD_TIMEOUT_S = 60.0
#: Time limit for a clean exit; after that `started` kills it.
_EXIT_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Router:
    """A running router."""

    process: "subprocess.Popen[bytes]"
    port: int
    settings: Path
    """Its configuration file."""
    log: Path

    @property
    def pids(self) -> list[int]:
        """Its current processes."""
        return tree(self.process.pid)

    def change(self, settings: dict[str, Any]) -> None:
        """Replace the settings file atomically, and have the router reload it."""
        beside = self.settings.with_suffix(".new")
        beside.write_text(json.dumps(settings))
        beside.replace(self.settings)
        self.process.send_signal(signal.SIGHUP)

    def ready(self) -> bool:
        """Return true if it has a worker to send requests to."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=2):
                return True
        except OSError:
            return False

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the series with these labels. Raises OSError."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def last_words(self, length: int = 2000) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-length:]

    def end(self) -> int:
        """Shut it down cleanly; return its exit code."""
        self.process.terminate()
        return self.process.wait(_EXIT_TIMEOUT_S)


@contextmanager
def router(folder: Path, settings: dict[str, Any], options: Sequence[str] = ()) -> Iterator[Router]:
    """Run `warmroute serve` until the block ends; yields once it is ready. Raises NotReady.

    Leave `listen` out of `settings` to get a free port. The file is written as JSON, which is YAML.
    """
    port = free_ports(1)[0]
    settings = {"listen": f"127.0.0.1:{port}", **settings}
    file, log = folder / "warmroute.yaml", folder / "warmroute.log"
    file.write_text(json.dumps(settings))
    command = [sys.executable, "-c", _EXEC_WITH_PARENT, "serve", "--config", str(file), *options]
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with started(command, log, {"PYTHONPATH": os.pathsep.join(paths)}) as process:
        running = Router(process, port, file, log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not running.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotReady(f"the router does not answer; its log:\n{running.last_words()}")
            time.sleep(0.1)
        yield running


@contextmanager
def keying_router(ports: Sequence[int], tokenizer: Path | None) -> Iterator[Router]:
    """Run a router that keys prompts by their tokens, or by their text without a `tokenizer`.

    `ports` are those of its workers. Raises NotReady if it does not load the tokenizer.
    """
    settings = {
        "strategy": "prefixaware",
        "workers": [f"http://127.0.0.1:{port}" for port in ports],
        "tokenizer": str(tokenizer or "bytes"),
    }
    with TemporaryDirectory(prefix="benchmark-") as folder, router(Path(folder), settings) as made:
        deadline = time.monotonic() + _LOAD_TIMEOUT_S
        while tokenizer and not made.metric("warmroute_tokenizer_workers"):
            if time.monotonic() > deadline:
                raise NotReady("no tokenizer was loaded")
            time.sleep(0.1)
        yield made
