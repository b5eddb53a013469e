"""Output that cannot be delivered: a full disk, a reader that has left."""

import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.commands import ENV, WARMROUTE, refuses
from tests.support import until

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"], autouse=True)
def _buffering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures show when something is printed, or only at the end."""
    monkeypatch.setitem(ENV, "PYTHONUNBUFFERED", request.param)


@pytest.fixture(params=["check", "explain", "explain --json", "schema", "--version", "--help"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A command that prints something."""
    name, *options = request.param.split()
    if not name.startswith(("check", "explain")):
        return [name, *options]
    file, body = tmp_path / "w.yaml", tmp_path / "body.json"
    file.write_text("workers: [http://127.0.0.1:1]\n")
    body.write_text(json.dumps({"messages": []}))
    asked = ["--request", str(body)] if name == "explain" else []
    return [name, str(file), *asked, *options]


def begun(
    *args: object, out: int | IO[bytes], err: int | IO[bytes] = subprocess.PIPE
) -> "subprocess.Popen[str]":
    """Start a command with these outputs."""
    return subprocess.Popen(
        [WARMROUTE, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        text=True,
        env=ENV,
    )


def test_a_full_disk(command: list[str]) -> None:
    """The exit code is 1, and one line says why."""
    with FULL.open("wb") as full:
        running = begun(*command, out=full)
        _, said = running.communicate(timeout=30)
    assert running.returncode == 1
    assert said == "standard output: No space left on device\n"


def test_a_reader_that_has_left(command: list[str]) -> None:
    """The command fails without a word."""
    running = begun(*command, out=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.close()
    running.stdout = None
    _, said = running.communicate(timeout=30)
    assert (running.returncode, said) == (1, "")


def test_a_full_disk_for_the_fleet() -> None:
    """Workers whose addresses nobody can read do not stay."""
    with FULL.open("wb") as full:
        running = begun("simulate", "--workers", 1, "--port", 0, out=full)
        _, said = running.communicate(timeout=30)
    assert running.returncode == 1
    assert said.splitlines()[1:] == ["standard output: No space left on device"]


def test_a_full_disk_for_the_log(tmp_path: Path) -> None:
    """The router serves all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    file = tmp_path / "w.yaml"
    file.write_text(f"listen: 127.0.0.1:{port}\nworkers: [http://127.0.0.1:1]\n")
    with FULL.open("wb") as full:
        running = begun("serve", "--config", file, out=subprocess.DEVNULL, err=full)
    try:
        until(lambda: not refuses(port) or running.poll() is not None, 20)
        ready = f"http://127.0.0.1:{port}/health/ready"
        until(lambda: httpx.get(ready, timeout=20).json()["status"] == "down", 20)
        running.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(ready, timeout=20).json()["status"] == "stopping", 20)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait(20)
