"""Standard streams that are closed, as some supervisors start commands."""

import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.commands import ENV, WARMROUTE, refuses
from tests.support import until

ALL = "<&- >&- 2>&-"


def begun(closed: str, *args: object) -> "subprocess.Popen[bytes]":
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
        ("check", 0, "<&-"),
        ("check", 0, ">&-"),
        ("check", 0, "2>&-"),
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
    assert begun(closed, name, file, *options).wait(30) == code


def test_a_server_serves(tmp_path: Path, dead_url: str) -> None:
    """Its processes have none of their numbers to give away either."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    file = tmp_path / "w.yaml"
    file.write_text(f"listen: 127.0.0.1:{port}\nworkers: [{dead_url}]\n")
    process = begun(ALL, "serve", "--config", file, "--processes", 2)
    try:
        until(lambda: not refuses(port) or process.poll() is not None, 20)
        assert httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=20).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)
