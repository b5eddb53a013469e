"""The processes of a benchmark: stub workers, a load generator, proxies; all end with it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, cast

from benchmarks.harness import load, stub
from benchmarks.harness.load import Job, Result
from benchmarks.harness.processes import (
    NotReady,
    child,
    free_ports,
    memory_bytes,
    only_on,
    raise_file_limit,
    shared_out,
    started,
    stoppable,
    tree,
)
from benchmarks.harness.proxies import Group, ProxyPlace, ProxyProcess

#: Time limit for a proxy to answer its first request; LiteLLM takes some 20 s to import.
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A running proxy, or a worker to be measured without a proxy."""

    name: str
    group: Group | None
    port: int
    pids: Sequence[int] = ()
    slow: bool = False
    rest_bytes: int = 0
    """Its memory before the load."""


class Bench:
    """A context manager that stops all processes started through it."""

    def __init__(self, stubs: int, settings: stub.StubSettings, cores: int = 0) -> None:
        """Reserve `cores` cores for the proxy; if 0, all processes share all cores.

        Raises ValueError if no core would be left for the load.
        """
        self._theirs, self._ours = shared_out(cores)
        self._count = stubs
        self._settings = settings
        self._stack = ExitStack()
        self.ports: list[int] = []
        self.stub_pids: list[int] = []

    def __enter__(self) -> Self:
        raise_file_limit()
        with ExitStack() as stack:
            stack.enter_context(stoppable())
            stack.enter_context(only_on(self._ours))
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="benchmark-")))
            for _ in range(self._count):
                channel, pid = stack.enter_context(child(stub.serve, self._settings))
                self.ports.append(channel.recv())
                self.stub_pids.append(pid)
            self._load, _ = stack.enter_context(child(load.serve))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, job: Job) -> Result:
        """Run one job on the load generator and return its result."""
        self._load.send(job)
        return cast("Result", self._load.recv())

    def direct(self) -> RunningProxy:
        """Return the first worker as if it were a proxy: the baseline without one."""
        return RunningProxy("direct", None, self.ports[0])

    def start(self, proxy: ProxyProcess, program: Sequence[str]) -> RunningProxy:
        """Start a proxy in front of all stubs; it runs until the bench ends. Raises NotReady."""
        return self._stack.enter_context(self.running(proxy, program))

    @contextmanager
    def running(
        self, proxy: ProxyProcess, program: Sequence[str], options: Sequence[str] = ()
    ) -> Iterator[RunningProxy]:
        """Run a proxy in front of all stubs; yields once it answers. Raises NotReady."""
        folder = self._folder / proxy.name.replace(" ", "-")
        folder.mkdir()
        port, spare = free_ports(2)
        workers = [f"127.0.0.1:{worker}" for worker in self.ports]
        launch = proxy.launch(
            program, proxy.mode, ProxyPlace(folder, port, spare, workers, options)
        )
        log = folder / "log"
        with ExitStack() as stack:
            with only_on(self._theirs):
                process = stack.enter_context(started(launch.command, log, launch.env))
            deadline = time.monotonic() + _START_TIMEOUT_S
            while self.run(_probe(port)).problem:
                if process.poll() is not None or time.monotonic() > deadline:
                    last = log.read_text(errors="replace")[-2000:]
                    raise NotReady(f"{proxy.name} does not answer; the end of its log:\n{last}")
                time.sleep(0.2)
            pids = tree(process.pid)
            yield RunningProxy(proxy.name, proxy.group, port, pids, proxy.slow, memory_bytes(pids))


def _probe(port: int) -> Job:
    """A job of a few requests that reach all workers."""
    return Job(port, size=400, count=16, warm=1, concurrency=1, seed=0, limit_s=5.0)
