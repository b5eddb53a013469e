"""Runs the `warmroute` console script in separate processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from typer.testing import CliRunner, Result

from router.cli.main import app
from tests.support import until

WARMROUTE = Path(sys.executable).with_name("warmroute")
ENV = {**os.environ, "VLLM_API_KEY": "sk-test", "COLUMNS": "200", "NO_COLOR": "1"}


def run(*args: object, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    """Run a command until it exits; fail if it prints a traceback."""
    done = subprocess.run(
        [WARMROUTE, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=ENV,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done


def invoke(*args: object) -> Result:
    """Run a command in this process, which is quick: for those that end before they serve."""
    words = list(map(str, args))
    return CliRunner().invoke(app(words), words, env=ENV, catch_exceptions=False)


class Running(NamedTuple):
    """A server command that runs in the background."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    args: tuple[object, ...]

    def file(self) -> Path:
        """The settings file it was given."""
        return Path(str(self.args[self.args.index("--config") + 1]))

    def url(self) -> str:
        """The router's URL, taken from its own log."""
        until(lambda: "listens on http" in self.err.read_text() or self.process.poll(), 20)
        text = self.err.read_text()
        assert "listens on http" in text, text
        return re.split(r"[\s\"]", text.partition("listens on ")[2])[0]

    def port(self) -> int:
        """The port it listens on."""
        return int(self.url().rpartition(":")[2])

    def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code; fail if there was a traceback."""
        self.process.send_signal(number)
        return self.code()

    def cut(self, number: signal.Signals) -> int:
        """Send a signal to a server, and once more after it has begun to shut down."""
        self.process.send_signal(number)
        until(lambda: "stopping" in self.err.read_text(), 20)
        return self.end(number)

    def code(self) -> int:
        """Wait for the exit and return its code; fail if there was a traceback."""
        code = self.process.wait(20)
        assert "Traceback" not in self.err.read_text()
        return code


class Serve(Protocol):
    """Run `warmroute serve` in front of workers, with further arguments and settings."""

    def __call__(self, *urls: str, args: tuple[object, ...] = (), **settings: Any) -> Running: ...


def refuses(port: int) -> bool:
    """Whether connections to this port of 127.0.0.1 are refused."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


@contextmanager
def started(folder: Path, *args: object) -> Iterator[Running]:
    """Run a command in the background; kill it if the test has not ended it."""
    name = f"{args[0]}-{len(list(folder.iterdir()))}"
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in (out, err)]
        process = subprocess.Popen(
            [WARMROUTE, *map(str, args)], stdout=files[0], stderr=files[1], env=ENV
        )
        stack.callback(process.wait, 20)
        stack.callback(process.kill)
        yield Running(process, out, err, args)
