"""Standard streams: a full disk, a reader that has left, and those that are closed."""

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


@pytest.fixture(
    params=[("check", ""), ("check", "1"), ("explain", ""), ("explain --json", "1")],
    ids=" ".join,
)
def command(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """A command that prints something; unbuffered, failures show when it is printed."""
    words, unbuffered = request.param
    monkeypatch.setitem(ENV, "PYTHONUNBUFFERED", unbuffered)
    name, *options = words.split()
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


ALL = "<&- >&- 2>&-"


def begun_closed(closed: str, *args: object) -> "subprocess.Popen[bytes]":
    """Start a command with these streams closed; the others lead nowhere."""
    line = f'exec "$@" {closed}'
    return subprocess.Popen(
        ["sh", "-c", line, "sh", WARMROUTE, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENV,
    )


@pytest.mark.parametrize(
    ("command", "code", "closed"),
    [
        ("check", 0, ">&-"),
        ("check", 0, ALL),
        ("check --live", 1, "<&-"),
        ("replay", 1, "<&-"),
    ],
)
def test_what_ends_has_the_usual_code(
    tmp_path: Path, dead_url: str, command: str, code: int, closed: str
) -> None:
    """It is not aborted when a socket is closed that has a stream's number."""
    name, *options = command.split()
    file = tmp_path / "w.yaml"
    file.write_text(f"workers: [{dead_url}]\n")
    if name == "replay":
        file.write_text('{"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[1]}\n')
        options = ["--url", dead_url]
    assert begun_closed(closed, name, file, *options).wait(30) == code


def test_a_server_serves(tmp_path: Path, dead_url: str) -> None:
    """Its processes have none of their numbers to give away either."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    file = tmp_path / "w.yaml"
    file.write_text(f"listen: 127.0.0.1:{port}\nworkers: [{dead_url}]\n")
    process = begun_closed(ALL, "serve", "--config", file, "--processes", 2)
    try:
        until(lambda: not refuses(port) or process.poll() is not None, 20)
        assert httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=20).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)
