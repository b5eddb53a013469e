"""A picture as bytes, and back: what a controller takes over from an earlier one.

The format is msgpack: the runs, parents first, with who holds what of them, and the places with
their names. For each stream it has how far it was, so that a replay can tell whether the engine is
still the same, and which of its groups of layers counts; otherwise removals of other groups' blocks
would be applied.

A picture: an immutable copy of who holds what at one moment.

Taking it is quick and must not be interrupted. Encoding it (`snapshot.py`) may take longer, in a
thread.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from xxhash import xxh3_64_digest

from controller.events.decode import WIDEST, Tier
from controller.events.source import Mark
from controller.index.hash_table import PAGE, told
from controller.index.holdings import MOST_APART, ON_THEIR_WAY, Holdings, Place
from controller.index.tree import BITS, LONGEST, Run, bits, references
from strategies.api import Bytes

if TYPE_CHECKING:
    from controller.index.hash_table import Copied, Words


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

#: Has to change with the format.
VERSION = 4
#: Largest snapshot that is accepted, in bytes.
LARGEST = Bytes(4 << 30)
#: Bytes of the checksum at the end.
_SEAL = 8
#: More than any offset in a run; and the value for a block that is gone.
_WIDEST, _NOWHERE = 1 << BITS, (1 << 64) - 1


class BadSnapshot(ValueError):
    """These bytes are not a snapshot of this version."""


class _Run(msgspec.Struct, array_like=True):
    keys: bytes
    depth: int
    size: int
    parent: int
    held: list[tuple[int, int, list[int]]]
    """Index of a place, how many of the first blocks it holds, and offsets of further ones."""


class _Place(msgspec.Struct, array_like=True):
    worker: str
    tier: int
    names: bytes
    blocks: bytes
    """What each name stands for: the run's index in `runs`, times `_WIDEST`, plus the offset."""
    copies: dict[int, int]
    since: list[int] | None = None
    """See `Place.since`."""
    excused: int = 0


class _Snapshot(msgspec.Struct):
    version: int
    places: list[_Place]
    runs: list[_Run]
    marks: dict[str, Mark]


def written(picture: Picture) -> bytes:
    """Encode a picture. Takes seconds for millions of blocks; safe in any thread."""
    runs = sorted(picture.runs, key=lambda run: run.depth)
    where = {run.number: place for place, run in enumerate(runs)}
    numbers = {place.bit: number for number, place in enumerate(picture.places)}
    block = _blocks(runs)
    return sealed(
        msgspec.msgpack.encode(
            _Snapshot(
                VERSION,
                [_place(place, block) for place in picture.places],
                [_run(run, where, numbers) for run in runs],
                picture.marks,
            )
        )
    )


def sealed(data: bytes) -> bytes:
    """Append the checksum, without which a damaged snapshot might pass as another index."""
    return data + xxh3_64_digest(data)


def _opened(data: bytes) -> memoryview:
    """Return what was sealed. Raises BadSnapshot."""
    within, seal = memoryview(data)[:-_SEAL], data[-_SEAL:]
    if xxh3_64_digest(within) != seal:
        raise BadSnapshot("damaged, or not a snapshot of this release")
    return within


def _blocks(runs: Sequence[RunPicture]) -> "Callable[[Words], Words]":
    """Return a function that converts arrays of references to a snapshot's block numbers."""
    import numpy as np  # noqa: PLC0415 - takes 17 MB, and only processes with an index need it

    known = np.fromiter((run.number for run in runs), np.uint64, len(runs))
    order = np.argsort(known)
    known = np.append(known[order], np.uint64(_NOWHERE))
    first = np.append(order.astype(np.uint64) << np.uint64(BITS), np.uint64(0))
    lengths = np.fromiter((len(run.keys) // 8 for run in runs), np.uint64, len(runs))
    lengths = np.append(lengths[order], np.uint64(0))

    def block(given: "Words") -> "Words":
        numbers, offsets = given >> np.uint64(BITS), given & np.uint64(_WIDEST - 1)
        at = np.searchsorted(known, numbers)
        there = (known[at] == numbers) & (offsets < lengths[at])
        return np.where(there, first[at] + offsets, np.uint64(_NOWHERE))

    return block


def _place(place: PlacePicture, block: "Callable[[Words], Words]") -> _Place:
    import numpy as np  # noqa: PLC0415

    names, blocks = told(place.names)
    twice = np.fromiter(place.copies, np.uint64, len(place.copies))
    copies = dict(zip(block(twice).tolist(), place.copies.values(), strict=True))
    since = None if place.since is None else sorted(place.since)
    blocks = block(blocks)
    return _Place(
        *(place.worker, place.tier, names.tobytes(), blocks.tobytes()),
        *(copies, since, place.excused),
    )


def _run(run: RunPicture, where: dict[int, int], numbers: dict[int, int]) -> _Run:
    length = len(run.keys) // 8
    reached = {**dict.fromkeys(bits(run.full), length), **run.part}
    held = [
        (numbers[bit], reached.get(bit, 0), sorted(run.beyond.get(bit, ())))
        for bit in reached | dict.fromkeys(run.beyond)
    ]
    return _Run(run.keys, run.depth, run.size, where.get(run.parent, -1), held)


def read(data: bytes) -> tuple[Holdings, dict[str, Mark]]:
    """Decode holdings, and how far each stream was. Raises BadSnapshot.

    Takes seconds for millions of blocks; safe in any thread.
    """
    try:
        found = msgspec.msgpack.decode(_opened(data), type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    if found.version != VERSION:
        raise BadSnapshot(f"a snapshot of version {found.version}, not {VERSION}")
    holdings = Holdings()
    try:
        _fill(holdings, found)
    except (ValueError, IndexError, OverflowError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    return holdings, found.marks


def _fill(holdings: Holdings, found: _Snapshot) -> None:
    """Fill empty holdings. Raises ValueError, IndexError, OverflowError."""
    places = [
        holdings.place_of_engine(one.worker, Tier(one.tier), shared=not one.worker)
        for one in found.places
    ]
    runs: list[Run] = []
    for given in found.runs:
        parent = runs[given.parent] if given.parent >= 0 else None
        keys = _words(given.keys)
        if not 0 < len(keys) <= LONGEST or given.depth < 0 or not 0 < given.size <= WIDEST:
            raise ValueError("a run without blocks, or of odd ones")
        if holdings.tree.after(None, 0, keys[0]) is not None:
            raise ValueError("a run that is there twice")
        run = holdings.tree.add(keys, given.depth, given.size, parent, 0)
        runs.append(run)
        for number, held, beyond in given.held:
            place, last = places[number], len(keys)
            if not 0 <= held <= last or any(not held < one < last for one in beyond):
                raise ValueError("blocks outside of their run")
            added = run.add(place.bit, 0, held) if held else 0
            added += sum(run.add(place.bit, one, one + 1) for one in beyond)
            holdings.count(place, given.size, added)
            holdings.loose += run.loose(place.bit)
    for place, one in zip(places, found.places, strict=True):
        _call(place, one, runs)
        holdings.copies += len(place.copies)
        while holdings.tidy(PAGE):
            pass


def _call(place: Place, given: _Place, runs: list[Run]) -> None:
    """Fill a place with the names of its blocks and with extra copies. Raises ValueError."""

    def named(blocks: Iterable[int]) -> Iterator[int]:
        for block in blocks:
            yield references(runs[block // _WIDEST], block % _WIDEST, 1)[0]

    known = [
        (name, block)
        for name, block in zip(_words(given.names), _words(given.blocks), strict=True)
        if block != _NOWHERE
    ]
    place.names.add([name for name, _ in known], named(block for _, block in known))
    more = {block: count for block, count in given.copies.items() if block != _NOWHERE}
    place.copies.update(zip(named(more), more.values(), strict=True))
    if len(given.since or ()) > MOST_APART or not 0 <= given.excused <= ON_THEIR_WAY:
        raise ValueError("more that came since than can be told")
    place.since = None if given.since is None else set(given.since)
    place.excused = given.excused


def _words(data: bytes) -> "array[int]":
    words = array("Q")
    words.frombytes(data)
    return words
