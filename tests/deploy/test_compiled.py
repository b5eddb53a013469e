"""The request path compiled to C: the modules named by the build hook compile and still work."""

import ast
import importlib
import inspect
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
from msgspec import Struct
from pydantic import BaseModel

from hatch_build import compiler, modules

ROOT = Path(__file__).parents[2]
FOLDERS = ("router", "strategies", "controller", "simulator", "tests", "docs")
#: Tests of compiled code: decisions, and requests over real sockets.
SUITES = (
    "tests/strategies",
    "tests/cancel",
    "tests/retry",
    "tests/sessions/test_stateful.py",
    "tests/sessions/test_undoing.py",
    "tests/http/test_limits.py",
    "tests/http/test_sent_once.py",
    "tests/http/test_parser.py",
)
#: The warning of Python 3.12 and later about how mypyc cancels what a compiled function awaits.
THROWN = "ignore:the (type, exc, tb) signature of throw:DeprecationWarning"
_TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
PATHS = modules(ROOT, _TOOLS["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"])
#: The modules that are compiled.
NAMES = [path.removesuffix(".py").replace("/", ".") for path in PATHS]


def run(folder: Path, *command: str) -> str:
    """Run Python in that source tree; return its output."""
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


@pytest.mark.parametrize("name", NAMES)
def test_no_class_that_is_decoded_by_its_annotations(name: str) -> None:
    """Compiled classes lose their annotations: msgspec would see `type` in place of `str`."""
    for _, made in inspect.getmembers(importlib.import_module(name), inspect.isclass):
        assert made.__module__ != name or not issubclass(made, (Struct, BaseModel)), made


def classes(name: str) -> list[type]:
    """Return the classes that a module defines."""
    module = importlib.import_module(name)
    return [one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == name]


def is_protocol(made: type) -> bool:
    """Return whether it is a protocol, which has no body that a subclass would inherit."""
    return bool(getattr(made, "_is_protocol", False))


def test_no_interpreted_class_extends_a_compiled_one() -> None:
    """Such a class could not be created: only compiled classes can extend compiled ones."""
    compiled = {one for name in NAMES for one in classes(name) if not is_protocol(one)}
    for path in (ROOT / "router").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name in NAMES or path.stem.startswith("__"):
            continue
        for made in classes(name):
            assert not compiled.intersection(made.__mro__), made


@pytest.mark.parametrize("name", NAMES)
def test_no_compiled_class_extends_one_with_a_dictionary(name: str) -> None:
    """The base's dictionary would overlap the attributes of the compiled class."""
    for made in classes(name):
        for base in () if issubclass(made, Enum) else made.__mro__[1:]:
            if base.__module__ not in {*NAMES, "builtins"} and not is_protocol(made):
                assert not base.__dictoffset__, (made, base)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_awaited_while_an_error_is_handled(path: str) -> None:
    """A compiled coroutine's current exception is the thread's: others could change it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [f"line {part.lineno}" for part in _handling(tree) if any(map(_waits, ast.walk(part)))]
    assert not found


def _handling(tree: ast.Module) -> Iterator[ast.ExceptHandler | ast.stmt]:
    """Yield the code that runs during an exception; `asyncio.timeout` exits without waiting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            yield from node.handlers
            yield from node.finalbody
        elif isinstance(node, ast.AsyncWith):
            for item in node.items:
                if not ast.unparse(item.context_expr).startswith("asyncio.timeout"):
                    yield node


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.comprehension):
        return bool(node.is_async)
    return isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.AsyncFor | ast.AsyncWith)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(compiler() is None, reason="no C compiler, or no Python.h")
def test_it_does_what_it_did(tmp_path: Path) -> None:
    """The compiled modules, beside their sources, pass the tests of these."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    run(tmp_path, str(ROOT / "hatch_build.py"), str(tmp_path / "built"), *PATHS)
    shutil.copytree(tmp_path / "built/lib", tmp_path, dirs_exist_ok=True)
    loaded = f"import importlib as i; print(*(i.import_module(n).__file__ for n in {NAMES}))"
    assert {Path(file).suffix for file in run(tmp_path, "-c", loaded).split()} == {".so"}
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # setuptools must not read it
    # If objects are not laid out as Python expects, a garbage collection crashes.
    run(
        tmp_path,
        "-c",
        "import gc, router.fleet.fleet as f, router.observe.metrics as m; "
        "m.Metrics(); gc.collect()",
    )
    said = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", THROWN, *SUITES)
    assert " passed" in said
