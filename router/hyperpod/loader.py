"""Reads the file that a command is given: settings, or a HyperPod manifest."""

import os
from pathlib import Path
from typing import NamedTuple

from router.api.endpoints import ENDPOINTS, INVOCATIONS, OPEN_PATHS
from router.hyperpod.environment import said_by
from router.hyperpod.fields import KIND, Able, Note, is_manifest
from router.hyperpod.manifest import Paths, translate
from router.settings.errors import Problem, SettingsError
from router.settings.loader import in_order, loads, read, validate
from router.settings.model import Settings, WorkerSettings
from strategies import registry


class Loaded(NamedTuple):
    """The content of a file."""

    settings: Settings
    notes: tuple[Note, ...]
    """What each field of a manifest was turned into; empty for a settings file."""


def take(path: str | os.PathLike[str], workers: str | None = None) -> Loaded:
    """Read a settings file, or a manifest whose workers are at `workers`. Raises SettingsError."""
    text, file = read(Path(path)), str(path)
    if not is_manifest(text):
        if workers is not None:
            message = f"holds its own workers: {said_by(workers)} is for an {KIND}"
            raise SettingsError([Problem(file, None, None, "", message)])
        return Loaded(loads(text, file, Path(path).parent), ())
    paths = Paths(frozenset((*ENDPOINTS, INVOCATIONS)), OPEN_PATHS)
    able = Able(registry.names(), Settings.model_fields, WorkerSettings.model_fields, os.environ)
    mapped = translate(text, file, workers, able, paths)
    if mapped.problems and not {"workers", "pools"}.intersection(mapped.data):
        raise SettingsError(in_order(mapped.problems))  # they already say that workers are missing
    settings = validate(mapped.document, mapped.problems, Path(path).parent)
    return Loaded(settings, tuple(mapped.notes))
