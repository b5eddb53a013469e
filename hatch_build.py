"""Builds the wheel: the request path becomes C by mypyc, where there is a C compiler.

Without one, if compiling fails, or with WARMROUTE_PURE=1 in the environment, the wheel is plain
Python: the same code, with more CPU a request. `warmroute --version` says which it is.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: What mypyc compiles, and setuptools builds: needed only where something is compiled.
REQUIREMENTS = ("mypy>=1.14", "setuptools>=65.5")
#: What scripts/check checks is taken as it is: others' types would take minutes.
MYPY_OPTIONS = (
    "--config-file=",
    "--cache-dir=/dev/null",
    "--no-site-packages",
    "--ignore-missing-imports",
    "--follow-imports=silent",
)


def compiler() -> str | None:
    """Return the path of the C compiler that Python's extensions are built with, if it is there."""
    name = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(name) if header.exists() else None


def modules(root: Path, config: dict[str, Any]) -> list[str]:
    """Return the paths of what is compiled: those that are included and not excluded."""
    chosen = {path for pattern in config["include"] for path in root.glob(pattern)}
    return sorted(
        str(path.relative_to(root))
        for path in chosen
        if not any(path.match(pattern) for pattern in config["exclude"])
    )


class CompiledBuildHook(BuildHookInterface[Any]):
    """Adds what was compiled to the wheel, beside its sources."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what is needed to compile: nothing if it would not be."""
        return [] if self._obstacle() else list(REQUIREMENTS)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless for an editable install, whose sources are about to change."""
        if self.target_name != "wheel" or version == "editable":
            return
        obstacle = self._obstacle()
        if obstacle is None:
            self._folder = TemporaryDirectory(prefix="warmroute-")
            obstacle = self._compile(Path(self._folder.name), build_data)
        if obstacle:
            self.app.display_warning(f"Warmroute is built as plain Python: {obstacle}.")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel."""
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _obstacle(self) -> str | None:
        """Return why nothing can be compiled here, or None."""
        if os.environ.get("WARMROUTE_PURE", "0") not in {"", "0"}:
            return "WARMROUTE_PURE is set"
        if sys.implementation.name != "cpython":
            return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
        return None if compiler() else "there is no C compiler, or Python.h is not installed"

    def _compile(self, folder: Path, build_data: dict[str, Any]) -> str | None:
        """Compile into `folder` and add the result; return what went wrong, or None."""
        sources = modules(Path(self.root), self.config)
        built = subprocess.run(
            [sys.executable, str(Path(self.root, Path(__file__).name)), str(folder), *sources],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        library = folder / "lib"
        made = sorted(path for path in library.rglob("*") if path.is_file())
        if built.returncode or not made:
            print(built.stdout, built.stderr, file=sys.stderr)
            return "compiling failed, as said above"
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for path in made:
            build_data["force_include"][str(path)] = str(path.relative_to(library))
        return None


def build(folder: str, sources: list[str]) -> None:
    """Compile the modules into `folder`/lib; mypyc ends the process where it finds an error.

    The C files are compiled by threads: setuptools would take them one after the other.
    """
    from mypyc.build import mypycify  # noqa: PLC0415 - not there where nothing is compiled
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    # On Python 3.12 and later it is part of setuptools, and there once that is imported.
    compilers: Any = import_module("distutils.ccompiler").CCompiler
    one_by_one = compilers.compile

    def at_once(self: object, files: list[str], **options: object) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = pool.map(lambda file: one_by_one(self, [file], **options), files)
            return [path for paths in objects for path in paths]

    compilers.compile = at_once
    extensions = mypycify(
        [*MYPY_OPTIONS, *sources],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        target_dir=folder,
    )
    command = build_ext(Distribution({"name": "warmroute", "ext_modules": extensions}))
    command.build_lib, command.build_temp = f"{folder}/lib", f"{folder}/objects"
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2:])
