"""The console script as operators use it: real processes, real signals, plain messages."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from router import __version__
from router.settings.schema import schema_text
from tests.commands import ENV, run, started
from tests.support import MakeRouter, MakeStub, until

CONFIG = Path(__file__).parents[2] / "config"
EXAMPLES = sorted(CONFIG.glob("*.yaml"))


@contextmanager
def fleet(folder: Path, workers: int) -> Iterator[list[str]]:
    """Run `warmroute simulate`; yield the workers' URLs, the first word of each printed line."""
    args = ("simulate", "--workers", workers, "--port", 0, "--profile", "toy", "--model", "toy")
    with started(folder, *args) as running:
        until(lambda: running.out.read_text().count("\n") == workers, 20)
        yield [line.split()[0] for line in running.out.read_text().splitlines()]
        assert running.end(signal.SIGTERM) == 0


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def config(folder: Path, urls: list[str], strategy: str = "prefixaware") -> Path:
    """Write a settings file for these workers."""
    path = folder / f"{strategy}.yaml"
    path.write_text(f"strategy: {strategy}\nworkers: {json.dumps(urls)}\n")
    return path


def test_version_and_help() -> None:
    """Both exit with 0; the help names every command."""
    assert run("--version").stdout == f"warmroute {__version__}\n"
    done = run("--help")
    assert done.returncode == 0
    for command in ("serve", "check", "explain", "schema", "demo", "replay", "simulate"):
        assert command in done.stdout


def test_nonsense() -> None:
    """An unknown command or option, or a missing one, exits with 2 and a message."""
    for args in (["nope"], ["serve"], ["serve", "--nope"], ["simulate", "--workers", "many"]):
        done = run(*args)
        assert done.returncode == 2
        assert done.stderr


def test_schema() -> None:
    """The output equals config/schema.json."""
    done = run("schema")
    assert (done.returncode, done.stdout) == (0, schema_text())
    assert done.stdout == (CONFIG / "schema.json").read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_check_of_a_good_file(path: Path) -> None:
    """The exit code is 0; every setting is listed with its value and source, and no secret."""
    done = run("check", path, "--all")
    assert done.returncode == 0
    rows = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()[1:]}
    for name in ("listen", "strategy", "timeouts.connect", "limits.body", "logs.format"):
        assert rows[name] in ("set", "default")
    assert rows["listen"] == "set"
    assert any(name.endswith(".url") for name in rows)
    assert "sk-test" not in done.stdout


def test_check_of_a_bad_file(tmp_path: Path) -> None:
    """The exit code is 2; every problem is listed with file and line."""
    path = tmp_path / "bad.yaml"
    path.write_text(
        "listen: nonsense\nstrateg: x\nworkers:\n  - htp://a\ntimeouts: {connect: 5}\n"
        "limits:\n  body: large\n  attempts: 99\n"
    )
    done = run("check", path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{path}:{n}" for n in (1, 2, 4, 5, 7, 8)]
    assert 'did you mean "strategy"?' in lines[1]


@pytest.mark.parametrize("strategy", ["prefixaware", "session"])
def test_check_of_sessions_that_nobody_can_open(tmp_path: Path, strategy: str) -> None:
    """A warning says that `stateful` needs the strategy `session`; the file is good otherwise."""
    path = tmp_path / "w.yaml"
    worker = {"url": "http://127.0.0.1:1", "stateful": True}
    path.write_text(json.dumps({"strategy": strategy, "workers": [worker]}))
    done = run("check", path)
    assert done.returncode == 0
    warned = f"{path}: pool default: `stateful` opens no sessions"
    assert done.stderr.startswith(warned) == (strategy != "session")
    assert len(done.stderr.splitlines()) == (strategy != "session")


@pytest.mark.parametrize("command", [("check",), ("serve", "--config")])
def test_a_strategy_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """If another package's strategy raises an error, the exit code is 1 and the error is shown."""
    info = tmp_path / "moody-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[warmroute.strategies]\nmoody = moody:Moody\n")
    (tmp_path / "moody.py").write_text(
        "from dataclasses import dataclass\n\n\nclass Moody:\n"
        "    @dataclass(frozen=True)\n    class Options:\n        pass\n\n"
        "    def __init__(self, options):\n        raise TypeError('not today')\n"
    )
    monkeypatch.setitem(ENV, "PYTHONPATH", str(tmp_path))
    path = tmp_path / "w.yaml"
    path.write_text("listen: 127.0.0.1:0\nworkers: [http://127.0.0.1:1]\nstrategy: moody\n")
    done = run(*command, path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "strategy moody cannot be made: TypeError: not today" in done.stderr


@pytest.mark.parametrize("command", [("check",), ("serve", "--config")])
def test_a_missing_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    """The exit code is 2, with a one-line message; the same for a folder."""
    for path in (tmp_path / "none.yaml", tmp_path):
        done = run(*command, path)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr


@pytest.mark.parametrize("pools", [0, 2])
def test_a_file_that_no_controller_can_use(tmp_path: Path, pools: int) -> None:
    """It serves one kvaware pool; with none or several the exit code is 2, as of other mistakes."""
    path = tmp_path / "w.yaml"
    workers = [{"name": f"p{n}", "models": [f"m{n}"], "workers": [f"http://a:{n}"]} for n in "12"]
    strategy = "kvaware" if pools else "prefixaware"
    path.write_text(json.dumps({"strategy": strategy, "pools": workers}))
    done = run("controller", "--config", path, "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{path}: a controller serves one pool")
    assert done.stderr.endswith(f"there are {pools}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_serve_an_example(tmp_path: Path, path: Path, number: signal.Signals) -> None:
    """Each example starts even without its workers, is live, and ends quietly at a signal."""
    with started(tmp_path, "serve", "--config", path, "--listen", "127.0.0.1:0") as running:
        assert httpx.get(running.url() + "/health/live", timeout=20).json() == {"status": "live"}
        assert running.cut(number) == 0


def test_a_taken_port(tmp_path: Path, taken: int) -> None:
    """Every command that listens exits with 1 and a one-line message, which names the option."""
    path = config(tmp_path, ["http://127.0.0.1:1"])
    for args in (
        ("serve", "--config", path, "--listen", f"127.0.0.1:{taken}"),
        ("demo", "--once", "--listen", f"127.0.0.1:{taken}"),
        ("simulate", "--workers", 2, "--port", taken),
        ("simulate", "--port", 0, "--kv-port", taken),
    ):
        done = run(*args)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert re.match(rf"cannot (listen on|bind) (tcp://)?127.0.0.1:{taken}: ", done.stderr)
        assert "in use" in done.stderr
        assert done.stderr.endswith(f" with {args[-2]}.\n")


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", "127.0.0.1:99999", ":x"])
def test_an_address_that_is_none(tmp_path: Path, listen: str) -> None:
    """The exit code is 2, with a message."""
    path = config(tmp_path, ["http://127.0.0.1:1"])
    for args in (("serve", "--config", path), ("demo", "--once")):
        done = run(*args, "--listen", listen)
        assert done.returncode == 2
        assert done.stderr.startswith("--listen: ")


@pytest.mark.parametrize(
    "args",
    [
        ("--port", 99999),
        ("--port", 65535, "--workers", 2),
        ("--speed", 0),
        ("--profile", "none"),
        ("--store-tokens", 15),
        ("--store-url", "redis://127.0.0.1:1"),
    ],
)
def test_a_fleet_that_cannot_be(args: tuple[object, ...]) -> None:
    """The exit code is 2, with a one-line message, and no fleet starts elsewhere."""
    done = run("simulate", *args)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_simulate(tmp_path: Path) -> None:
    """It prints its workers' URLs, each of them serves, and it ends at a signal."""
    with fleet(tmp_path, 2) as urls:
        for url in urls:
            assert httpx.get(f"{url}/health").status_code == 200
            assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "toy"


def trace(folder: Path) -> Path:
    """Write a trace of ten requests that share prefixes."""
    path = folder / "trace.jsonl"
    lines = [
        {
            "timestamp": 20 * n,
            "input_length": 1500,
            "output_length": 5,
            "hash_ids": [n % 2, 10 + n % 2, 100 + n],
        }
        for n in range(10)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("strategy", ["roundrobin", "leastload", "prefixaware"])
def test_replay(tmp_path: Path, strategy: str) -> None:
    """A trace is replayed through a router with a fleet: every request is answered."""
    with fleet(tmp_path, 2) as urls:
        args = ("serve", "--config", config(tmp_path, urls, strategy), "--listen", "127.0.0.1:0")
        with started(tmp_path, *args) as router:
            done = run("replay", trace(tmp_path), "--url", router.url(), "--json")
            assert done.returncode == 0, done.stderr
            report = json.loads(done.stdout)
            assert (report["answered"], report["errors"]) == (10, {})
            assert sum(got["requests"] for got in report["workers"].values()) == 10
            assert report["hit_rate"] > 0
            if strategy == "roundrobin":
                assert [got["requests"] for got in report["workers"].values()] == [5, 5]
            done = run("replay", trace(tmp_path), "--url", router.url(), "--limit", 2)
            assert done.returncode == 0
            assert "2 of 2" in done.stdout
            assert router.cut(signal.SIGINT) == 0


def test_a_replay_that_cannot_be(tmp_path: Path) -> None:
    """A missing or bad trace, or a bad option: exit code 2 and a message."""
    bad, empty = tmp_path / "bad.jsonl", tmp_path / "empty.jsonl"
    bad.write_text(trace(tmp_path).read_text() + "junk\n")
    empty.write_text("")
    for args, word in (
        ((tmp_path / "none.jsonl",), "none.jsonl"),
        ((bad,), "line 11"),
        ((empty,), "no requests"),
        ((trace(tmp_path), "--rate", 0), "rate"),
    ):
        done = run("replay", *args)
        assert done.returncode == 2
        assert word in done.stderr
        assert done.stdout == ""


def asking(folder: Path, *args: object) -> Iterator[subprocess.CompletedProcess[str]]:
    """Run every command that asks a server, with these arguments."""
    body, file = folder / "body.json", config(folder, ["http://127.0.0.1:1"])
    body.write_text('{"messages": []}')
    yield run("replay", trace(folder), *args)
    yield run("explain", file, "--request", body, *args)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "write http://host:port"),
        ("localhost:8080", "write http://host:port"),
        ("http://:8080", "write http://host:port"),
        ("http://127.0.0.1:99999", "0-65535"),
        ("http://127.0.0.1:x", "'x'"),
    ],
)
def test_a_url_that_is_none(tmp_path: Path, url: str, said: str) -> None:
    """The exit code is 2, with a one-line message."""
    for done in asking(tmp_path, "--url", url):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f'--url: "{url}" is not a URL: ')
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    """The exit code is 1, with a one-line message: nothing is wrong with the arguments."""
    for done in asking(tmp_path, "--url", "http://127.0.0.1:1"):
        assert (done.returncode, done.stdout) == (1, "")
        assert "http://127.0.0.1:1" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_url_with_a_path(tmp_path: Path, stub: MakeStub, route: MakeRouter) -> None:
    """OpenAI's clients have `/v1` in it; what leads nowhere is told of in one line."""
    router = route(stub().url)
    for done in asking(tmp_path, "--url", f"{router.url}/foo"):
        assert (done.returncode, done.stdout) == (1, "")
        assert "answered 404" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    *_, explained = asking(tmp_path, "--url", f"{router.url}/v1/", "--json")
    assert (explained.returncode, explained.stderr) == (0, "")


@pytest.mark.parametrize("key", ["s\u00e9same", "sesame\n"])
def test_a_key_that_no_header_can_carry(tmp_path: Path, key: str) -> None:
    """It is refused without being shown."""
    for done in asking(tmp_path, "--url", "http://127.0.0.1:1", "--api-key", key):
        assert done.returncode == 2
        assert done.stderr == "--api-key: only printable ASCII characters can be sent\n"


def numbers(line: str) -> list[float]:
    """Return the numbers in a table row."""
    words = line.replace("%", "").replace(",", "").replace("│", " ").split()
    return [float(word) for word in words if word.replace(".", "").isdigit()]


@pytest.mark.timeout(180)
def test_demo(tmp_path: Path) -> None:
    """It exits with 0, and its table shows the advantage of prefix routing."""
    done = run("demo", "--once", "--listen", "127.0.0.1:0", timeout=170)
    assert done.returncode == 0, done.stderr
    rows = {
        name: numbers(line.partition(name)[2])
        for line in done.stdout.splitlines()
        for name in ("TTFT p50", "Hit rate", "Errors")
        if name in line and "│" in line
    }
    assert rows["Errors"][:2] == [0, 0]
    by_turns, by_prefix = rows["Hit rate"][:2]
    assert by_prefix >= 2 * by_turns
    by_turns, by_prefix = rows["TTFT p50"][:2]
    assert by_prefix <= by_turns / 2


@pytest.mark.parametrize(
    ("host", "told"),
    [("127.0.0.1", False), ("0.0.0.0", True)],  # noqa: S104 - that is the case in question
)
def test_a_demo_for_everyone(tmp_path: Path, host: str, *, told: bool) -> None:
    """It asks nobody for a key, and says so where others can reach it."""
    with started(tmp_path, "demo", "--listen", f"{host}:0") as running:
        until(lambda: "requests through" in running.err.read_text(), 30)
        assert ("everyone is let in" in running.err.read_text()) == told
        running.end(signal.SIGINT)
