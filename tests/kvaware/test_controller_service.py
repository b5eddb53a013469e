"""The controller as a service: its metrics, and its snapshots while it runs."""

import asyncio
import errno
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from controller.kv_memory import KvMemory
from router.cli import controller_service as controller_command
from router.fleet.build import build
from router.http.tls import Contexts
from router.kv.snapshots import Snapshots
from router.settings.model import Settings
from tests.controller.announcements import push, stored
from tests.kvaware.conftest import MakeFleet
from tests.kvaware.test_controller import controller
from tests.support import until

DOCS = Path(__file__).parents[2] / "docs" / "kv.md"


def documented() -> set[str]:
    """Return the series that docs/kv.md lists for a controller."""
    watching = DOCS.read_text().split("## Watching it")[1].split("## ")[0]
    alone = DOCS.read_text().split("## The controller alone")[1].split("## ")[0]
    rows = [row.split("|")[1] for row in (watching + alone).splitlines() if row.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`((?:warmroute|process)_\w+)`", row)}


def series(url: str, **headers: str) -> dict[str, float]:
    """Return the metrics, by name and labels."""
    lines = httpx.get(f"{url}/metrics", headers=headers).raise_for_status().text.splitlines()
    told = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in told}


def test_what_prometheus_is_told(fleet: MakeFleet, tmp_path: Path, stack: ExitStack) -> None:
    """All series in the docs exist; names that callers make up never become labels."""
    (worker,) = fleet(workers=1).urls
    settings = tmp_path / "controller.yaml"
    settings.write_text(f"strategy: kvaware\nworkers: [{worker}]\nhealth: {{interval: 50ms}}\n")
    folder = tmp_path / "kept"
    folder.mkdir()
    args = ("--config", settings, "--listen", "127.0.0.1:0", "--every", "50ms")
    url, process = stack.enter_context(controller(tmp_path, *args, "--snapshot", folder / "index"))
    name = worker.removeprefix("http://")
    until(lambda: series(url)[f'warmroute_kv_trusted{{pool="default",worker="{name}"}}'] == 1)
    httpx.post(f"{url}/register", json={"instance_id": "made-up"}).raise_for_status()
    told = {"model": "toy", "prompt": "something to be told " * 20, "max_tokens": 1}
    httpx.post(f"{worker}/v1/completions", json=told).raise_for_status()
    wrong = httpx.get(f"{url}/made-up/path")
    assert wrong.status_code == 404
    heard = f'warmroute_kv_events_total{{pool="default",worker="{name}"}}'
    until(lambda: series(url)[heard] >= 1)
    found = series(url)
    families = {name.partition("{")[0] for name in found}
    optional = {"warmroute_kv_refused_total", "warmroute_kv_stream_events_total"}
    optional |= {"warmroute_kv_blocks_unused_total"}  # they appear only with the first such event
    lacking = {one for one in documented() if one not in families | optional}
    of_answers = {"warmroute_kv_error_tokens", "warmroute_kv_wrong", "warmroute_kv_questions_total"}
    assert lacking == of_answers  # only routers see answers
    others = (*of_answers, "warmroute_kv_blocks_missed", "warmroute_kv_load_tokens")
    assert not any(name.startswith(others) for name in found)
    assert not any("made-up" in name for name in found)
    other = 'warmroute_controller_requests_total{path="other",status="4xx"}'
    assert found[other] == 1
    assert found['warmroute_kv_streams{pool="default",state="waiting",worker="registered"}'] == 1
    _snapshots_go_on(url, folder, tmp_path / "controller.log")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def _snapshots_go_on(url: str, folder: Path, log: Path) -> None:
    """Check that snapshots are written repeatedly; without the folder, failures are logged and
    nothing else happens."""
    written = 'warmroute_controller_snapshots_total{outcome="written"}'
    failed = 'warmroute_controller_snapshots_total{outcome="failed"}'
    before = series(url)[written]
    until(lambda: series(url)[written] > before)
    assert series(url)["warmroute_controller_snapshot_bytes"] == (folder / "index").stat().st_size
    away = folder.rename(folder.with_name("away"))
    until(lambda: series(url)[failed] >= 2)
    said = log.read_text()
    assert f"snapshot {folder / 'index'}: not written: No such file or directory" in said
    assert "Traceback" not in said
    away.rename(folder)
    before = series(url)[written]
    until(lambda: series(url)[written] > before)
    assert [one.name for one in folder.iterdir() if one.suffix != ".new"] == ["index"]


def test_who_hangs_keeps_no_snapshot_from_being_written(tmp_path: Path, stack: ExitStack) -> None:
    """A client that never sends the rest of its request is cut off once it is told to stop."""
    settings, file = tmp_path / "controller.yaml", tmp_path / "index"
    settings.write_text("strategy: kvaware\nworkers: ['http://127.0.0.1:1']\n")
    args = ("--config", settings, "--listen", "127.0.0.1:0", "--snapshot", file)
    url, process = stack.enter_context(controller(tmp_path, *args))
    where = (urlsplit(url).hostname, urlsplit(url).port)
    hanging = stack.enter_context(socket.create_connection(where, timeout=10))
    head = b"POST /query HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
    hanging.sendall(head)
    assert b"100 Continue" in hanging.recv(100)  # its body is waited for
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert file.stat().st_size > 0
    assert "Traceback" not in (tmp_path / "controller.log").read_text()


def test_series_are_for_who_has_a_key(fleet: MakeFleet, tmp_path: Path, stack: ExitStack) -> None:
    """Metrics need a key, as everything but the liveness check does."""
    (worker,) = fleet(workers=1).urls
    settings = tmp_path / "controller.yaml"
    key, secret = "0123456789abcdef0123", tmp_path / "secret"
    secret.write_text(key)
    settings.write_text(
        f"strategy: kvaware\nworkers: [{worker}]\n"
        f"auth: {{keys: [{{name: ops, key: 'file:{secret}'}}]}}\n"
    )
    args = ("--config", settings, "--listen", "127.0.0.1:0")
    url, _ = stack.enter_context(controller(tmp_path, *args))
    assert httpx.get(f"{url}/metrics").status_code == 401
    assert series(url, authorization=f"Bearer {key}")["process_resident_memory_bytes"] > 0
    assert httpx.get(f"{url}/health/live").json() == {"status": "live"}


def test_a_full_disk_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The previous snapshot stays, no other file is left, and the next one can be written."""
    memory, file = KvMemory(1 << 24), tmp_path / "index"
    push(memory.join("a"), stored(0, 4))
    kept = Snapshots(memory, file)
    kept.restore()
    assert asyncio.run(kept.write())
    good = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("router.kv.snapshots.fsync", full)
        assert not asyncio.run(kept.write())
    assert "not written: No space left on device" in caplog.text
    assert (kept.written, kept.failed) == (1, 1)
    assert (list(tmp_path.iterdir()), file.read_bytes()) == ([file], good)
    with monkeypatch.context() as patched:
        patched.setattr("router.kv.snapshots.encode_snapshot", lambda _: 1 // 0)
        assert not asyncio.run(kept.write())
    assert "not written: unexpected ZeroDivisionError" in caplog.text
    assert asyncio.run(kept.write())
    again = KvMemory(1 << 24)
    Snapshots(again, file).restore()
    assert len(again.index) == 4


def test_engines_talk_on_while_a_snapshot_is_written(tmp_path: Path) -> None:
    """A thread writes what was held when it began; two writes at once take turns."""
    memory, file = KvMemory(1 << 26), tmp_path / "index"
    source = memory.join("a")
    push(source, stored(0, 4))
    kept = Snapshots(memory, file)

    async def go() -> list[bool]:
        first = asyncio.create_task(kept.write())
        second = asyncio.create_task(kept.write())
        await asyncio.sleep(0)
        push(source, stored(0, 8))
        await first
        before = KvMemory(1 << 24)
        Snapshots(before, file).restore()
        assert len(before.index) == 4
        return [await first, await second]

    assert asyncio.run(go()) == [True, True]
    after = KvMemory(1 << 24)
    Snapshots(after, file).restore()
    assert (kept.written, len(after.index)) == (2, 8)


@pytest.mark.parametrize("damaged", [b"", b"nonsense", None], ids=["empty", "other", "cut off"])
def test_a_damaged_snapshot_keeps_nobody_from_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: bytes | None
) -> None:
    """It is renamed, so that it can be examined, and the log says so; the index starts empty and is
    saved again later."""
    file = tmp_path / "index"
    memory = KvMemory(1 << 24)
    push(memory.join("a"), stored(0, 4))
    assert asyncio.run(Snapshots(memory, file).write())
    file.write_bytes(file.read_bytes()[:-9] if damaged is None else damaged)
    left = file.read_bytes()
    again = KvMemory(1 << 24)
    kept = Snapshots(again, file)
    kept.restore()
    assert len(again.index) == 0
    assert "not a snapshot" in caplog.text
    assert file.with_name("index.bad").read_bytes() == left
    push(again.join("a"), stored(0, 4))
    assert asyncio.run(kept.write())
    whole = KvMemory(1 << 24)
    Snapshots(whole, file).restore()
    assert len(whole.index) == 4


def test_engines_that_nobody_comes_for_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines of a snapshot that never register are forgotten, except those in the settings, which
    may only be down."""
    memory = KvMemory(1 << 24)
    for name in ("gone", "away", "back"):
        push(memory.join(name), stored(0, 4))
    assert asyncio.run(Snapshots(memory, tmp_path / "index").write())
    again = KvMemory(1 << 24)
    Snapshots(again, tmp_path / "index").restore()
    workers = [{"url": "http://127.0.0.1:1", "name": "away"}]
    known = build(Settings.model_validate({"workers": workers}), Contexts())
    monkeypatch.setattr(controller_command, "CLAIM_S", 0.01)

    async def go() -> None:
        letting = asyncio.create_task(controller_command._let_go(again, known))
        again.join("back")
        assert again.absent() == {"gone", "away"}
        async with asyncio.timeout(20):
            while again.absent() != {"away"}:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)
        letting.cancel()

    asyncio.run(go())
    assert {place.worker for place in again.index.caches() if place.blocks} == {"away", "back"}
    assert again.where().keys() == {"away", "back"}
