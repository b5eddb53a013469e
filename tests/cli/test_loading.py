"""What happens while a command is loaded: only what it needs, and signals are obeyed."""

import subprocess
import sys
from pathlib import Path

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
    others = {"explain", "check", "demo", "replay", "simulate", "controller_service"}
    assert not {f"router.cli.{name}" for name in others} & set(done.stdout.split())


@pytest.mark.parametrize("words", [[], ["--help"], ["serv"], ["--version", "serve"]])
def test_help_has_every_command(words: list[str]) -> None:
    """Anything that is not the name of a command gets all commands, for the help."""
    assert {command.name for command in app(words).registered_commands} == set(COMMANDS)


#: An exception raised in `__del__` is ignored by Python; loading compiled modules has such moments.
DEAF = """
import os, signal, sys
from router.__main__ import main

class Deaf:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})

class Loading:
    def find_spec(self, name, *_):
        if name == "{module}":
            Deaf()

sys.meta_path.insert(0, Loading())
sys.argv[1:] = {args}
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize(
    ("module", "command"),
    [("router.cli.main", "check"), ("router.settings.yaml", "serve")],
)
def test_nobody_is_deaf_while_it_loads(
    tmp_path: Path, name: str, code: int, module: str, command: str
) -> None:
    """It ends whatever it was loading, since a second signal may never come."""
    args = [command, "--config", str(tmp_path / "none.yaml")]
    program = DEAF.format(name=name, module=module, args=args)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
