"""`warmroute serve` where strangers could connect: what it allows, refuses and prints."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.authority import Authority
from tests.commands import invoke, run, started
from tests.support import MakeStub, until

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": []}
DOOR, ADMIN, WRONG = "sk-door-0123456789", "sk-admin-0123456789", "sk-wrong-0123456789"
WORKER = "sk-worker-0123456789"
MakeFile = Callable[..., Path]


@pytest.fixture
def file(stub: MakeStub, tmp_path: Path) -> MakeFile:
    """A function that writes settings for a worker with an API key; secret files lie beside it."""
    for name, key in (("door", DOOR), ("admin", ADMIN), ("worker", WORKER)):
        (tmp_path / f"{name}.secret").write_text(key + "\n")

    def make(**settings: Any) -> Path:
        worker = {"url": stub().url, "name": "gpu-1", "api_key": f"file:{tmp_path}/worker.secret"}
        path = tmp_path / "warmroute.yaml"
        path.write_text(json.dumps({"listen": "127.0.0.1:0", "workers": [worker], **settings}))
        return path

    return make


def keys(folder: Path, name: str) -> dict[str, list[str]]:
    """Return the setting for one key in a file."""
    return {"keys": [f"file:{folder}/{name}.secret"]}


def test_two_doors(file: MakeFile, tmp_path: Path) -> None:
    """Both URLs are printed, each accepts only its own key, and both use TLS."""
    ours = Authority(tmp_path / "ours")
    path = file(
        tls=ours.issue(),
        auth=keys(tmp_path, "door"),
        admin={"listen": "127.0.0.1:0", **keys(tmp_path, "admin")},
        shutdown={"delay": "0s"},
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    args = ("serve", "--config", path, "--processes", 2)
    with started(logs, *args) as running, httpx.Client(verify=ours.client()) as http:
        until(lambda: running.err.read_text().count("listens on") == 2, 20)
        found = re.findall(r"listens on (\S+)(.*)", running.err.read_text())
        (door, nothing), (admin, whose) = found
        assert (nothing, whose) == ("", " for operators")
        assert door.startswith("https://127.0.0.1:")
        assert admin.startswith("https://127.0.0.1:")
        for url, key in ((door + "/v1/models", DOOR), (admin + "/workers", ADMIN)):
            for brought in (DOOR, ADMIN, WRONG):
                reply = http.get(url, headers={"x-api-key": brought})
                assert reply.status_code == (200 if brought == key else 401)
        assert running.end(signal.SIGTERM) == 0


def test_nobody_is_let_in_by_accident(file: MakeFile) -> None:
    """`--listen` has the rules of `listen`: exit code 2, and a message that says what to do."""
    path = file()
    for address in ("0.0.0.0:0", "[::]:0", "example.org:80"):
        done = invoke("serve", "--config", path, "--listen", address)
        assert done.exit_code == 2
        assert done.stderr.startswith(f"--listen: {address} can be reached from other machines")
        assert "auth: none" in done.stderr


def test_no_secret_is_told(file: MakeFile, tmp_path: Path) -> None:
    """Neither the log, even at debug level, nor `check` shows a secret."""
    path = file(
        auth=keys(tmp_path, "door"),
        admin=keys(tmp_path, "admin"),
        logs={"level": "debug", "requests": True},
        health={"interval": "50ms"},
        shutdown={"delay": "0s"},
    )
    checked = run("check", path)
    assert checked.returncode == 0
    with started(tmp_path, "serve", "--config", path) as running, httpx.Client() as http:
        url = running.url()
        for key in (DOOR, ADMIN, WRONG):
            for place in (CHAT, "/v1/models", "/workers", "/nothing"):
                for headers in ({"authorization": f"Bearer {key}"}, {"api-key": key}):
                    http.post(url + place, headers=headers, json=BODY)
        until(lambda: "status=200" in running.err.read_text())
        until(lambda: "status=401" in running.err.read_text())
        assert running.end(signal.SIGTERM) == 0
        for key in (DOOR, ADMIN, WRONG, WORKER):
            assert key not in running.err.read_text() + checked.stdout + checked.stderr
