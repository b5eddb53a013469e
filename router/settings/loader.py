"""Reads a YAML file into settings, or reports all of its mistakes at once."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from router.api.request import ENDPOINTS
from router.http.access import OPEN
from router.hyperpod.documents import KIND, is_manifest
from router.hyperpod.manifest import Paths
from router.hyperpod.manifest import translate as translate_manifest
from router.hyperpod.notes import Note
from router.hyperpod.reading import Able
from router.hyperpod.workers import said_by
from router.sagemaker.paths import INVOCATIONS
from router.settings import yaml as settings_yaml
from router.settings.describe import Row, describe
from router.settings.errors import Problem, SettingsError
from router.settings.messages import translate
from router.settings.model import Settings, WorkerSettings
from router.settings.schema import schema, schema_text
from router.settings.watch import Mark
from router.settings.yaml import Document
from strategies import registry

__all__ = [
    "Loaded",
    "Problem",
    "Row",
    "SettingsError",
    "describe",
    "load",
    "loads",
    "schema",
    "schema_text",
    "take",
]

MAX_BYTES = 1 << 20


class Loaded(NamedTuple):
    """The content of a file."""

    settings: Settings
    notes: tuple[Note, ...]
    """What each field of a manifest was turned into; empty for a settings file."""


def load(path: str | os.PathLike[str]) -> Settings:
    """Read a settings file. Raises SettingsError with every problem in it."""
    return take(path).settings


def take(path: str | os.PathLike[str], workers: str | None = None) -> Loaded:
    """Read a settings file, or a manifest whose workers are at `workers`. Raises SettingsError."""
    text, file = _read(Path(path)), str(path)
    if not is_manifest(text):
        if workers is not None:
            message = f"holds its own workers: {said_by(workers)} is for an {KIND}"
            raise SettingsError([Problem(file, None, None, "", message)])
        return Loaded(loads(text, file, Path(path).parent), ())
    paths = Paths(frozenset((*ENDPOINTS, INVOCATIONS)), OPEN)
    able = Able(registry.names(), Settings.model_fields, WorkerSettings.model_fields, os.environ)
    mapped = translate_manifest(text, file, workers, able, paths)
    if mapped.problems and not {"workers", "pools"}.intersection(mapped.data):
        raise SettingsError(_sorted(mapped.problems))  # they already say that workers are missing
    settings = _settings(mapped.document, mapped.problems, Path(path).parent)
    return Loaded(settings, tuple(mapped.notes))


def loads(text: str, file: str = "settings", folder: Path | None = None) -> Settings:
    """Read settings from a text; problems name `file`, and paths are relative to `folder`."""
    document = settings_yaml.parse(text, file)
    return _settings(document, document.problems, folder or Path())


def _settings(document: Document, found: Iterable[Problem], folder: Path) -> Settings:
    """Validate a document. Raises SettingsError with the problems `found` before and all others."""
    problems, files = list(found), dict[Path, Mark]()
    try:
        context = {"folder": folder, "files": files}
        settings = Settings.model_validate(document.data, context=context)
    except ValidationError as error:
        problems += translate(error, document)
    if problems:
        # Outside the handler: a traceback must not show pydantic's error, which holds the values.
        raise SettingsError(_sorted(problems), files)
    return settings


def _sorted(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda one: (one.line or 0, one.column or 0))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refused(path, "no such file") from None
    except IsADirectoryError:
        raise _refused(path, "is a directory; name the file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refused(path, f"cannot be read: {reason}") from None
    if len(content) > MAX_BYTES:
        raise _refused(path, "is larger than 1MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(path, "is not UTF-8", content.count(b"\n", 0, error.start) + 1) from None


def _refused(path: Path, message: str, line: int | None = None) -> SettingsError:
    return SettingsError([Problem(str(path), line, None, "", message)])
