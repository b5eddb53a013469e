"""A server certificate that is not valid: it is used, for lack of a better one, and reported."""

import json
import os
import shutil
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.authority import Authority
from tests.cli.test_serve_processes import children
from tests.commands import Serve, invoke
from tests.support import MakeStub, until

PAST, SOON = (datetime.now(UTC).replace(microsecond=0) + timedelta(days=n) for n in (-2, 2))
EXPIRED = f"expired on {PAST:%Y-%m-%d %H:%M:%S} UTC: clients will refuse it"
EXPIRES = "warmroute_tls_certificate_expires_timestamp_seconds"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    """The CA that issues the certificates."""
    return Authority(tmp_path / "ours")


def told(port: int) -> float:
    """Return when the certificate expires, as metrics report it."""
    url = f"https://127.0.0.1:{port}/metrics"
    text = httpx.get(url, verify=False).raise_for_status().text  # noqa: S501 - it has expired
    (line,) = [line for line in text.splitlines() if line.startswith(EXPIRES + " ")]
    return float(line.split()[1])


def test_one_that_has_expired(
    ours: Authority, stub: MakeStub, serve: Serve, tmp_path: Path
) -> None:
    """It is logged once at the start and again after a reload; a metric says when it expires."""
    door = {end: str(tmp_path / f"door.{end}") for end in ("certificate", "key")}

    def put(issued: dict[str, str]) -> None:
        for end, path in issued.items():
            shutil.copy(path, door[end])

    put(ours.issue(begins=PAST - timedelta(days=1), ends=PAST))
    running = serve(stub().url, args=("--processes", 2), tls=door)
    port = running.port()
    assert running.err.read_text().count(f'door.certificate" {EXPIRED}') == 1
    assert told(port) == PAST.timestamp()
    put(ours.issue(ends=SOON))
    running.process.send_signal(signal.SIGHUP)
    until(lambda: told(port) == SOON.timestamp(), 20)
    put(ours.issue(begins=PAST - timedelta(days=1), ends=PAST))
    running.process.send_signal(signal.SIGHUP)
    until(lambda: running.err.read_text().count(EXPIRED) >= 2, 20)
    assert told(port) == PAST.timestamp()
    assert running.cut(signal.SIGTERM) == 0


def test_a_process_that_cannot_use_what_is_there_now(
    ours: Authority, stub: MakeStub, serve: Serve, tmp_path: Path
) -> None:
    """One that dies meanwhile says why it cannot start, in the log's form; it does once it can."""
    door = {end: str(tmp_path / f"door.{end}") for end in ("certificate", "key")}
    for end, path in ours.issue().items():
        shutil.copy(path, door[end])
    form = {"level": "info", "format": "json"}
    running = serve(stub().url, args=("--processes", 2), tls=door, logs=form)
    running.url()
    new = ours.issue()
    shutil.copy(new["certificate"], door["certificate"])
    os.kill(min(children(running)), signal.SIGKILL)
    until(lambda: "(exit code 1)" in running.err.read_text(), 20)
    shutil.copy(new["key"], door["key"])
    until(lambda: running.err.read_text().count("is ready: m") == 3, 20)
    assert running.cut(signal.SIGTERM) == 0
    lines = running.err.read_text().splitlines()
    said = [json.loads(line) for line in lines]
    why = "tls: the key does not belong to the certificate"
    assert {one["process"] for one in said if one["message"] == why} <= {1, 2}
    assert why in [one["message"] for one in said]


def test_checking_one(ours: Authority, tmp_path: Path) -> None:
    """A certificate that is not valid yet, or has expired, is reported on stderr."""
    file = tmp_path / "c.yaml"
    for begins, ends, word in (
        (SOON, SOON + timedelta(days=1), "is not valid before"),
        (PAST - timedelta(days=1), PAST, EXPIRED),
        (PAST, SOON, ""),
    ):
        workers = ["http://127.0.0.1:9"]
        file.write_text(
            json.dumps({"workers": workers, "tls": ours.issue(begins=begins, ends=ends)})
        )
        done = invoke("check", file)
        assert done.exit_code == 0
        assert word in done.stderr
        assert bool(done.stderr) is bool(word)
        assert "tls.certificate" in done.stdout
