"""Settings of our own within a manifest: what it has no field for, such as who may come in."""

from collections.abc import Mapping
from typing import cast

from router import settings_yaml
from router.hyperpod.documents import Manifest
from router.hyperpod.reading import Reading
from router.settings_errors import KeyPath, Problem, SettingsError

ANNOTATION = "warmroute.io/settings"
_AT: KeyPath = ("metadata", "annotations", ANNOTATION)
_WORKERS = frozenset(("workers", "pools"))


def parse_own(reading: Reading, manifest: Manifest) -> settings_yaml.Document | None:
    """Read the annotation, YAML as in a file of ours; None if there is none of use."""
    text = reading.text(_AT)
    if text is None:
        return None
    file = manifest.document.file
    try:
        document = settings_yaml.parse(text, file)
    except SettingsError as error:
        reading.problems += [_moved(one, reading) for one in error.problems]
        return None
    reading.problems += [_moved(one, reading) for one in document.problems]
    return document


def has_workers(reading: Reading, own: settings_yaml.Document | None) -> bool:
    """Whether workers are given there; what cannot be read may hold some."""
    if own is None:
        return reading.get(_AT) is not None
    return not _WORKERS.isdisjoint(cast("dict[str, object]", own.data))


def overlay(reading: Reading, own: settings_yaml.Document, told: str | None) -> None:
    """Put them over what the manifest's fields became: they are closer to what is meant.

    But for workers, where the operator `told` who they are.
    """
    data = dict(cast("dict[str, object]", own.data))
    for key in _WORKERS if told else ():
        data.pop(key, None)
    if "pools" in data:  # of workers, which may be given either way
        reading.data.pop("workers", None)
    if "strategy" in data:  # another one has other options
        reading.data.pop("strategy", None)
    _merge(reading.data, data)
    line, column = reading.place(_AT)
    for path, (below, _) in own.places.items():
        if path and path[0] in data:
            reading.places[path] = (line + below, column)
    reading.mapped(_AT, f"as they stand there: {', '.join(data)}", "YAML")


def _moved(problem: Problem, reading: Reading) -> Problem:
    """Count lines as the manifest does: a block of text begins on the line below its key."""
    line, column = reading.place(_AT)
    return Problem(
        problem.file,
        line + (problem.line or 0),
        column,
        problem.field or ANNOTATION,
        problem.message,
        problem.suggestion,
    )


def _merge(into: dict[str, object], given: Mapping[str, object]) -> None:
    for key, value in given.items():
        there = into.get(key)
        if isinstance(there, dict) and isinstance(value, Mapping):
            _merge(there, cast("Mapping[str, object]", value))
        else:
            into[key] = value
