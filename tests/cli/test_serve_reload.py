"""`serve` while its settings file changes, as operators and Kubernetes change it."""

import json
import os
import shutil
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.authority import Authority
from tests.commands import Running, Serve, run, started
from tests.pems import write_pems
from tests.reload.changing import CHAT, STREAM, TEXT, answered_by, chat, load
from tests.support import MakeStub, Stub, until


def write(running: Running, *urls: str, **settings: Any) -> None:
    """Replace the file, as an editor does."""
    file = running.file()
    if urls:
        settings["workers"] = urls
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"listen": "127.0.0.1:0", **settings}))
    new.replace(file)


def said(running: Running, text: str, times: int = 1) -> None:
    """Wait until the log has this text so many times."""
    until(lambda: running.err.read_text().count(text) >= times, 20)


def test_a_changed_file(stub: MakeStub, serve: Serve) -> None:
    """It takes effect soon, without a signal; the log says what changed."""
    one, two = stub(), stub()
    running = serve(one.url)
    url = running.url()
    assert answered_by(httpx.post(url + CHAT, json=chat()))
    write(running, two.url, shutdown={"delay": "0ms"})
    said(running, f"worker {two.url[7:]} added to pool default")
    said(running, f"worker {one.url[7:]} removed from pool default")
    said(running, f"worker {one.url[7:]} has left: its last request has ended")
    assert answered_by(httpx.post(url + CHAT, json=chat())) == two.url[7:]
    assert "shutdown.delay: 5s → 0ms" in running.err.read_text()
    assert running.end(signal.SIGTERM) == 0


def test_what_has_no_effect(stub: MakeStub, serve: Serve) -> None:
    """The start warns of it, as `check` does."""
    running = serve(stub().url, args=("--processes", 2), controller="http://127.0.0.1:1")
    running.url()
    words = "controller: no pool has a strategy that asks it"
    assert running.err.read_text().count(words) == 1
    assert run("check", running.file()).stderr.startswith(f"{running.file()}: {words}")
    assert running.cut(signal.SIGTERM) == 0


def test_a_signal_before_it_serves(tmp_path: Path, dead_url: str) -> None:
    """A SIGHUP that comes during the start, as soon as the file exists, ends nothing."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started(tmp_path, "serve", "--config", pipe, "--processes", 2) as running:
        with pipe.open("w") as settings:  # blocks until it is read
            running.process.send_signal(signal.SIGHUP)
            settings.write(json.dumps({"listen": "127.0.0.1:0", "workers": [dead_url]}))
        assert httpx.get(running.url() + "/health/live", timeout=20).status_code == 200
        assert running.cut(signal.SIGTERM) == 0


def test_a_bad_file(stub: MakeStub, serve: Serve) -> None:
    """Everything stays as it is, and the log says why, once; a good file after it is applied."""
    worker = stub()
    running = serve(worker.url)
    url = running.url()
    assert answered_by(httpx.post(url + CHAT, json=chat(TEXT)))
    write(running, worker.url, limits={"n": "none"})
    said(running, "the settings in use are kept")
    again = httpx.post(url + CHAT, json=chat(TEXT))
    assert answered_by(again)
    assert again.headers["x-warmroute-decision"].startswith("prefix;")
    write(running, worker.url, limits={"n": 1})
    said(running, "settings: limits.n: 128 → 1")
    assert httpx.post(url + CHAT, json={**chat(), "n": 2}).status_code == 400
    again = httpx.post(url + CHAT, json=chat(TEXT))
    assert again.headers["x-warmroute-decision"].startswith("prefix;")
    log = running.err.read_text()
    assert log.count("ERROR   " + str(running.file()) + ":1: limits.n: ") == 1
    assert log.count("the settings in use are kept") == 1
    assert running.cut(signal.SIGTERM) == 0


def test_nothing_fails_while_the_file_changes(stub: MakeStub, serve: Serve) -> None:
    """No request fails under load while workers and strategies come and go."""
    urls = [stub(STREAM).url for _ in range(3)]
    running = serve(*urls[:2])
    with load(running.url()) as outcomes:
        for turn, chosen in enumerate((urls, urls[1:], urls[2:], urls[:1], urls), start=1):
            strategy = ("leastload", "prefixaware")[turn % 2]
            write(running, *chosen, strategy=strategy, logs={"requests": turn % 2 == 0})
            running.process.send_signal(signal.SIGHUP)
            said(running, "pool default: strategy: ", turn - 1)
            enough = len(outcomes) + 8
            until(lambda enough=enough: len(outcomes) > enough)  # type: ignore[misc]
    assert set(outcomes) == {200}
    assert running.cut(signal.SIGTERM) == 0


def shown(port: int, ca: Path) -> str:
    """Return the name in the certificate that new connections are shown."""
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    url = f"https://127.0.0.1:{port}/health/live"
    with httpx.Client(verify=context) as client, client.stream("GET", url) as answer:
        stream = answer.extensions["network_stream"]
        name: str = stream.get_extra_info("ssl_object").getpeercert()["subject"][0][0][1]
        return name


def test_a_renewed_certificate(tmp_path: Path, stub: MakeStub, serve: Serve) -> None:
    """New connections get the new certificate, although the settings are unchanged."""
    write_pems(tmp_path)
    for name in ("pem", "key"):
        shutil.copy(tmp_path / f"one.{name}", tmp_path / f"door.{name}")
    running = serve(stub().url, tls={"certificate": "door.pem", "key": "door.key"})
    port, both = running.port(), tmp_path / "both.pem"
    assert shown(port, both) == "one"
    for name in ("pem", "key"):
        shutil.copy(tmp_path / f"two.{name}", tmp_path / f"door.{name}")
    until(lambda: shown(port, both) == "two", 20)
    assert running.cut(signal.SIGTERM) == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_root_that_is_taken_out(
    tmp_path: Path, stub: MakeStub, serve: Serve, version: ssl.TLSVersion
) -> None:
    """Clients whose CA was removed are refused, even if they resume an earlier TLS session."""
    ours, before = Authority(tmp_path / "ours"), Authority(tmp_path / "before")
    roots = tmp_path / "clients.pem"
    shutil.copy(before.roots, roots)
    running = serve(stub().url, tls={**ours.issue(), "client_ca": str(roots)})
    port, context = running.port(), ours.client(before.issue("client.example"))
    context.maximum_version = version
    session = visited(port, context, None)
    assert visited(port, context, session)
    shutil.copy(ours.roots, roots)
    until(lambda: not visited(port, context, None), 20)
    assert not visited(port, context, session)
    assert visited(port, ours.client(ours.issue("client.example")), None)
    assert running.cut(signal.SIGTERM) == 0


def visited(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLSession | None:
    """Send a request, in a TLS session if given; return the session, or None if refused."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as client,
        ):
            client.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            return client.session if client.recv(65536).startswith(b"HTTP/1.1 200 ") else None
    except (ssl.SSLError, ConnectionError):
        return None


def test_signals_while_it_ends(serve: Serve, stub: MakeStub) -> None:
    """After the order to stop, neither SIGHUP nor a changed file has any effect."""
    worker: Stub = stub()
    running = serve(worker.url, shutdown={"delay": "1h"})
    url = running.url()
    until(lambda: httpx.get(url + "/health/ready").status_code == 200)
    running.process.send_signal(signal.SIGTERM)
    said(running, "stopping: ")
    running.process.send_signal(signal.SIGHUP)
    write(running, worker.url, limits={"n": 1})
    assert httpx.get(url + "/health/ready").status_code == 503
    assert running.end(signal.SIGTERM) == 0
    assert "settings: " not in running.err.read_text()
