"""Commands that ask a router at https, whose certificate is from a CA of the test's own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.authority import Authority
from tests.commands import run
from tests.support import MakeRouter, Router

Command = tuple[object, ...]


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetThread]:
    """A simulated worker."""
    with FleetThread(FleetSettings(workers=1, models=("m",), speed=50)) as made:
        yield made


@pytest.fixture
def router(fleet: FleetThread, ours: Authority, route: MakeRouter) -> Router:
    """A router at https."""
    return route(*fleet.urls, tls=ours.issue())


@pytest.fixture(params=["explain", pytest.param("replay", marks=pytest.mark.long)])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Command:
    """A command that asks a router, but for its `--url`."""
    file, body, trace = (tmp_path / name for name in ("c.yaml", "body.json", "trace.jsonl"))
    if request.param == "explain":
        file.write_text("workers: [{url: 'http://127.0.0.1:9'}]\n")
        chat = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        body.write_text(json.dumps(chat))
        return ("explain", file, "--request", body)
    one = {"timestamp": 0, "input_length": 1500, "output_length": 2, "hash_ids": [1, 2, 3]}
    trace.write_text(json.dumps(one) + "\n")
    return ("replay", trace)


def test_a_private_ca_can_be_trusted(
    router: Router, ours: Authority, theirs: Authority, command: Command
) -> None:
    """`--ca` names the roots to trust, and no others are trusted then; without, the system's."""
    done = run(*command, "--url", router.url, "--ca", ours.roots)
    assert done.returncode == 0, done.stderr
    for others in ((), ("--ca", theirs.roots)):
        refused = run(*command, "--url", router.url, *others)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "certificate" in refused.stderr


def test_a_ca_that_is_none(tmp_path: Path, ours: Authority, command: Command) -> None:
    """The exit code is 2, with a one-line message; no router is asked."""
    (tmp_path / "empty.pem").touch()
    for url, file, message in (
        ("https://127.0.0.1:1", tmp_path / "none.pem", "does not exist"),
        ("https://127.0.0.1:1", tmp_path / "empty.pem", "holds no certificate in PEM"),
        ("http://127.0.0.1:1", ours.roots, "is of use only with an https:// URL in --url"),
    ):
        done = run(*command, "--url", url, "--ca", file)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("--ca: ")
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
