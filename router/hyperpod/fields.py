"""Finds the endpoint in a Kubernetes file, and notes what becomes of each of its fields."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple, cast

from router.runtime.quote import shown
from router.settings import yaml as settings_yaml
from router.settings.errors import KeyPath, Problem, SettingsError, dotted, nearest
from router.settings.yaml import Document


class FieldOutcome(Enum):
    """What became of a field."""

    MAPPED = "mapped"
    """It became a setting of ours, or needs none."""
    ELSEWHERE = "elsewhere"
    """It is for others: the engine, Kubernetes, AWS. The router has no part in it."""
    LOST = "lost"
    """It is about routing, but not supported here."""


class Note(NamedTuple):
    """One field, or a part of the manifest that shares its fate."""

    field: str
    """The field's path, such as `spec.worker.requestLimits.maxQueueSize`."""
    value: str
    """The value in the manifest; `***` if it may be secret, a count if it is long."""
    became: str
    """The setting that it became, or why there is none."""
    fate: FieldOutcome

    def __str__(self) -> str:
        return f"{self.field}: {self.became}"


KIND = "InferenceEndpointConfig"
GROUP = "inference.sagemaker.aws.amazon.com"
VERSIONS = ("v1", "v1alpha1")
#: Our settings have no such key, so this distinguishes a manifest from settings.
_MARK = re.compile(r"(?:^[ \t-]*|[{,]\s*)[\"']?apiVersion[\"']?\s*:", re.MULTILINE)


class Manifest(NamedTuple):
    """The endpoint, and its place in the file."""

    document: Document
    root: KeyPath
    """The endpoint's path in the document: ("items", 0), for example, in a Kubernetes list."""
    data: Mapping[str, object]

    def problem(self, path: KeyPath, message: str, suggestion: str | None = None) -> Problem:
        """Return a mistake with its place; `path` starts at the endpoint, and may be missing
        there."""
        whole = (*self.root, *path)
        problem = self.document.problem(whole, message, suggestion)
        return replace(problem, field=dotted(whole))


def is_manifest(text: str) -> bool:
    """Whether a text is a Kubernetes file rather than settings."""
    return _MARK.search(text) is not None


def find(text: str, file: str) -> tuple[Manifest, list[str]]:
    """Return the endpoint, and the kinds of all other resources in the file.

    Raises SettingsError if the file is not YAML, has no endpoint or several, or has YAML mistakes
    in it.
    """
    resources = [
        resource
        for document in settings_yaml.parse_all(text, file)
        for resource in _resources(document, (), document.data)
    ]
    endpoints = [resource for resource in resources if resource.data.get("kind") == KIND]
    others = [shown(item.data.get("kind")) for item in resources if item not in endpoints]
    if not endpoints:
        there = f"; there is {', '.join(others)}" if others else ""
        raise SettingsError([Problem(file, None, None, "", f"holds no {KIND}{there}")])
    if len(endpoints) > 1:
        message = f"a second {KIND}: a router serves one, give each a file of its own"
        raise SettingsError([endpoints[1].problem(("kind",), message)])
    _check(endpoints[0])
    return endpoints[0], others


def _resources(document: Document, path: KeyPath, data: object) -> Iterator[Manifest]:
    """Yield a document's resources: itself, or the items of a list (`kubectl get -o yaml`)."""
    if not isinstance(data, Mapping):
        return
    resource = cast("Mapping[str, object]", data)
    items = resource.get("items")
    if str(resource.get("kind", "")).endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            yield from _resources(document, (*path, "items", number), item)
    else:
        yield Manifest(document, path, resource)


def _check(manifest: Manifest) -> None:
    """Raise SettingsError for YAML mistakes in the endpoint, and for unknown versions."""
    depth = len(manifest.root)
    places = manifest.document.places.items()
    lines = {line for path, (line, _) in places if path[:depth] == manifest.root}
    problems = [problem for problem in manifest.document.problems if problem.line in lines]
    group, _, version = str(manifest.data.get("apiVersion")).rpartition("/")
    if group != GROUP or version not in VERSIONS:
        allowed = " or ".join(f"{GROUP}/{known}" for known in VERSIONS)
        problems.append(manifest.problem(("apiVersion",), f"must be {allowed}"))
    if not isinstance(manifest.data.get("spec"), Mapping):
        problems.append(manifest.problem(("spec",), "must be a mapping"))
    if problems:
        raise SettingsError(problems)


SPEC: KeyPath = ("spec",)
#: The path prefix for settings of every worker.
EACH = "workers[]"
#: A number given as text with more digits is a mistake, whatever it is for.
MAX_DIGITS = 12


class Reading:
    """Collects settings and notes from the fields of a manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.data: dict[str, object] = {}
        """The settings, as a settings file would hold them."""
        self.places: dict[KeyPath, tuple[int, int]] = {}
        """Line and column in the manifest for each setting."""
        self.each: dict[str, object] = {}
        """Settings for every worker."""
        self.sources: list[tuple[KeyPath, KeyPath]] = []
        """Settings with the field that each came from; those in `each` begin with `EACH`."""
        self.problems: list[Problem] = []
        self.notes: list[Note] = []
        self._noted: set[KeyPath] = set()

    # Fields.

    def get(self, path: KeyPath) -> object:
        """Return the value at a path; None if there is none, or the path does not fit."""
        value: object = self._manifest.data
        for part in path:
            if isinstance(value, Mapping):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value

    def mapping(self, path: KeyPath) -> Mapping[str, object]:
        """Return the mapping at a path, empty if there is none. Anything else is a mistake."""
        value = self.get(path)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.refuse(path, "must be a mapping")
            return {}
        return cast("Mapping[str, object]", value)

    def items(self, path: KeyPath) -> Sequence[object]:
        """Return the list at a path, empty if there is none. Anything else is a mistake."""
        value = self.get(path)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.refuse(path, "must be a list")
            return ()
        return value

    def truth(self, path: KeyPath, default: bool) -> bool:
        """Return a boolean."""
        value = self.get(path)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.refuse(path, "must be true or false")
        return default

    def whole(self, path: KeyPath, least: int, most: int, default: int | None) -> int | None:
        """Return a whole number within bounds."""
        value = self.get(path)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(path, f"must be a whole number from {least} to {most}")
            return default
        return value

    def text(self, path: KeyPath) -> str | None:
        """Return a text; empty text counts as none, as it does for HyperPod's operator."""
        value = self.get(path)
        if value is None or isinstance(value, str):
            return value or None
        self.refuse(path, "must be text; put it in quotes")
        return None

    def choice(self, path: KeyPath, allowed: Sequence[str], default: str, remedy: str = "") -> str:
        """Return one of the allowed words; `remedy` tells what else can be done about others."""
        value = self.text(path)
        if value is None or value in allowed:
            return value or default
        message = f"{shown(value)} is not one of {', '.join(allowed)}{remedy}"
        self.refuse(path, message, nearest(value, allowed))
        return default

    # Settings and notes.

    def set(self, setting: KeyPath, value: object, source: KeyPath) -> None:
        """Set a setting; mistakes in it are shown at the `source`."""
        where: dict[str, object] = self.data
        for part in setting[:-1]:
            where = cast("dict[str, object]", where.setdefault(str(part), {}))
        where[str(setting[-1])] = value
        self.places[setting] = self.place(source)
        self.sources.append((setting, source))

    def set_each(self, setting: str, value: object, source: KeyPath) -> None:
        """Set a setting of every worker."""
        self.each[setting] = value
        self.sources.append(((EACH, setting), source))

    def place(self, path: KeyPath) -> tuple[int, int]:
        """Return line and column of a field, or of its parent if it is missing."""
        problem = self._manifest.problem(path, "")
        return (problem.line or 1, problem.column or 1)

    def refuse(self, path: KeyPath, message: str, suggestion: str | None = None) -> None:
        """Report a mistake in a field."""
        self.problems.append(self._manifest.problem(path, message, suggestion))

    def mapped(self, path: KeyPath, became: str, value: str | None = None) -> None:
        """Note a field that became a setting, or needs none."""
        self._note(path, became, FieldOutcome.MAPPED, value)

    def lost(self, path: KeyPath, became: str, value: str | None = None) -> None:
        """Note a field that is not supported here."""
        self._note(path, became, FieldOutcome.LOST, value)

    def elsewhere(self, path: KeyPath, became: str, value: str | None = None) -> None:
        """Note a field that is for others."""
        self._note(path, became, FieldOutcome.ELSEWHERE, value)

    def _note(self, path: KeyPath, became: str, fate: FieldOutcome, value: str | None) -> None:
        """Note a field once, if it is present; everything below it counts as noted too."""
        field = self.get(path)
        if path not in self._noted and (field is not None or value is not None):
            text = summary(field) if value is None else value
            self.notes.append(Note(dotted(path), text, became, fate))
            self._noted.add(path)

    def unnoted(self, path: KeyPath, parents: Collection[KeyPath]) -> Iterator[KeyPath]:
        """Yield fields without a note; a mapping is yielded whole unless in `parents` or partly
        noted."""
        value = self.get(path)
        if path in self._noted or value in (None, {}, []):
            return
        inside = path in parents or any(noted[: len(path)] == path for noted in self._noted)
        if isinstance(value, Mapping) and inside:
            for key in value:
                yield from self.unnoted((*path, key), parents)
        elif not inside:
            yield path


def summary(value: object) -> str:
    """Return a value for display. Lists and mappings may hold secrets, so only counts or keys are
    shown."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(map(str, list(value)[:6])) + (", …}" if len(value) > 6 else "}")
    if isinstance(value, list):
        return f"{len(value)} item" + ("" if len(value) == 1 else "s")
    return shown(value) if isinstance(value, str) else str(value)


def decimal(text: str | None, most: int = 10**MAX_DIGITS) -> int | None:
    """Return the number in a text of plain digits; None if it is not one, or above `most`."""
    if text is None or len(text) > MAX_DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    return number if (number := int(text)) <= most else None
