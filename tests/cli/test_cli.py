"""The console script as operators use it: real processes, real signals, plain messages."""

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from router import __version__, build_kind
from router.cli.main import COMMANDS
from tests.commands import ENV, invoke, run, started
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
    assert run("--version").stdout == f"warmroute {__version__}, {build_kind()}\n"
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    "args", [("nope",), ("serve", "--nope"), ("simulate", "--workers", "many"), ("replay",)]
)
def test_nonsense(args: tuple[str, ...]) -> None:
    """An unknown command or option, or a missing one, exits with 2 and a message."""
    done = run(*args)
    assert done.returncode == 2
    assert done.stderr


def test_check_of_a_good_file() -> None:
    """The exit code is 0; every setting is listed with its value and source, and no secret."""
    done = run("check", CONFIG / "pools.yaml", "--all")
    assert done.returncode == 0
    rows = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()[1:]}
    for name in ("listen", "strategy", "timeouts.connect", "limits.body", "logs.format"):
        assert rows[name] in ("set", "default")
    assert rows["listen"] == "set"
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_serve_an_example(tmp_path: Path, path: Path) -> None:
    """Each example starts even without its workers, is live, and ends quietly at a signal."""
    with started(tmp_path, "serve", "--config", path, "--listen", "127.0.0.1:0") as running:
        assert httpx.get(running.url() + "/health/live", timeout=20).json() == {"status": "live"}
        assert running.cut(signal.SIGTERM) == 0


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


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("check {folder}/none.yaml", 2, "none.yaml: no such file"),
        ("serve --config {folder}", 2, "is a directory"),
        ("serve --config {file} --processes 0", 2, "--processes"),
        ("serve --config {file} --listen nonsense", 2, '--listen: "nonsense" is not an address'),
        ("demo --once --listen 127.0.0.1:99999", 2, "--listen: "),
        ("simulate --port 99999", 2, "ports are 0 (any) to 65535"),
        ("simulate --port 65535 --workers 2", 2, "port"),
        ("simulate --speed 0", 2, "speed"),
        ("simulate --profile none", 2, "none"),
        ("simulate --store-tokens 15", 2, "block"),
        ("replay {folder}/none.jsonl", 2, "none.jsonl"),
        ("replay {bad}", 2, "line 11"),
        ("replay {empty}", 2, "no requests"),
        ("replay {trace} --rate 0", 2, "rate"),
        ("replay {trace} --url localhost:8080", 2, "write http://host:port"),
        ("replay {trace} --url http://127.0.0.1:99999", 2, "0-65535"),
        ("replay {trace} --url http://127.0.0.1:1 --api-key s\u00e9same", 2, "printable ASCII"),
        ("replay {trace} --url http://127.0.0.1:1", 1, "http://127.0.0.1:1"),
        ("explain {file} --request {body} --url http://:80", 2, "write http://host:port"),
        ("explain {file} --request {body} --url http://127.0.0.1:1", 1, "http://127.0.0.1:1"),
        ("explain {file} --request {folder}/none", 2, "No such file"),
        ("explain {file} --request {body} --session a", 2, "add --url"),
        ("explain {file} --request {body} --as nobody", 2, "--as: "),
        ("controller --config {file} --listen 127.0.0.1:0", 2, "a controller serves one pool"),
        ("controller --config {file} --every 0s", 2, "--every: "),
    ],
)
def test_a_command_that_cannot_do_what_is_asked(
    tmp_path: Path, args: str, code: int, words: str
) -> None:
    """The exit code is 2 if the arguments are wrong, else 1, with a message and no result."""
    names = {name: tmp_path / name for name in ("bad", "empty", "body")}
    names["bad"].write_text(trace(tmp_path).read_text() + "junk\n")
    names["empty"].write_text("")
    names["body"].write_text('{"messages": []}')
    file = config(tmp_path, ["http://127.0.0.1:1"])
    done = invoke(*args.format(folder=tmp_path, file=file, trace=trace(tmp_path), **names).split())
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr
    assert "s\u00e9same" not in done.stderr


def test_a_url_with_a_path(tmp_path: Path, stub: MakeStub, route: MakeRouter) -> None:
    """OpenAI's clients have `/v1` in it; what leads nowhere is told of in one line."""
    url, body = route(stub().url).url, tmp_path / "body.json"
    body.write_text('{"messages": []}')
    asking = ("explain", config(tmp_path, [url]), "--request", body, "--json", "--url")
    for args in (("replay", trace(tmp_path), "--url"), asking):
        done = invoke(*args, f"{url}/foo")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "answered 404" in done.stderr
    explained = invoke(*asking, f"{url}/v1/")
    assert (explained.exit_code, explained.stderr) == (0, "")


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


def test_replay(tmp_path: Path) -> None:
    """A trace is replayed through a router with a fleet: every request is answered."""
    with fleet(tmp_path, 2) as urls:
        args = (
            "serve",
            "--config",
            config(tmp_path, urls, "roundrobin"),
            "--listen",
            "127.0.0.1:0",
        )
        with started(tmp_path, *args) as router:
            done = run("replay", trace(tmp_path), "--url", router.url(), "--json")
            assert done.returncode == 0, done.stderr
            report = json.loads(done.stdout)
            assert (report["answered"], report["errors"]) == (10, {})
            assert [part["requests"] for part in report["workers"].values()] == [5, 5]
            assert report["hit_rate"] > 0
            done = run("replay", trace(tmp_path), "--url", router.url(), "--limit", 2)
            assert done.returncode == 0
            assert "2 of 2" in done.stdout
            assert router.cut(signal.SIGINT) == 0


def numbers(line: str) -> list[float]:
    """Return the numbers in a table row."""
    words = line.replace("%", "").replace(",", "").replace("│", " ").split()
    return [float(word) for word in words if word.replace(".", "").isdigit()]


@pytest.mark.long
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
    ("number", "code", "host"),
    [(signal.SIGINT, 130, "127.0.0.1"), (signal.SIGTERM, 143, "0.0.0.0")],  # noqa: S104
)
def test_an_interrupted_demo(tmp_path: Path, number: signal.Signals, code: int, host: str) -> None:
    """It has nothing to show, so it has not done what it was asked to; and it asks nobody for a
    key, which it says where others can reach it."""
    with started(tmp_path, "demo", "--listen", f"{host}:0") as running:
        until(lambda: "requests through" in running.err.read_text(), 30)
        assert running.end(number) == code
        assert running.err.read_text().splitlines()[-1] == "interrupted"
        assert ("everyone is let in" in running.err.read_text()) == (host == "0.0.0.0")  # noqa: S104
        assert not running.out.read_text()


def test_an_interrupted_replay(tmp_path: Path, stub: MakeStub) -> None:
    """There is a report so far, which says so."""
    silent = stub(["stall"])
    with started(tmp_path, "replay", trace(tmp_path), "--url", silent.url) as running:
        until(lambda: silent.requests, 30)
        assert running.end(signal.SIGINT) == 130
        assert "interrupted" in running.out.read_text()
