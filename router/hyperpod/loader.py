"""Reads the file that a command is given: settings, or a HyperPod manifest."""

import os
from pathlib import Path
from typing import NamedTuple

from router.hyperpod.environment import source_of
from router.hyperpod.fields import KIND, Note, is_manifest
from router.hyperpod.manifest import translate
from router.settings.errors import Problem, SettingsError
from router.settings.loader import in_order, loads, read, validate
from router.settings.model import Settings


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
            message = f"holds its own workers: {source_of(workers)} is for an {KIND}"
            raise SettingsError([Problem(file, None, None, "", message)])
        return Loaded(loads(text, file, Path(path).parent), ())
    mapped = translate(text, file, workers)
    if mapped.problems and ("workers",) not in mapped.document.places:
        raise SettingsError(in_order(mapped.problems))  # they already say that workers are missing
    settings = validate(mapped.document, mapped.problems, Path(path).parent)
    return Loaded(settings, tuple(mapped.notes))
