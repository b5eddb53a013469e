"""What a server imports stays in memory while it serves, so it imports only what it needs."""

import subprocess
import sys

import pytest

from router.cli.main import COMMANDS, app

#: Libraries for tokenizers, chat templates, clients and simulated workers.
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
    """Libraries that most servers do not need are imported when they are used."""
    script = "import sys, router.cli.main; router.cli.main.app(['serve']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "router" in loaded
    assert not loaded & set(OTHERS)
    assert not {f"router.{name}" for name in ("cli_try", "cli_tell")} & set(done.stdout.split())


@pytest.mark.parametrize("words", [[], ["--help"], ["serv"], ["--version", "serve"]])
def test_help_has_every_command(words: list[str]) -> None:
    """Anything that is not the name of a command gets all commands, for the help."""
    assert {one.name for one in app(words).registered_commands} == set(COMMANDS)
