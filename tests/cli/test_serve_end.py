"""How `serve` ends: gracefully at the first signal, at once at the second."""

import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.commands import Running, Serve, refuses, run, started
from tests.support import Action, MakeStub, post, read_all, send, until

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"9\r\ndata: 1\n\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
#: Longer than any test.
LONG = {"delay": "1h", "drain": "1h"}


def ready(running: Running) -> int:
    """Return the status of its readiness."""
    return httpx.get(running.url() + "/health/ready").status_code


def begun(port: int) -> socket.socket:
    """Return a client whose stream has its first event."""
    client = post(port, CHAT, BODY)
    data = b""
    while CHUNK not in data:
        data += client.recv(65536)
    return client


def test_not_ready_but_serving(stub: MakeStub, serve: Serve) -> None:
    """During the delay readiness fails, but requests are served and their connections closed."""
    running = serve(stub().url, shutdown=LONG)
    url = running.url()
    with httpx.Client(base_url=url) as kept:
        assert "connection" not in kept.get("/health/ready").headers
        running.process.send_signal(signal.SIGINT)
        until(lambda: ready(running) == 503)
        assert httpx.get(f"{url}/health/ready").json()["status"] == "stopping"
        assert httpx.get(f"{url}/health/live").status_code == 200
        for client in (kept, httpx):
            answer = client.post(url + CHAT, content=BODY)
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"
    assert running.end(signal.SIGINT) == 0
    assert refuses(running.port())


def test_what_is_under_way_ends_well(stub: MakeStub, serve: Serve) -> None:
    """New connections are refused, idle ones closed, and every answer is completed."""
    gate = threading.Event()
    worker = stub([SSE + CHUNK, gate.is_set, CHUNK + b"0\r\n\r\n"])
    slow = stub([gate.is_set, JSON], model="slow")
    running = serve(worker.url, slow.url, shutdown={"delay": "0ms", "drain": "1h"})
    port = running.port()
    with (
        send(port, b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n") as idle,
        begun(port) as streaming,
        post(port, CHAT, BODY.replace(b'"m"', b'"slow"')) as waiting,
    ):
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        until(lambda: slow.requests)
        running.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(port))
        assert read_all(idle) == b""
        gate.set()
        assert read_all(streaming).endswith(CHUNK + b"0\r\n\r\n")
        answer = read_all(waiting)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close\r\n" in answer
        assert running.code() == 0
    assert "cut" not in running.err.read_text()


@pytest.mark.parametrize("told", ["once", "twice"])
def test_what_takes_too_long(stub: MakeStub, serve: Serve, told: str) -> None:
    """After the drain, or at a second signal, each answer is cut with an error of its format."""
    worker = stub([SSE + CHUNK, "stall"])
    slow = stub(["stall"], model="slow")
    drain = "100ms" if told == "once" else "1h"
    running = serve(worker.url, slow.url, shutdown={"delay": "0ms", "drain": drain})
    port = running.port()
    with (
        begun(port) as streaming,
        post(port, CHAT, BODY.replace(b'"m"', b'"slow"')) as waiting,
        send(port, b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-le" % CHAT.encode()) as half,
    ):
        until(lambda: slow.requests)
        if told == "once":
            running.process.send_signal(signal.SIGTERM)
        else:
            running.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(port))
            running.process.send_signal(signal.SIGTERM)
        event, end = read_all(streaming).split(b"\r\n0\r\n\r\n")
        assert end == b""
        error = json.loads(event.partition(b"data: ")[2])["error"]
        assert (error["type"], error["code"]) == ("server_error", "router_stopped")
        for client in (waiting, half):
            head, _, body = read_all(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nconnection: close" in head
            assert json.loads(body)["error"]["code"] == "router_stopped"
        assert running.code() == 0
    until(lambda: worker.closed_by_peer == 1 and slow.closed_by_peer == 1)


@contextmanager
def balancer(url: str) -> Iterator[list[int]]:
    """Send requests while readiness is 200, as behind a balancer; yield the list of statuses."""
    statuses: list[int] = []
    may = threading.Event()
    may.set()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=20) as client:
            while client.get("/health/ready").status_code == 200:
                may.wait(0.01)
        may.clear()

    def call(stream: bool) -> None:
        body = BODY if stream else BODY.replace(b"true", b"false")
        with httpx.Client(base_url=url, timeout=20) as client:
            while may.is_set():
                statuses.append(client.post(CHAT, content=body).status_code)

    threads = [threading.Thread(target=ask)]
    threads += [threading.Thread(target=call, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_balancer_that_obeys_loses_nothing(stub: MakeStub, serve: Serve, processes: int) -> None:
    """Under full load until the process ends, no request fails."""
    script: list[Action] = [SSE + CHUNK, 0.02, CHUNK + b"0\r\n\r\n"]
    urls = (stub(script).url, stub(script).url)
    args = ("--processes", processes)
    running = serve(*urls, args=args, shutdown={"delay": "2s", "drain": "1h"})
    with balancer(running.url()) as statuses:
        until(lambda: len(statuses) > 50, 30)
        assert running.end(signal.SIGTERM) == 0
    assert set(statuses) == {200}


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


@pytest.mark.parametrize("processes", [1, 2])
def test_told_to_stop_before_it_has_started(
    serve: Serve, silent: socket.socket, processes: int
) -> None:
    """Probes in progress are abandoned, and no delay is waited for."""
    url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    args = ("--processes", processes)
    running = serve(url, args=args, shutdown=LONG, health={"timeout": "1h"})
    probe, _ = silent.accept()
    with probe:
        assert probe.recv(65536).startswith(b"GET /health ")
        assert running.end(signal.SIGTERM) == 0


def test_a_taken_port_for_operators(tmp_path: Path, silent: socket.socket) -> None:
    """The exit code is 1, with a one-line message."""
    path = tmp_path / "warmroute.yaml"
    taken = f"127.0.0.1:{silent.getsockname()[1]}"
    given = {"workers": ["http://127.0.0.1:1"], "listen": "127.0.0.1:0"}
    path.write_text(json.dumps({**given, "admin": {"listen": taken}}))
    for processes in (1, 2):
        done = run("serve", "--config", path, "--processes", processes)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert taken in done.stderr
        assert "in use" in done.stderr


def test_told_to_stop_while_it_is_being_loaded(tmp_path: Path) -> None:
    """It ends quietly; as PID 1 of a container nothing else would end it."""
    with started(tmp_path, "serve", "--config", "none.yaml") as running:
        handled = f"/proc/{running.process.pid}/status"

        def listens() -> bool:
            caught = re.search(r"^SigCgt:\s*(\w+)$", Path(handled).read_text(), re.MULTILINE)
            return bool(caught and int(caught[1], 16) & 1 << signal.SIGTERM - 1)

        until(listens, 20)
        assert running.end(signal.SIGTERM) in (143, 2)
        assert running.out.read_text() == ""
