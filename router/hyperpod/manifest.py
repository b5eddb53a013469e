"""Turns a manifest into settings as in a settings file, with a note on every field."""

from collections.abc import Mapping
from typing import NamedTuple

from router.hyperpod import own
from router.hyperpod.caching import check_cache
from router.hyperpod.documents import find
from router.hyperpod.door import open_door
from router.hyperpod.elsewhere import note_the_rest
from router.hyperpod.environment import read_environment
from router.hyperpod.limits import limit
from router.hyperpod.notes import Fate, Note
from router.hyperpod.reading import Able, Reading
from router.hyperpod.routing import choose_strategy
from router.hyperpod.workers import place_workers
from router.settings.errors import Problem
from router.settings.yaml import Document


class Mapped(NamedTuple):
    """The result of translating a manifest."""

    data: Mapping[str, object]
    """The settings."""
    document: Document
    """The settings as a document, each at the line of the field it comes from."""
    problems: list[Problem]
    """All mistakes in the manifest itself."""
    notes: list[Note]


class Paths(NamedTuple):
    """The paths that the router serves."""

    requests: frozenset[str]
    probes: frozenset[str]


def translate(text: str, file: str, told: str | None, able: Able, paths: Paths) -> Mapped:
    """Translate the one endpoint in a file.

    `told`: where its workers are, instead of its annotation. Raises SettingsError if there is no
    endpoint to translate.
    """
    manifest, others = find(text, file)
    reading = Reading(manifest, able)
    ours = own.parse_own(reading, manifest)
    workers = place_workers(reading, told, own.count_workers(reading, ours))
    instead = own.name_strategy(ours)
    chosen = choose_strategy(reading, instead)
    strategy = instead or chosen
    check_cache(reading, strategy, own.asks(ours))  # notes the variables that it uses
    read_environment(reading, strategy)
    limit(reading, workers)
    open_door(reading, paths.requests, paths.probes)
    note_the_rest(reading)
    if ours is not None:
        own.overlay(reading, ours, told)
    own.spread(reading)
    notes = [*reading.notes, *(_passed_over(kind) for kind in others)]
    if manifest.data.get("status") is not None:
        notes.append(Note("status", "***", "written by Kubernetes", Fate.ELSEWHERE))
    places = {(): reading.place(("spec",)), **reading.places}
    empty = ours.empty if ours else set()
    document = Document(file, reading.data, places, [], empty)
    return Mapped(reading.data, document, reading.problems, notes)


def _passed_over(kind: str) -> Note:
    return Note("kind", kind, "another resource, passed over", Fate.ELSEWHERE)
