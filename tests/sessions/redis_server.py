"""A real redis-server process on a port of its own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support import Router, until


def program() -> str:
    """Return its path; skip the test if none is installed."""
    beside = Path(sys.executable).parent / "redis-server"
    found = str(beside) if beside.exists() else shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server is installed")
    return found


#: Ports that the kernel gives to no connection by itself, so that one stays free between two
#: starts: so many for each of so many test processes that run in parallel.
FIRST_PORT, PORTS, SHARES = 12_000, 300, 64
_taken = count(os.getpid())


def free_port() -> int:
    """Return a free port that no test process beside this one is going to use."""
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES
    for _ in range(PORTS):
        port = FIRST_PORT + PORTS * share + next(_taken) % PORTS
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no port is free")


class RedisServer:
    """Runs from `start` to `kill`, repeatedly if needed, on one port; it stores nothing on disk."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it empty."""
        options = (
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        )
        self._process = subprocess.Popen([program(), *options], stdout=subprocess.DEVNULL)
        until(self._listens)

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(7) == b"+PONG\r\n"
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it at once; all its data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop it with SIGSTOP for a while; it keeps its data."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def found_again(self, *routers: Router) -> None:
        """Wait until these routers know that it can be reached."""
        for router in routers:
            for pool in router.door.fleet.pools:
                name = pool.name
                until(lambda: router.metric("warmroute_session_store_up", pool=name))  # noqa: B023

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill it."""
        self.kill()
