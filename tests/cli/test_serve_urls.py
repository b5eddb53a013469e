"""`serve` and `check` with the workers on the command line, and from there to a file."""

import signal
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.commands import ENV, Running, invoke, refuses, run, started
from tests.reload.changing import CHAT, answered_by, chat
from tests.support import MakeStub, until

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
ANY = ("--listen", "127.0.0.1:0")


def asked(running: Running, times: int) -> set[str]:
    """Send chats, each on a connection of its own; return the workers that answered."""
    url = running.url()
    return {answered_by(httpx.post(url + CHAT, json=chat())) for _ in range(times)}


@pytest.fixture
def workers(stub: MakeStub) -> list[str]:
    """URLs of two workers."""
    return [stub().url, stub().url]


def test_workers_need_no_file(tmp_path: Path, stack: ExitStack, workers: list[str]) -> None:
    """The named strategy chooses, also in several processes; SIGHUP changes nothing."""
    given = (*workers, "--strategy", "roundrobin", *ANY, "--processes", 2)
    running = stack.enter_context(started(tmp_path, "serve", *given))
    assert asked(running, 12) == {url.removeprefix("http://") for url in workers}
    assert "strategy roundrobin, 2 workers" in running.err.read_text()
    running.process.send_signal(signal.SIGHUP)
    until(lambda: "no changes" in running.err.read_text(), 20)
    assert len(asked(running, 4)) > 0
    in_effect = httpx.get(running.url() + "/metrics").text
    assert "\nwarmroute_settings_in_effect 1.0\n" in in_effect
    assert running.cut(signal.SIGTERM) == 0


def test_the_file_that_check_prints_does_the_same(
    tmp_path: Path, stack: ExitStack, workers: list[str]
) -> None:
    """It is a settings file with what was on the command line, and it is told by the log."""
    given = (*workers, "--strategy", "roundrobin", *ANY)
    running = stack.enter_context(started(tmp_path, "serve", *given))
    running.url()
    told = running.err.read_text().partition("warmroute check ")[2].partition("\n")[0]
    assert told.split() == list(given)
    done = run("check", *told.split())
    assert (done.returncode, done.stderr) == (0, "")
    file = tmp_path / "warmroute.yaml"
    file.write_text(done.stdout)
    again = stack.enter_context(started(tmp_path, "serve", "--config", file))
    assert asked(again, 12) == asked(running, 12) == {u.removeprefix("http://") for u in workers}
    assert "strategy roundrobin, 2 workers" in again.err.read_text()


@pytest.mark.parametrize(
    ("given", "listen"), [((), "127.0.0.1:8080"), (("--listen", "[::1]:99"), "[::1]:99")]
)
def test_a_printed_file_is_a_good_one(tmp_path: Path, given: tuple[str, ...], listen: str) -> None:
    """`check` takes what it has printed itself."""
    file = tmp_path / "w.yaml"
    file.write_text(invoke("check", f"{A}/", "https://[::1]:8000", *given).stdout)
    done = invoke("check", file)
    assert (done.exit_code, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
    assert rows["listen"] == listen
    assert rows["strategy"] == "prefixaware"
    assert (rows["workers[0].url"], rows["workers[1].url"]) == (A, "https://[::1]:8000")


def test_the_way_to_an_address_that_others_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused without a file; the file that is offered instead asks for a key."""
    refused = run("serve", A, "--listen", "0.0.0.0:0")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert refused.stderr.startswith("--listen: 0.0.0.0:0 can be reached from other machines")
    command = refused.stderr.partition("`warmroute ")[2].partition(" >")[0]
    done = run(*command.split())
    assert done.returncode == 0
    file = tmp_path / "warmroute.yaml"
    file.write_text(done.stdout)
    lacking = run("serve", "--config", file)
    assert lacking.returncode == 2
    assert "environment variable WARMROUTE_KEY is not set" in lacking.stderr
    monkeypatch.setitem(ENV, "WARMROUTE_KEY", "0123456789abcdef")
    with started(tmp_path, "serve", "--config", file) as running:
        port = running.port()
        assert not refuses(port)
        assert httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=chat()).status_code == 401


MISTAKES = [
    ("serve localhost:8000", 'did you mean "http://localhost:8000"?'),
    ("check localhost:8000", 'did you mean "http://localhost:8000"?'),
    ("serve http://a:8000/v1", 'did you mean "http://a:8000"?'),
    ("serve http://a:1,http://b:2", 'did you mean "http://a:1 http://b:2"?'),
    ("check http://a:1 b:2", 'workers[1]: "b:2" is not a worker\'s URL'),
    ("serve http://a:99999", '"http://a:99999" is not a worker\'s URL'),
    ("serve http://u:secret@a:1", "holds no user name or password"),
    ("serve http://a:1 http://a:1/", "workers[1]: the same address as workers[0]"),
    ("serve http://a:1 --strategy prefix-awre", 'did you mean "prefixaware"?'),
    ("check http://a:1 --strategy zebra", '--strategy: "zebra" is not a strategy: known are '),
    ("serve http://a:1 --listen 8080", '--listen: "8080" is not an address'),
    ("serve http://a:1 --workers http://b:1", "--workers is for an InferenceEndpointConfig"),
    (f"serve {'gpu.local:8000,' * 50}b:1", "workers[0]: "),
    ("serve http://a:1 w.yaml", "w.yaml is a file: give either it alone, or URLs"),
]


@pytest.mark.parametrize(("command", "said"), MISTAKES)
def test_what_is_wrong_with_arguments(command: str, said: str) -> None:
    """The exit code is 2, with one line that says what was meant or allowed, and no secret."""
    done = invoke(*command.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "secret" not in done.stderr


def test_every_mistake_is_listed() -> None:
    """One run is enough to see all of them."""
    done = invoke("serve", "a:1", "--strategy", "zebra", "ftp://b", "--listen", "0.0.0.0:1")
    assert done.exit_code == 2
    for begin in ("--listen: ", "--strategy: ", "workers[0]: ", "workers[1]: "):
        assert sum(line.startswith(begin) for line in done.stderr.splitlines()) == 1


def test_a_file_and_arguments(tmp_path: Path) -> None:
    """What the file says is not said again; a file alone is given by `--config`."""
    file = tmp_path / "w.yaml"
    file.write_text(f"workers: [{A}]\n")
    for given, said in (
        (("serve",), "--config FILE"),
        (("serve", file), f"write --config {file}"),
        (("serve", "--config", file, B), f"either --config {file} or URLs"),
        (("serve", "--config", file, "--strategy", "roundrobin"), "--strategy: "),
        (("check", file, "--strategy", "roundrobin"), "--strategy: "),
        (("check", file, B), f"{file} is a file"),
        (("check", file, "--listen", "0.0.0.0:1"), "--listen: 0.0.0.0:1 can be reached"),
    ):
        done = invoke(*given)
        assert (done.exit_code, done.stdout) == (2, "")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_what_a_file_sets(tmp_path: Path) -> None:
    """`check` shows what is not a default, `--all` everything; both end with how to go on."""
    file = tmp_path / "w.yaml"
    file.write_text(f"workers: [{A}]\nlimits: {{queue: 7}}\n")
    short, whole = invoke("check", file).stdout, invoke("check", file, "--all").stdout
    assert [line.split()[0] for line in short.splitlines()[1:3]] == [
        "workers[0].url",
        "limits.queue",
    ]
    assert "timeouts.connect" not in short
    assert "timeouts.connect" in whole
    for said in (short, whole):
        assert said.splitlines()[-1] == f"warmroute check --live {file} asks the workers"
    assert "timeouts.connect" in invoke("check", A, "--all").stdout


def test_what_the_environment_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no default either."""
    file = tmp_path / "w.yaml"
    file.write_text(f"workers: [{A}]\n")
    monkeypatch.setitem(ENV, "SES_TTL_MIN", "3")
    assert "session.ttl" in invoke("check", file).stdout


def test_workers_are_asked_without_a_file(workers: list[str]) -> None:
    """`check --live` takes URLs as well."""
    done = run("check", "--live", "--no-ask", *workers)
    assert done.returncode == 0
    for url in workers:
        assert f"worker {url.removeprefix('http://')}: ready" in done.stdout


def test_what_simulate_prints_can_be_run(tmp_path: Path, stack: ExitStack) -> None:
    """It ends with the command that routes to its workers."""
    args = ("simulate", "--workers", 2, "--port", 0, "--profile", "toy", "--model", "m")
    simulated = stack.enter_context(started(tmp_path, *args))
    until(lambda: "warmroute serve http" in simulated.err.read_text(), 20)
    words = simulated.err.read_text().partition("warmroute ")[2].split()
    running = stack.enter_context(started(tmp_path, *words, *ANY))
    answer = httpx.post(running.url() + CHAT, json=chat(), timeout=20)
    assert (answer.status_code, answer.json()["model"]) == (200, "m")
    assert f"http://{answer.headers['x-warmroute-worker']}" in words
    assert simulated.end(signal.SIGTERM) == 0


def test_strategies_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that asks gets their names."""
    line = "warmroute serve --strategy round"
    asking = {"_WARMROUTE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}
    for name, value in asking.items():
        monkeypatch.setitem(ENV, name, value)
    assert run().stdout.split() == ["roundrobin"]
