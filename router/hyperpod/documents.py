"""Finds the document in a Kubernetes file that describes the endpoint."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, cast

from router.runtime.quoting import shown
from router.settings import yaml as settings_yaml
from router.settings.errors import KeyPath, Problem, SettingsError, dotted
from router.settings.yaml import Document

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
        found = self.document.problem(whole, message, suggestion)
        return replace(found, field=dotted(whole))


def is_manifest(text: str) -> bool:
    """Whether a text is a Kubernetes file rather than settings."""
    return _MARK.search(text) is not None


def find(text: str, file: str) -> tuple[Manifest, list[str]]:
    """Return the endpoint, and the kinds of all other resources in the file.

    Raises SettingsError if the file is not YAML, has no endpoint or several, or has YAML mistakes
    in it.
    """
    found: list[Manifest] = []
    others: list[str] = []
    for document in settings_yaml.parse_all(text, file):
        for one in _resources(document, (), document.data):
            kind = one.data.get("kind")
            if kind == KIND:
                found.append(one)
            else:
                others.append(shown(kind))
    if not found:
        there = f"; there is {', '.join(others)}" if others else ""
        raise SettingsError([Problem(file, None, None, "", f"holds no {KIND}{there}")])
    if len(found) > 1:
        message = f"a second {KIND}: a router serves one, give each a file of its own"
        raise SettingsError([found[1].problem(("kind",), message)])
    _check(found[0])
    return found[0], others


def _resources(document: Document, path: KeyPath, data: object) -> Iterator[Manifest]:
    """Yield a document's resources: itself, or the items of a list (`kubectl get -o yaml`)."""
    if not isinstance(data, Mapping):
        return
    one = cast("Mapping[str, object]", data)
    items = one.get("items")
    if str(one.get("kind", "")).endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            yield from _resources(document, (*path, "items", number), item)
    else:
        yield Manifest(document, path, one)


def _check(manifest: Manifest) -> None:
    """Raise SettingsError for YAML mistakes in the endpoint, and for unknown versions."""
    depth = len(manifest.root)
    within = [
        place for place, at in manifest.document.places.items() if place[:depth] == manifest.root
    ]
    lines = {manifest.document.places[place][0] for place in within}
    problems = [one for one in manifest.document.problems if one.line in lines]
    group, _, version = str(manifest.data.get("apiVersion")).rpartition("/")
    if group != GROUP or version not in VERSIONS:
        known = " or ".join(f"{GROUP}/{one}" for one in VERSIONS)
        problems.append(manifest.problem(("apiVersion",), f"must be {known}"))
    if not isinstance(manifest.data.get("spec"), Mapping):
        problems.append(manifest.problem(("spec",), "must be a mapping"))
    if problems:
        raise SettingsError(problems)
