"""Signals that arrive before a command has begun to work."""

import subprocess
import sys
from pathlib import Path

import pytest

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
    [("router.cli.main", "check"), ("router.cli.main", "serve"), ("router.settings.yaml", "serve")],
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
