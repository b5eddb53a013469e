"""Ctrl-C in commands that only try something out: 130 and a word, whenever it comes."""

import signal
from pathlib import Path

import pytest
import typer

from router.cli import demo
from router.cli import trial as cli_try
from tests.cli.test_cli import trace
from tests.commands import started
from tests.support import MakeStub, until


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_comparison(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The demo has nothing to show, so it has not done what it was asked to."""
    with started(tmp_path, "demo", "--listen", "127.0.0.1:0") as running:
        until(lambda: "requests through" in running.err.read_text(), 30)
        assert running.end(number) == code
        assert running.err.read_text().splitlines()[-1] == "interrupted"
        assert not running.out.read_text()


def test_a_replay(tmp_path: Path, stub: MakeStub) -> None:
    """There is a report so far, which says so."""
    silent = stub(["stall"])
    with started(tmp_path, "replay", trace(tmp_path), "--url", silent.url) as running:
        until(lambda: silent.requests, 30)
        assert running.end(signal.SIGINT) == 130
        assert "interrupted" in running.out.read_text()


def test_before_anything_has_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the fleet starts, or a trace is read."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    monkeypatch.setattr(cli_try, "replay_trace", interrupted)
    with pytest.raises(typer.Exit) as demo_ended:
        cli_try.run_demo()
    with pytest.raises(typer.Exit) as replay_ended:
        cli_try.replay(trace=Path("none.jsonl"))
    assert (demo_ended.value.exit_code, replay_ended.value.exit_code) == (130, 130)
    assert capsys.readouterr() == ("", 2 * "interrupted\n")
