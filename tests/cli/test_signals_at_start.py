"""Signals before a command has begun with anything."""

import subprocess
import sys
from pathlib import Path

import pytest

#: What is raised while an object goes away is passed over, as by compiled modules that are loaded.
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
    [("router.cli", "check"), ("router.cli", "serve"), ("router.settings_yaml", "serve")],
)
def test_nobody_is_deaf_while_it_loads(
    tmp_path: Path, name: str, code: int, module: str, command: str
) -> None:
    """It ends, whatever was being done: no second signal may ever come."""
    args = [command, "--config", str(tmp_path / "none.yaml")]
    program = DEAF.format(name=name, module=module, args=args)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
