"""Settings that only one process can serve are refused for several, at the start and later."""

import json
import signal
from pathlib import Path

import pytest

from router.fleet.build import CannotBuild
from router.reload import check_multiprocess
from router.settings.model import Settings
from tests.commands import Serve, run
from tests.support import MakeStub, until

DIALS = {"url": "http://127.0.0.1:1", "name": "gpu", "kv_events": "tcp://*:5557"}
WHY = "several processes cannot hear an engine that dials in at tcp://*:5557"


def test_engines_that_dial_in_are_heard_by_one(tmp_path: Path) -> None:
    """Only one process could bind the port, and the others would hear nothing."""
    file = tmp_path / "w.yaml"
    settings = {"listen": "127.0.0.1:0", "strategy": "kvaware", "workers": [DIALS]}
    file.write_text(json.dumps(settings))
    done = run("serve", "--config", file, "--processes", 2)
    assert done.returncode == 1
    assert f"pool default: worker gpu: {WHY}" in done.stderr


@pytest.mark.parametrize(
    ("worker", "more"),
    [
        ({**DIALS, "kv_events": "tcp://10.0.0.1:5557"}, {}),
        (DIALS, {"controller": "http://127.0.0.1:8090"}),
    ],
    ids=["connected to", "a controller"],
)
def test_what_each_can_hear_or_ask_for(worker: dict[str, str], more: dict[str, str]) -> None:
    """These settings are accepted: each process can connect, or ask the controller."""
    given = {"strategy": "kvaware", "workers": [worker], **more}
    check_multiprocess(Settings.model_validate(given))
    with pytest.raises(CannotBuild, match="cannot hear"):
        check_multiprocess(Settings.model_validate({"workers": [DIALS]}))


def test_later_too(stub: MakeStub, serve: Serve) -> None:
    """After a change of the file the settings in use are kept, and the log says why."""
    worker = stub()
    running = serve(worker.url, args=("--processes", 2))
    running.url()
    file = running.file()
    settings = json.loads(file.read_text())
    for more, why in (
        ({"workers": [{**DIALS, "url": worker.url}], "strategy": "kvaware"}, WHY),
        ({"strategy": "session"}, "several processes need one place for their sessions"),
    ):
        file.write_text(json.dumps({**settings, **more}))
        running.process.send_signal(signal.SIGHUP)
        until(lambda w=why: w in running.err.read_text(), 20)  # type: ignore[misc]
    assert running.err.read_text().count("the settings in use are kept") >= 2
    assert running.cut(signal.SIGTERM) == 0
