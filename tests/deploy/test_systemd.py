"""The units for systemd: what they say of the router is so, and what it needs is allowed."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from router.cli.controller_service import ENDING_S
from router.processes.supervisor import GRACE_S
from router.runtime.process import RESERVED_DESCRIPTORS
from router.settings.loader import loads
from router.settings.model import Settings
from tests.commands import started
from tests.deploy.files import DEPLOY
from tests.deploy.units import Unit, unit
from tests.support import MakeStub, until

NAMES = ("warmroute", "warmroute-controller")
#: What differs between the two units in `[Service]`; the rest restricts both alike.
OWN = {
    *("ExecStart", "ExecReload", "TimeoutStopSec", "KillMode"),
    *("StateDirectory", "CacheDirectory", "Environment"),
}
#: Seconds that the last snapshot of a large index may take.
SNAPSHOT_S = 60
README = (DEPLOY / "README.md").read_text("utf-8")
OPERATIONS = (DEPLOY.parent / "docs" / "operations.md").read_text("utf-8")


def settings(**more: object) -> Settings:
    """Return the defaults."""
    return loads(json.dumps({"workers": ["http://127.0.0.1:1"], **more}))


def given(told: Unit, folder: Path, **written: object) -> list[object]:
    """Return the unit's arguments, with files in this folder and any port instead of its own."""
    words: list[object] = [*told.words()[1:]]
    for place, word in enumerate(words):
        if str(word).startswith("/"):
            words[place] = folder / Path(str(word)).name
    file = Path(str(words[words.index("--config") + 1]))
    file.write_text(json.dumps({"listen": "127.0.0.1:0", **written}))
    if "--listen" in words:
        words[words.index("--listen") + 1] = "127.0.0.1:0"
    return words


def test_reload_and_stop_of_the_router(stub: MakeStub, tmp_path: Path, stack: ExitStack) -> None:
    """The command line is taken, the unit's signal reloads, and SIGTERM ends it with 0."""
    told = unit("warmroute")
    secret = tmp_path / "key"  # no change of it is noticed without the signal
    secret.write_text("sk-0123456789-old")
    keys = {"keys": [f"file:{secret}"]}
    words = given(told, tmp_path, workers=[stub().url], auth=keys)
    running = stack.enter_context(started(tmp_path, *words))
    http = stack.enter_context(httpx.Client(base_url=running.url()))

    def opens(key: str) -> bool:
        return http.get("/workers", headers={"x-api-key": key}).status_code == 200

    assert opens("sk-0123456789-old")
    program, option, process = shlex.split(told.one("ExecReload"))
    assert (program, process) == ("/bin/kill", "$MAINPID")
    secret.write_text("sk-0123456789-new")
    running.process.send_signal(signal.Signals[f"SIG{option.removeprefix('-')}"])
    until(lambda: opens("sk-0123456789-new"), 20)
    assert running.cut(signal.SIGTERM) == 0


def test_the_controller_keeps_what_it_knows(
    stub: MakeStub, tmp_path: Path, stack: ExitStack
) -> None:
    """Its command line is taken, and its snapshot is written where it may write."""
    told = unit("warmroute-controller")
    words = given(told, tmp_path, workers=[stub().url], strategy="kvaware")
    running = stack.enter_context(started(tmp_path, *words))
    assert httpx.get(f"{running.url()}/health/live").status_code == 200
    assert running.end(signal.SIGTERM) == 0
    snapshot = Path(told.words()[told.words().index("--snapshot") + 1])
    assert (tmp_path / snapshot.name).stat().st_size > 0
    assert snapshot.parent in told.writable()
    assert "ExecReload" not in told.service, "it reads its file only at the start"
    port = told.words()[told.words().index("--listen") + 1].rpartition(":")[2]
    assert f'controller: {{url: "http://127.0.0.1:{port}"}}' in README


def test_stopping_has_the_time_that_it_takes() -> None:
    """With several processes too, which are killed after some grace."""
    ending = settings().shutdown
    assert int(unit("warmroute").one("TimeoutStopSec")) > ending.delay + ending.drain + GRACE_S
    assert int(unit("warmroute-controller").one("TimeoutStopSec")) > ENDING_S + SNAPSHOT_S


@pytest.mark.parametrize("name", NAMES)
def test_it_is_always_started_again(name: str) -> None:
    """Whatever its exit code, however often; and to be stopped while it starts is no failure."""
    told = unit(name)
    assert told.one("Restart") == "always"
    assert told.others["StartLimitIntervalSec"] == ["0"]
    assert f"it is started again after {told.one('RestartSec')} s" in OPERATIONS
    ended = {128 + number for number in (signal.SIGTERM, signal.SIGINT)}
    assert set(map(int, told.one("SuccessExitStatus").split())) == ended
    # The router says nothing to systemd: `notify` would wait for it in vain and end it.
    assert told.one("Type") == "exec"
    assert "WatchdogSec" not in told.service


def test_both_are_restricted_alike() -> None:
    """Apart from what is their own."""
    one, other = (
        {key: value for key, value in unit(name).service.items() if key not in OWN}
        for name in NAMES
    )
    assert one == other
    assert one["DynamicUser"] == one["NoNewPrivileges"] == ["yes"]
    assert one["CapabilityBoundingSet"] == [""]
    assert one["LimitCORE"] == ["0"], "a core has prompts in it"


def test_descriptors_suffice() -> None:
    """For as many connections as clients may have by default, without a warning."""
    least = 2 * settings().clients.connections + RESERVED_DESCRIPTORS
    for name in NAMES:
        assert int(unit(name).one("LimitNOFILE")) > least


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_takes_every_line(name: str, tmp_path: Path) -> None:
    """It complains of no key and of no value."""
    text = (DEPLOY / "systemd" / f"{name}.service").read_text("utf-8")
    file = tmp_path / f"{name}.service"
    file.write_text(text.replace("/opt/warmroute/bin/warmroute", sys.executable))
    analyze = ["systemd-analyze", "verify", "--man=no", str(file)]
    done = subprocess.run(analyze, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if str(file) in line] == []
