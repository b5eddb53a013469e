"""The controller as a service: its metrics, and its snapshots while it runs."""

import asyncio
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from controller.kv_memory import KvMemory
from router.kv.snapshots import CannotRestore, Snapshots
from tests.controller.announcements import push, stored
from tests.kvaware.conftest import MakeFleet
from tests.kvaware.test_controller import controller
from tests.support import until


def series(url: str, **headers: str) -> dict[str, float]:
    """Return the metrics, by name and labels."""
    lines = httpx.get(f"{url}/metrics", headers=headers).raise_for_status().text.splitlines()
    told = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in told}


def test_what_prometheus_is_told(fleet: MakeFleet, tmp_path: Path, stack: ExitStack) -> None:
    """Names that callers make up never become labels; what only routers see has no series."""
    (worker,) = fleet(workers=1).urls
    settings, file = tmp_path / "controller.yaml", tmp_path / "index"
    settings.write_text(f"strategy: kvaware\nworkers: [{worker}]\nhealth: {{interval: 50ms}}\n")
    args = ("--config", settings, "--listen", "127.0.0.1:0", "--every", "50ms", "--snapshot", file)
    url, process = stack.enter_context(controller(tmp_path, *args))
    labels = f'pool="default",worker="{worker.removeprefix("http://")}"'
    until(lambda: series(url)[f"warmroute_kv_trusted{{{labels}}}"] == 1)
    httpx.post(f"{url}/register", json={"instance_id": "made-up"}).raise_for_status()
    told = {"model": "toy", "prompt": "something to be told " * 20, "max_tokens": 1}
    httpx.post(f"{worker}/v1/completions", json=told).raise_for_status()
    assert httpx.get(f"{url}/made-up/path").status_code == 404
    until(lambda: series(url)[f"warmroute_kv_events_total{{{labels}}}"] >= 1)
    found = series(url)
    assert not any("made-up" in name for name in found)
    assert not any(name.startswith(("warmroute_kv_error", "warmroute_kv_wrong")) for name in found)
    assert found['warmroute_controller_requests_total{path="other",status="4xx"}'] == 1
    assert found['warmroute_kv_streams{pool="default",state="waiting",worker="registered"}'] == 1
    written = 'warmroute_controller_snapshots_total{outcome="written"}'
    before = found[written]
    until(lambda: series(url)[written] > before)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert file.stat().st_size > 0


@pytest.mark.long
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


@pytest.mark.long
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


def test_a_snapshot_that_cannot_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start it is refused; later the previous one stays, and the next can be written."""
    folder = tmp_path / "kept"
    folder.mkdir()
    memory = KvMemory(1 << 24)
    push(memory.join("a"), stored(0, 4))
    for odd in (tmp_path / "none" / "index", folder):
        with pytest.raises(CannotRestore, match=str(odd)):
            Snapshots(memory, odd).restore()
    kept = Snapshots(memory, folder / "index")
    kept.restore()
    assert asyncio.run(kept.write())
    good = (folder / "index").read_bytes()
    away = folder.rename(tmp_path / "away")
    assert not asyncio.run(kept.write())
    assert "not written: No such file or directory" in caplog.text
    away.rename(folder)
    assert [file.name for file in folder.iterdir()] == ["index"]
    assert (folder / "index").read_bytes() == good
    assert asyncio.run(kept.write())
    assert (kept.written, kept.failed, kept.bytes) == (2, 1, len(good))
    values = {sample.value for metric in kept.metrics() for sample in metric.samples}
    assert {2.0, 1.0, float(len(good))} <= values


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
