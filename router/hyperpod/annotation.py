"""Settings of our own within a manifest, for what it has no field for, such as access keys."""

from collections.abc import Iterator, Mapping
from typing import cast

from router.hyperpod.fields import EACH, FieldOutcome, Manifest, Reading
from router.hyperpod.lmcache import LMCACHE
from router.settings import yaml as settings_yaml
from router.settings.errors import KeyPath, Problem, SettingsError, dotted

ANNOTATION = "warmroute.io/settings"
_AT: KeyPath = ("metadata", "annotations", ANNOTATION)
_WORKERS = frozenset(("workers", "pools"))
#: Settings replaced as a whole, because a different choice has different options.
_WHOLE: tuple[KeyPath, ...] = (("strategy",), LMCACHE)


def parse_own(reading: Reading, manifest: Manifest) -> settings_yaml.Document | None:
    """Parse the annotation, YAML as in a settings file; None if there is none or it is invalid."""
    text = reading.text(_AT)
    if text is None:
        return None
    file = manifest.document.file
    try:
        document = settings_yaml.parse(text, file)
    except SettingsError as error:
        reading.problems += [_moved(problem, reading) for problem in error.problems]
        return None
    reading.problems += [_moved(problem, reading) for problem in document.problems]
    return document


def count_workers(reading: Reading, own: settings_yaml.Document | None) -> int | None:
    """Return how many workers our own settings give.

    None if they give none; 0 if the annotation cannot be read.
    """
    if own is None:
        return None if reading.get(_AT) is None else 0
    data = cast("dict[str, object]", own.data)
    if _WORKERS.isdisjoint(data):
        return None
    return sum(len(cast("list[object]", owner["workers"])) for owner in _owners(data))


def name_strategy(own: settings_yaml.Document | None) -> str | None:
    """Return the strategy in our own settings; for `session`, the strategy below it."""
    strategy = cast("dict[str, object]", own.data).get("strategy") if own else None
    while isinstance(strategy, Mapping):
        strategy = strategy.get("over", strategy.get("name"))
    return strategy if isinstance(strategy, str) else None


def asks(own: settings_yaml.Document | None) -> str | None:
    """Return where our own settings say what a store is asked for; None if they do not."""
    return f"{dotted(LMCACHE)} in {ANNOTATION}" if own and _has(own.data, LMCACHE) else None


def overlay(reading: Reading, own: settings_yaml.Document, workers: str | None) -> None:
    """Put our own settings over those from the manifest's fields: they are more specific.

    Their workers are left out if the command line or the environment gives `workers`.
    """
    data = dict(cast("dict[str, object]", own.data))
    for key in _WORKERS if workers else ():
        data.pop(key, None)
    _renote(reading, data)
    if "pools" in data:  # workers may be given either way
        reading.data.pop("workers", None)
    for whole in _WHOLE:
        if _has(data, whole):
            _drop(reading.data, whole)
    _merge(reading.data, data)
    line, column = reading.place(_AT)
    for path, (below, _) in own.places.items():
        if path and path[0] in data:
            reading.places[path] = (line + below, column)
    reading.mapped(_AT, f"as they stand there: {', '.join(data)}", "YAML")


def spread(reading: Reading) -> None:
    """Give every worker the settings for all workers, unless it has its own."""
    if reading.each:
        for owner in _owners(reading.data):
            workers = cast("list[object]", owner["workers"])
            owner["workers"] = [_with(worker, reading.each) for worker in workers]


def _with(worker: object, each: Mapping[str, object]) -> object:
    if isinstance(worker, str):
        return {"url": worker, **each}
    return {**each, **worker} if isinstance(worker, Mapping) else worker


def _owners(data: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield all mappings with a list of workers: the settings, and pools."""
    pools = data.get("pools")
    for owner in [data, *(pools if isinstance(pools, list) else ())]:
        if isinstance(owner, dict) and isinstance(owner.get("workers"), list):
            yield owner


def _renote(reading: Reading, data: dict[str, object]) -> None:
    """Change the notes of fields whose settings the annotation replaces."""
    settings: dict[str, list[KeyPath]] = {}
    for setting, source in reading.sources:
        settings.setdefault(dotted(source), []).append(setting)
    for number, note in enumerate(reading.notes):
        mine = settings.get(note.field, [])
        gone = [dotted(setting) for setting in mine if _replaces(data, setting)]
        if note.fate is not FieldOutcome.MAPPED or not gone:
            continue
        became, fate = f"{ANNOTATION} takes its place", FieldOutcome.ELSEWHERE
        if len(gone) < len(mine):
            became, fate = f"{note.became}; but {', '.join(gone)} as in {ANNOTATION}", note.fate
        reading.notes[number] = note._replace(became=became, fate=fate)


def _replaces(data: dict[str, object], setting: KeyPath) -> bool:
    if setting == ("workers",):
        return not _WORKERS.isdisjoint(data)
    if setting[0] == EACH:
        given = [
            isinstance(worker, Mapping) and setting[1] in worker
            for owner in _owners(data)
            for worker in cast("list[object]", owner["workers"])
        ]
        return bool(given) and all(given)
    return _has(data, setting)


def _has(data: object, setting: KeyPath) -> bool:
    """Whether a setting is given, or a value that is not a mapping stands in its path."""
    for part in setting:
        if not isinstance(data, Mapping):
            return True
        if part not in data:
            return False
        data = data[part]
    return True


def _drop(data: dict[str, object], setting: KeyPath) -> None:
    """Remove a setting, if it is there."""
    where: object = data
    for part in setting[:-1]:
        where = where.get(part) if isinstance(where, dict) else None
    if isinstance(where, dict):
        where.pop(setting[-1], None)


def _moved(problem: Problem, reading: Reading) -> Problem:
    """Return a problem with its line in the manifest: a block of text begins on the line below its
    key."""
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
