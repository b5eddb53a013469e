"""The request path as C: the modules that the build hook names compile, and do what they did."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("router", "strategies", "controller", "simulator", "tests", "docs")
#: Tests of what is compiled: decisions, and requests through real sockets.
SUITES = ("tests/strategies", "tests/cancel", "tests/retry")
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
HEADER = Path(sysconfig.get_path("include"), "Python.h")

_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup

setup(
    name="warmroute",
    packages=[],
    ext_modules=mypycify(sys.argv[1:], opt_level="0", debug_level="0"),
    script_args=["-q", "build_ext", "--inplace"],
)
"""


def hook() -> dict[str, list[str]]:
    """The hook's settings."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = told["tool"]["hatch"]["build"]["targets"]["wheel"]
    found: dict[str, list[str]] = wheel["hooks"]["mypyc"]
    return found


def run(folder: Path, *command: str) -> str:
    """Run Python on that tree; what it says."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_no_module_that_is_decoded_by_its_annotations() -> None:
    """They are not kept: msgspec would want `type` where it should want `str`."""
    for path in hook()["include"]:
        text = (ROOT / path[1:]).read_text(encoding="utf-8")
        assert "Struct" not in text, path
        assert "BaseModel" not in text, path


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and HEADER.exists()), reason="no C compiler, or no Python.h"
)
def test_it_does_what_it_did(tmp_path: Path) -> None:
    """Without optimisation, which takes a minute less."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    modules = [path[1:] for path in hook()["include"]]
    run(tmp_path, "-c", _BUILD, *hook()["mypy-args"], *modules)
    names = [module.removesuffix(".py").replace("/", ".") for module in modules]
    loaded = f"import importlib as i; print(*(i.import_module(n).__file__ for n in {names}))"
    assert {Path(file).suffix for file in run(tmp_path, "-c", loaded).split()} == {".so"}
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # setuptools is not to read it
    said = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES)
    assert " passed" in said
