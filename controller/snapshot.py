"""An index as bytes, and back: what a controller takes over from the one before it.

msgpack: the runs, parents first, with who holds what of them; the places with their names. Streams
add how far each was, so that a replay can tell whether it is still the same engine.
"""

from array import array
from itertools import repeat
from typing import Any

import msgspec

from controller.events import Tier
from controller.index import Index
from controller.runs import Run, bits
from strategies.base import Bytes

#: Changes with the form.
VERSION = 1
#: Bytes of a snapshot that is taken in.
LARGEST = Bytes(4 << 30)


class BadSnapshot(ValueError):
    """These bytes are no snapshot of this version."""


class _Run(msgspec.Struct, array_like=True):
    keys: bytes
    depth: int
    size: int
    parent: int
    held: list[tuple[int, int, list[int]]]
    """Place, how many of the first blocks, and which ones beyond."""


class _Place(msgspec.Struct, array_like=True):
    worker: str
    tier: int
    names: bytes
    keys: bytes
    copies: dict[int, int]


class _Snapshot(msgspec.Struct):
    version: int
    places: list[_Place]
    runs: list[_Run]
    marks: dict[str, tuple[int, int, int]]


def dump(index: Index, marks: dict[str, tuple[int, int, int]]) -> bytes:
    """Write down an index, and how far each engine's stream is, by the engine's name."""
    places = list(index.places())
    numbers = {place.bit: number for number, place in enumerate(places)}
    runs = sorted((run for run in index.ring if run.keys), key=lambda run: run.depth)
    where = {run: number for number, run in enumerate(runs)}
    return msgspec.msgpack.encode(
        _Snapshot(
            VERSION,
            [_place(place) for place in places],
            [_run(run, where, numbers) for run in runs],
            marks,
        )
    )


def _place(place: Any) -> _Place:  # noqa: ANN401 - a Place
    pairs = list(place.names)
    names = array("Q", (name for name, _ in pairs)).tobytes()
    keys = array("Q", (key for _, key in pairs)).tobytes()
    return _Place(place.worker, int(place.tier), names, keys, place.copies)


def _run(run: Run, where: dict[Run, int], numbers: dict[int, int]) -> _Run:
    held = [
        (numbers[bit], run.held(bit), sorted((run.beyond or {}).get(bit, ())))
        for bit in bits(run.places())
    ]
    parent = where[run.parent] if run.parent is not None else -1
    return _Run(run.keys.tobytes(), run.depth, run.size, parent, held)


def restore(index: Index, data: bytes) -> dict[str, tuple[int, int, int]]:
    """Fill an empty index; return how far each stream was. Raises BadSnapshot, half done maybe."""
    try:
        found = msgspec.msgpack.decode(data, type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    if found.version != VERSION:
        raise BadSnapshot(f"a snapshot of version {found.version}, not {VERSION}")
    try:
        _fill(index, found)
    except (ValueError, IndexError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    return found.marks


def _fill(index: Index, found: _Snapshot) -> None:
    places = []
    for one in found.places:
        place = index.place_of_engine(one.worker, Tier(one.tier), shared=not one.worker)
        place.names.add(_words(one.names), _words(one.keys))
        place.copies.update(one.copies)
        places.append(place)
    runs: list[Run] = []
    for given in found.runs:
        parent = runs[given.parent] if given.parent >= 0 else None
        run = Run(_words(given.keys), given.depth, given.size, parent)
        if not run.keys or given.depth < 0 or given.size < 1:
            raise ValueError("a run without blocks")
        if parent is not None:
            parent.children += 1
        for number, held, beyond in given.held:
            place, last = places[number], len(run.keys)
            if not 0 <= held <= last or any(not held < one < last for one in beyond):
                raise ValueError("blocks outside of their run")
            added = run.add(place.bit, 0, held) if held else 0
            added += sum(run.add(place.bit, one, one + 1) for one in beyond)
            place.blocks += added
            place.sizes.add(given.size)
            index.holders += added
        runs.append(run)
        index.runs += 1
        index.ring.append(run)
        index.blocks.update(zip(run.keys, repeat(run)))


def _words(data: bytes) -> "array[int]":
    words = array("Q")
    words.frombytes(data)
    return words
