"""A picture: an immutable copy of who holds what at one moment.

Taking it is quick and must not be interrupted. Encoding it (`snapshot.py`) may take longer, in a
thread.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from controller.events.source import Mark
from controller.index.holdings import Holdings

if TYPE_CHECKING:
    from controller.index.hash_table import Copied


class RunPicture(NamedTuple):
    """A copy of a run; see the fields of `runs.Run`."""

    number: int
    keys: bytes
    depth: int
    size: int
    parent: int
    """The number of the run that it follows; 0 if it follows none."""
    full: int
    part: Mapping[int, int]
    beyond: Mapping[int, frozenset[int]]


class PlacePicture(NamedTuple):
    """A copy of a place; see the fields of `place.Place`."""

    worker: str
    tier: int
    bit: int
    names: "Copied"
    copies: Mapping[int, int]
    since: frozenset[int] | None
    excused: int


class Picture(NamedTuple):
    """A copy of everything."""

    places: list[PlacePicture]
    runs: list[RunPicture]
    marks: dict[str, Mark]


def taken(holdings: Holdings, marks: dict[str, Mark]) -> Picture:
    """Copy what is held, and how far each stream is (`marks`, by engine name)."""
    return Picture(
        [
            PlacePicture(
                *(place.worker, int(place.tier), place.bit, place.names.copy()),
                dict(place.copies),
                None if place.since is None else frozenset(place.since),
                place.excused,
            )
            for place in holdings.places()
        ],
        [
            RunPicture(
                run.number,
                run.keys.tobytes(),
                run.depth,
                run.size,
                run.parent.number if run.parent is not None else 0,
                run.full,
                dict(run.part) if run.part else _NOTHING,
                {bit: frozenset(there) for bit, there in run.beyond.items()}
                if run.beyond
                else _NOBODY,
            )
            for run in holdings.tree.ring
            if run.keys
        ],
        dict(marks),
    )


_NOTHING: Mapping[int, int] = {}
_NOBODY: Mapping[int, frozenset[int]] = {}
