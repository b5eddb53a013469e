"""`serve --processes`: several processes on one port, which look like one from outside."""

import json
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.cli.serve import log_unshared_state
from router.settings.model import Settings
from strategies import registry
from strategies.api import Capabilities
from strategies.policies.least_load import LeastLoad
from strategies.policies.prefix_aware import PrefixAware
from tests.commands import ENV, Running, Serve, refuses, run
from tests.reload.changing import CHAT, CHUNK, END, SSE, STREAM, answered_by, chat, load
from tests.support import MakeStub, post, read_all, until

THREE = ("--processes", 3)
BODY = b'{"model":"m","messages":[],"stream":true}'


def children(running: Running) -> set[int]:
    """Return the pids of its running child processes."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == running.process.pid and state != "Z":
                found.add(int(folder.name))
    return found


def ask(url: str, times: int) -> None:
    """Send requests, each on a new connection, which any process may get."""
    for _ in range(times):
        assert answered_by(httpx.post(url + CHAT, json=chat()))


def total(url: str, name: str) -> float:
    """Return the sum of all series of that name."""
    families = text_string_to_metric_families(httpx.get(url + "/metrics").text)
    return sum(s.value for family in families for s in family.samples if s.name == name)


def spread(running: Running) -> set[str]:
    """Return the processes that have logged a request."""
    return set(re.findall(r"\[(\d)\] id=", running.err.read_text()))


def test_connections_are_spread_and_counts_add_up(stub: MakeStub, serve: Serve) -> None:
    """Whichever process is scraped reports every request, and every worker once."""
    silent = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    workers = [stub([silent]), stub([silent])]  # without usage, the pace is not learned
    running = serve(*(w.url for w in workers), args=THREE, logs={"requests": True})
    url = running.url()
    ask(url, 60)
    until(lambda: spread(running) == {"1", "2", "3"})
    for _ in range(10):
        assert total(url, "warmroute_requests_total") == 60
        assert total(url, "warmroute_request_seconds_count") == 60
        assert total(url, "warmroute_worker_up") == 2
        assert total(url, "warmroute_pace_factor") == 2
    for _ in range(10):
        assert httpx.post(url + CHAT, content=b"{").status_code == 400
    assert total(url, "warmroute_refused_requests_total") == 10
    text = httpx.get(url + "/metrics").text
    assert text.count("# TYPE warmroute_requests_total counter") == 1
    assert text.count("# TYPE warmroute_request_seconds histogram") == 1
    assert running.cut(signal.SIGTERM) == 0


def by_process(running: Running) -> Counter[str]:
    """Return how many requests each process has logged."""
    return Counter(re.findall(r"\[(\d)\] id=", running.err.read_text()))


def test_what_is_under_way_adds_up(stub: MakeStub, serve: Serve, stack: ExitStack) -> None:
    """Requests in flight are summed in `/metrics` and in `/workers`."""
    running = serve(stub([SSE + CHUNK, "stall"]).url, args=THREE)
    url = running.url()
    for _ in range(12):
        stack.enter_context(post(running.port(), CHAT, BODY))
    until(lambda: total(url, "warmroute_in_flight") == 12)
    for _ in range(5):
        (worker,) = httpx.get(url + "/workers").json()
        assert (worker["state"], worker["in_flight"]) == ("ready", 12)
    assert running.cut(signal.SIGINT) == 0


def test_they_end_in_order(stub: MakeStub, serve: Serve) -> None:
    """All report not ready, streams are completed, the port is freed, and no process stays."""
    gate = threading.Event()
    running = serve(
        stub([SSE + CHUNK, gate.is_set, CHUNK + END]).url,
        args=THREE,
        shutdown={"delay": "2s", "drain": "1h"},
    )
    url, port = running.url(), running.port()
    clients = [post(port, CHAT, BODY) for _ in range(9)]
    for client in clients:
        assert client.recv(65536)
    pids = children(running)
    assert len(pids) == 3
    running.process.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(url + "/health/ready").status_code == 503)
    until(lambda: refuses(port))
    gate.set()
    for client in clients:
        with client:
            assert read_all(client).endswith(CHUNK + END)
    assert running.code() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.long
def test_a_signal_to_all_of_them_is_one(stub: MakeStub, serve: Serve) -> None:
    """systemd signals every process: that counts as one signal, not as the second, which cuts."""
    gate = threading.Event()
    worker = stub([SSE + CHUNK, gate.is_set, CHUNK + END])
    running = serve(worker.url, args=THREE, shutdown={"delay": "0s"})
    port = running.port()
    with post(port, CHAT, BODY) as client:
        assert client.recv(65536)
        for pid in (*children(running), running.process.pid):
            os.kill(pid, signal.SIGTERM)
        until(lambda: refuses(port))
        time.sleep(0.5)  # each has got all that were sent to it
        gate.set()
        assert read_all(client).endswith(CHUNK + END)
        assert running.code() == 0


def test_one_that_dies_is_replaced(stub: MakeStub, serve: Serve) -> None:
    """It is started again, and its counters are kept."""
    running = serve(stub().url, args=THREE, logs={"requests": True})
    url = running.url()
    ask(url, 30)
    until(lambda: total(url, "warmroute_requests_total") == 30)
    before = children(running)
    for number, kind in enumerate((signal.SIGKILL, 40), start=1):  # most signals have no name
        victim = min(children(running))
        os.kill(victim, kind)
        until(lambda n=number: running.err.read_text().count("ended unexpectedly") == n, 20)  # type: ignore[misc]
        until(lambda v=victim: len(children(running)) == 3 and v not in children(running), 20)  # type: ignore[misc]
    assert len(children(running) & before) == 1
    until(lambda: running.err.read_text().count("is ready") == 5, 20)
    for name in ("SIGKILL", "40"):
        assert f"(signal {name})" in running.err.read_text()
    assert total(url, "warmroute_processes_lost_total") == 2
    assert total(url, "warmroute_processes") == 3
    assert total(url, "warmroute_build_info") == 1
    ask(url, 30)
    until(lambda: total(url, "warmroute_requests_total") == 60)
    assert running.cut(signal.SIGTERM) == 0


#: Ends all processes but the first as they are started, until there is a file named `enough`.
DYING = """
import os, signal, sys
from pathlib import Path

folder = Path(__file__).parent
if "router.processes.child" in " ".join(sys.orig_argv):
    try:
        (folder / "lived").open("x").close()
    except FileExistsError:
        if not (folder / "enough").exists():
            {end}
"""


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that has every process but the first end at its start, or the first too.

    Returns the file that ends this once it is there.
    """
    folder = tmp_path / "dying"
    folder.mkdir()

    def make(end: str, *, first: bool = False) -> Path:
        (folder / "sitecustomize.py").write_text(DYING.format(end=end))
        if first:
            (folder / "lived").touch()
        monkeypatch.setitem(ENV, "PYTHONPATH", str(folder))
        return folder / "enough"

    return make


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os._exit(0)", "exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
    ],
)
def test_one_that_dies_before_it_serves_ends_no_other(
    stub: MakeStub, serve: Serve, dying: Callable[..., Path], end: str, how: str
) -> None:
    """The others serve, the log names it and how it ended, and it is tried until it serves."""
    enough = dying(end)
    running = serve(stub().url, args=THREE, logs={"requests": True})
    ask(running.url(), 3)
    until(lambda: running.err.read_text().count(f"before it served ({how})") >= 4, 20)
    said = re.findall(r"\(" + how + r"\): \[(\d)\], pid \d+", running.err.read_text())
    assert len(set(said)) == 2
    assert total(running.url(), "warmroute_processes") == 1
    assert total(running.url(), "warmroute_processes_lost_total") >= 4
    enough.touch()
    until(lambda: total(running.url(), "warmroute_processes") == 3, 20)
    ask(running.url(), 3)
    assert running.cut(signal.SIGTERM) == 0


def test_none_of_them_can_start(stub: MakeStub, serve: Serve, dying: Callable[..., Path]) -> None:
    """The router ends, and the log names each of them."""
    dying("os._exit(3)", first=True)
    running = serve(stub().url, args=THREE)
    assert running.code() == 1
    log = running.err.read_text()
    assert set(re.findall(r"before it served \(exit code 3\): \[(\d)\]", log)) == {"1", "2", "3"}
    assert "none of the 3 processes could begin to serve" in log
    assert "listens on" not in log


@pytest.mark.long
def test_changes_reach_one_that_dies_meanwhile(
    stub: MakeStub, serve: Serve, dying: Callable[..., Path]
) -> None:
    """Settings are changed by the others, and it begins with those when it serves at last."""
    old, new = stub(STREAM), stub(STREAM)
    enough = dying("os._exit(3)")
    running = serve(old.url, args=THREE)
    file = (running.url(), running.file())[1]
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "workers": [new.url]}))
    running.process.send_signal(signal.SIGHUP)
    until(lambda: "removed from pool" in running.err.read_text(), 20)
    enough.touch()
    until(lambda: total(running.url(), "warmroute_processes") == 3, 20)
    ask(running.url(), 12)
    assert not old.requests
    assert running.cut(signal.SIGTERM) == 0


@pytest.mark.long
def test_they_do_not_outlive_who_minds_them(stub: MakeStub, serve: Serve) -> None:
    """If their parent process is killed, they shut down."""
    running = serve(stub().url, args=THREE, shutdown={"delay": "0s"})
    port = running.port()
    pids = children(running)
    running.process.kill()
    until(lambda: refuses(port), 20)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)
    assert "Traceback" not in running.err.read_text()


@pytest.mark.long
def test_all_of_them_change_their_settings(stub: MakeStub, serve: Serve) -> None:
    """The file is read once, its changes are logged once, and no request fails meanwhile."""
    old, new = stub(STREAM), stub(STREAM)
    running = serve(old.url, args=THREE)
    url = running.url()
    file = running.file()
    settings = json.loads(file.read_text())
    with load(url) as outcomes:
        file.write_text(json.dumps({**settings, "workers": [new.url]}))
        running.process.send_signal(signal.SIGHUP)
        until(lambda: "removed from pool" in running.err.read_text(), 20)
        enough = len(outcomes) + 20
        until(lambda: len(outcomes) > enough)
    assert set(outcomes) == {200}
    assert running.err.read_text().count("added to pool") == 1
    asked = len(old.requests)
    ask(url, 30)
    assert len(old.requests) == asked
    file.write_text("nonsense")
    assert total(url, "warmroute_settings_in_effect") == 1
    until(lambda: "the settings in use are kept" in running.err.read_text(), 20)
    until(lambda: total(url, "warmroute_settings_in_effect") == 0)
    os.kill(min(children(running)), signal.SIGKILL)
    until(lambda: len(children(running)) == 3, 20)
    until(lambda: running.err.read_text().count("is ready") == 7, 20)
    ask(url, 10)
    assert running.err.read_text().count("the settings in use are kept") == 1
    assert running.cut(signal.SIGTERM) == 0


@pytest.fixture
def shared() -> Iterator[int]:
    """A port on which another server listens with SO_REUSEPORT."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_no_port_of_others_is_shared(tmp_path: Path, shared: int) -> None:
    """The exit code is 1, with a one-line message, although the kernel would allow it."""
    path = tmp_path / "warmroute.yaml"
    path.write_text("workers: [http://127.0.0.1:1]")
    done = run("serve", "-c", path, "--listen", f"127.0.0.1:{shared}", "--processes", 2)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"127.0.0.1:{shared}: Address already in use" in done.stderr


def clients(running: Running, stack: ExitStack) -> list[httpx.Client]:
    """Return a client with a connection to each of three processes, which it keeps."""
    found: dict[str, httpx.Client] = {}
    while len(found) < 3:
        client = stack.enter_context(httpx.Client(base_url=running.url(), timeout=20))
        before = by_process(running)
        assert answered_by(client.post(CHAT, json=chat()))
        until(lambda: by_process(running) != before)  # noqa: B023
        (process,) = by_process(running) - before
        found[process] = client
    return list(found.values())


@pytest.mark.long
def test_a_conversation_finds_its_worker_from_any_process(
    stub: MakeStub, serve: Serve, stack: ExitStack
) -> None:
    """Each turn comes on a new connection, which any process may get."""
    workers = [stub().url for _ in range(4)]
    running = serve(*workers, args=THREE, logs={"requests": True})
    url = running.url()
    talks = [chat(f"talk {number} " + f"{number} word " * 3_000) for number in range(10)]
    homes: list[set[str]] = [set() for _ in talks]
    each = clients(running, stack)

    def all_know() -> bool:
        """Whether every process knows where each conversation was."""
        return all(
            client.post("/explain", json=talk).json()["workers"][0]["worker"] in home
            for client in each
            for talk, home in zip(talks, homes, strict=True)
        )

    for _ in range(4):
        for talk, home in zip(talks, homes, strict=True):
            reply = httpx.post(url + CHAT, json=talk)
            home.add(answered_by(reply))
            talk["messages"].append({"role": "user", "content": "and then? " * 50})
        until(all_know, 20)
    assert [len(home) for home in homes] == [1] * 10
    assert len(set.union(*homes)) == 4
    assert spread(running) == {"1", "2", "3"}
    assert running.cut(signal.SIGTERM) == 0


class Forgetful(LeastLoad):
    """A strategy of another package: it reads prompts, and does not hear of others' requests."""

    capabilities = Capabilities(reads_prompt=True)


@pytest.mark.parametrize(
    ("strategy", "warned"),
    [(PrefixAware, 0), (LeastLoad, 0), (Forgetful, 1)],
)
def test_what_is_not_shared_is_said(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    strategy: type[Any],
    warned: int,
) -> None:
    """It is logged at the start; prompts are mentioned only if the strategy would miss them."""
    monkeypatch.setattr(registry, "make", lambda *_: strategy(strategy.Options()))
    caplog.set_level("INFO")
    log_unshared_state(Settings.model_validate({"workers": ["http://127.0.0.1:1"]}), 2)
    assert caplog.text.count("2 processes share the port") == 1
    assert caplog.text.count("one time in 2") == warned
