"""From a manifest to settings as a file of ours would hold them, and a note on every field."""

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
from router.settings_errors import Problem
from router.settings_yaml import Document


class Mapped(NamedTuple):
    """What a manifest became."""

    data: Mapping[str, object]
    """The settings."""
    document: Document
    """The same, each at the line of the field it comes from."""
    problems: list[Problem]
    """All that is wrong with the manifest itself."""
    notes: list[Note]


class Paths(NamedTuple):
    """What the router serves."""

    requests: frozenset[str]
    probes: frozenset[str]


def translate(text: str, file: str, told: str | None, able: Able, paths: Paths) -> Mapped:
    """Map the one endpoint in a file. `told`: where its workers are, instead of its annotation.

    Raises SettingsError where there is no endpoint to map.
    """
    manifest, others = find(text, file)
    reading = Reading(manifest, able)
    ours = own.parse_own(reading, manifest)
    workers = place_workers(reading, told, own.count_workers(reading, ours))
    chosen = choose_strategy(reading)
    strategy = own.name_strategy(ours) or chosen
    check_cache(reading, strategy, own.asks(ours))  # what it needs of variables, it notes
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
