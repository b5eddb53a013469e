"""What a server loads stays in memory for as long as it serves: only what it needs."""

import subprocess
import sys

import pytest

from router.cli import COMMANDS, app

#: Libraries of tokenizers and chat templates, of clients and of simulated workers.
OTHERS = (
    "fastokens",
    "httpx",
    "jinja2",
    "numpy",
    "rich",
    "simulator",
    "tokenizers",
    "uvicorn",
    "zmq",
)


def test_a_server_loads_nothing_of_other_commands() -> None:
    """Nor libraries that most have no use for: they are loaded where they are wanted."""
    script = "import sys, router.cli; router.cli.app(['serve']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "router" in loaded
    assert not loaded & set(OTHERS)
    assert not {f"router.{name}" for name in ("cli_try", "cli_tell")} & set(done.stdout.split())


@pytest.mark.parametrize("words", [[], ["--help"], ["serv"], ["--version", "serve"]])
def test_help_has_every_command(words: list[str]) -> None:
    """Whatever is not the name of a command is answered with all of them at hand."""
    assert {one.name for one in app(words).registered_commands} == set(COMMANDS)
