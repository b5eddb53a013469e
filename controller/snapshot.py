"""An index as bytes, and back: what a controller takes over from the one before it.

msgpack: the runs, parents first, with who holds what of them; the places with their names. Streams
add how far each was, so that a replay can tell whether it is still the same engine, and which of
its groups of layers counts: of the others it would take removals for that one's.
"""

from array import array
from collections.abc import Iterable, Iterator

import msgspec

from controller.events import WIDEST, Tier
from controller.index import Index
from controller.place import Place
from controller.runs import LONGEST, Run, bits
from controller.source import Mark
from controller.tree import references
from strategies.base import Bytes

#: Changes with the form.
VERSION = 3
#: Bytes of a snapshot that is taken in.
LARGEST = Bytes(4 << 30)
#: More than any offset in a run; and a block that is gone.
_WIDEST, _NOWHERE = 1 << 10, (1 << 64) - 1


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
    blocks: bytes
    """What each name stands for: the run's number in `runs`, times `_WIDEST`, and the offset."""
    copies: dict[int, int]


class _Snapshot(msgspec.Struct):
    version: int
    places: list[_Place]
    runs: list[_Run]
    marks: dict[str, Mark]


def dump(index: Index, marks: dict[str, Mark]) -> bytes:
    """Write down an index, and how far each engine's stream is, by the engine's name."""
    places = list(index.places())
    numbers = {place.bit: number for number, place in enumerate(places)}
    runs = sorted((run for run in index.tree.ring if run.keys), key=lambda run: run.depth)
    where = {run: number for number, run in enumerate(runs)}
    return msgspec.msgpack.encode(
        _Snapshot(
            VERSION,
            [_place(place, index, where) for place in places],
            [_run(run, where, numbers) for run in runs],
            marks,
        )
    )


def _place(place: Place, index: Index, where: dict[Run, int]) -> _Place:
    def written(references: Iterable[int]) -> Iterator[int]:
        for reference in references:
            found = index.tree.at(reference)
            yield where[found[0]] * _WIDEST + found[1] if found else _NOWHERE

    names = list(place.names)
    blocks = array("Q", written(reference for _, reference in names))
    copies = dict(zip(written(place.copies), place.copies.values(), strict=True))
    called = array("Q", (name for name, _ in names))
    return _Place(place.worker, int(place.tier), called.tobytes(), blocks.tobytes(), copies)


def _run(run: Run, where: dict[Run, int], numbers: dict[int, int]) -> _Run:
    held = [
        (numbers[bit], run.held(bit), sorted((run.beyond or {}).get(bit, ())))
        for bit in bits(run.places())
    ]
    parent = where[run.parent] if run.parent is not None else -1
    return _Run(run.keys.tobytes(), run.depth, run.size, parent, held)


def restore(index: Index, data: bytes) -> dict[str, Mark]:
    """Fill an empty index; return how far each stream was. Raises BadSnapshot, and fills nothing
    then."""
    try:
        found = msgspec.msgpack.decode(data, type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    if found.version != VERSION:
        raise BadSnapshot(f"a snapshot of version {found.version}, not {VERSION}")
    fresh = Index(index.limit)
    try:
        _fill(fresh, found)
    except (ValueError, IndexError, OverflowError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    index.adopt(fresh)
    return found.marks


def _fill(index: Index, found: _Snapshot) -> None:
    """Put it into a fresh index. Raises ValueError, IndexError, OverflowError."""
    places = [
        index.place_of_engine(one.worker, Tier(one.tier), shared=not one.worker)
        for one in found.places
    ]
    runs: list[Run] = []
    for given in found.runs:
        parent = runs[given.parent] if given.parent >= 0 else None
        keys = _words(given.keys)
        if not 0 < len(keys) <= LONGEST or given.depth < 0 or not 0 < given.size <= WIDEST:
            raise ValueError("a run without blocks, or of odd ones")
        if index.tree.after(None, 0, keys[0]) is not None:
            raise ValueError("a run that is there twice")
        run = index.tree.add(keys, given.depth, given.size, parent, 0)
        runs.append(run)
        for number, held, beyond in given.held:
            place, last = places[number], len(keys)
            if not 0 <= held <= last or any(not held < one < last for one in beyond):
                raise ValueError("blocks outside of their run")
            added = run.add(place.bit, 0, held) if held else 0
            added += sum(run.add(place.bit, one, one + 1) for one in beyond)
            index.count(place, given.size, added)
            index.loose += run.loose(place.bit)
    for place, one in zip(places, found.places, strict=True):
        _call(place, one, runs)
        index.copies += len(place.copies)


def _call(place: Place, given: _Place, runs: list[Run]) -> None:
    """Put in what an engine calls its blocks, and which of them it has more than once."""

    def read(blocks: Iterable[int]) -> Iterator[int]:
        for block in blocks:
            yield references(runs[block // _WIDEST], block % _WIDEST, 1)[0]

    known = [
        (name, block)
        for name, block in zip(_words(given.names), _words(given.blocks), strict=True)
        if block != _NOWHERE
    ]
    place.names.add([name for name, _ in known], read(block for _, block in known))
    more = {block: count for block, count in given.copies.items() if block != _NOWHERE}
    place.copies.update(zip(read(more), more.values(), strict=True))


def _words(data: bytes) -> "array[int]":
    words = array("Q")
    words.frombytes(data)
    return words
