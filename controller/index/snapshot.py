"""A copy of the index as bytes, and back: what a controller takes over from an earlier one.

Copying is quick and must not be interrupted. Encoding the copy may take longer, in a thread.

The format is msgpack: the runs, parents first, with who holds what of them, and the caches with
their names. For each stream it has how far it was, so that a replay can tell whether the engine is
still the same, and which of its groups of layers counts; otherwise removals of other groups' blocks
would be applied.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from xxhash import xxh3_64_digest

from controller.index.block_events import MAX_BLOCK_TOKENS, Mark, Tier
from controller.index.hash_table import DEFAULT_SIZES, entries
from controller.index.holdings import IN_FLIGHT_ANSWERS, MAX_CONFIRMED, Holdings, TierCache
from controller.index.tree import MAX_RUN_BLOCKS, OFFSET_BITS, BlockRun, bits, references
from strategies.api import Bytes

if TYPE_CHECKING:
    from controller.index.hash_table import TableCopy, Words
#: Has to change with the format.
VERSION = 4
#: Largest snapshot that is accepted, in bytes.
MAX_SNAPSHOT_BYTES = Bytes(4 << 30)
#: Bytes of the checksum at the end.
_CHECKSUM_BYTES = 8
#: More than any offset in a run; and the value for a block that is gone.
_RUN_SPAN, _NO_BLOCK = 1 << OFFSET_BITS, (1 << 64) - 1


class RunCopy(NamedTuple):
    """A copy of a run; see the fields of `tree.BlockRun`."""

    number: int
    keys: bytes
    depth: int
    size: int
    parent: int
    """The number of the run that it follows; 0 if it follows none."""
    full: int
    part: Mapping[int, int] | None
    beyond: Mapping[int, frozenset[int]] | None


class TierCopy(NamedTuple):
    """A copy of a cache; see the fields of `holdings.TierCache`."""

    worker: str
    tier: int
    bit: int
    names: "TableCopy"
    copies: Mapping[int, int]
    confirmed: frozenset[int] | None
    ignored_misses: int


class IndexCopy(NamedTuple):
    """An immutable copy of who holds what at one moment."""

    caches: list[TierCopy]
    runs: list[RunCopy]
    marks: dict[str, Mark]


def copy_index(holdings: Holdings, marks: dict[str, Mark]) -> IndexCopy:
    """Copy what is held, and how far each stream is (`marks`, by engine name)."""
    return IndexCopy(
        [
            TierCopy(
                *(cache.worker, int(cache.tier), cache.bit, cache.names.copy()),
                dict(cache.copies),
                None if cache.confirmed is None else frozenset(cache.confirmed),
                cache.ignored_misses,
            )
            for cache in holdings.caches()
        ],
        [
            RunCopy(
                run.number,
                run.keys.tobytes(),
                run.depth,
                run.size,
                run.parent.number if run.parent is not None else 0,
                run.full,
                run.part and dict(run.part),
                {bit: frozenset(there) for bit, there in run.beyond.items()}
                if run.beyond
                else None,
            )
            for run in holdings.tree.ring
            if run.keys
        ],
        dict(marks),
    )


class BadSnapshot(ValueError):
    """These bytes are not a snapshot of this version."""


class _RunRecord(msgspec.Struct, array_like=True):
    keys: bytes
    depth: int
    size: int
    parent: int
    held: list[tuple[int, int, list[int]]]
    """Index of a cache, how many of the first blocks it holds, and offsets of further ones."""


class _TierRecord(msgspec.Struct, array_like=True):
    worker: str
    tier: int
    names: bytes
    blocks: bytes
    """What each name stands for: the run's index in `runs`, times `_RUN_SPAN`, plus the offset."""
    copies: dict[int, int]
    confirmed: list[int] | None = None
    """See `TierCache.confirmed`."""
    ignored_misses: int = 0


class _Snapshot(msgspec.Struct):
    version: int
    caches: list[_TierRecord] = msgspec.field(name="places")
    runs: list[_RunRecord]
    marks: dict[str, Mark]


def encode_snapshot(copied: IndexCopy) -> bytes:
    """Encode a copy. Takes seconds for millions of blocks; safe in any thread."""
    runs = sorted(copied.runs, key=lambda run: run.depth)
    where = {run.number: position for position, run in enumerate(runs)}
    numbers = {cache.bit: number for number, cache in enumerate(copied.caches)}
    block = _blocks(runs)
    return with_checksum(
        msgspec.msgpack.encode(
            _Snapshot(
                VERSION,
                [_tier_record(cache, block) for cache in copied.caches],
                [_run_record(run, where, numbers) for run in runs],
                copied.marks,
            )
        )
    )


def with_checksum(data: bytes) -> bytes:
    """Append the checksum, without which a damaged snapshot might pass as another index."""
    return data + xxh3_64_digest(data)


def _checked(data: bytes) -> memoryview:
    """Return what comes before the checksum. Raises BadSnapshot."""
    within, checksum = memoryview(data)[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if xxh3_64_digest(within) != checksum:
        raise BadSnapshot("damaged, or not a snapshot of this release")
    return within


def _blocks(runs: Sequence[RunCopy]) -> "Callable[[Words], Words]":
    """Return a function that converts arrays of references to a snapshot's block numbers."""
    import numpy as np  # noqa: PLC0415 - takes 17 MB, and only processes with an index need it

    known = np.fromiter((run.number for run in runs), np.uint64, len(runs))
    order = np.argsort(known)
    known = np.append(known[order], np.uint64(_NO_BLOCK))
    first = np.append(order.astype(np.uint64) << np.uint64(OFFSET_BITS), np.uint64(0))
    lengths = np.fromiter((len(run.keys) // 8 for run in runs), np.uint64, len(runs))
    lengths = np.append(lengths[order], np.uint64(0))

    def block(given: "Words") -> "Words":
        numbers, offsets = given >> np.uint64(OFFSET_BITS), given & np.uint64(_RUN_SPAN - 1)
        at = np.searchsorted(known, numbers)
        there = (known[at] == numbers) & (offsets < lengths[at])
        return np.where(there, first[at] + offsets, np.uint64(_NO_BLOCK))

    return block


def _tier_record(cache: TierCopy, block: "Callable[[Words], Words]") -> _TierRecord:
    import numpy as np  # noqa: PLC0415

    names, blocks = entries(cache.names)
    twice = np.fromiter(cache.copies, np.uint64, len(cache.copies))
    copies = dict(zip(block(twice).tolist(), cache.copies.values(), strict=True))
    confirmed = None if cache.confirmed is None else sorted(cache.confirmed)
    blocks = block(blocks)
    return _TierRecord(
        *(cache.worker, cache.tier, names.tobytes(), blocks.tobytes()),
        *(copies, confirmed, cache.ignored_misses),
    )


def _run_record(run: RunCopy, where: dict[int, int], numbers: dict[int, int]) -> _RunRecord:
    length = len(run.keys) // 8
    reached = dict.fromkeys(bits(run.full), length) | dict(run.part or {})
    beyond = run.beyond or {}
    held = [
        (numbers[bit], reached.get(bit, 0), sorted(beyond.get(bit, ())))
        for bit in reached | dict.fromkeys(beyond)
    ]
    return _RunRecord(run.keys, run.depth, run.size, where.get(run.parent, -1), held)


def decode_snapshot(data: bytes) -> tuple[Holdings, dict[str, Mark]]:
    """Decode holdings, and how far each stream was. Raises BadSnapshot.

    Takes seconds for millions of blocks; safe in any thread.
    """
    try:
        snapshot = msgspec.msgpack.decode(_checked(data), type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    if snapshot.version != VERSION:
        raise BadSnapshot(f"a snapshot of version {snapshot.version}, not {VERSION}")
    holdings = Holdings()
    try:
        _fill(holdings, snapshot)
    except (ValueError, IndexError, OverflowError) as error:
        raise BadSnapshot(f"not a snapshot: {error}") from None
    return holdings, snapshot.marks


def _fill(holdings: Holdings, snapshot: _Snapshot) -> None:
    """Fill empty holdings. Raises ValueError, IndexError, OverflowError."""
    caches = [
        holdings.cache_for(record.worker, Tier(record.tier), shared=not record.worker)
        for record in snapshot.caches
    ]
    runs: list[BlockRun] = []
    for record in snapshot.runs:
        parent = runs[record.parent] if record.parent >= 0 else None
        keys, size = _words(record.keys), record.size
        sound = 0 < len(keys) <= MAX_RUN_BLOCKS and 0 < size <= MAX_BLOCK_TOKENS
        if not sound or record.depth < 0:
            raise ValueError("a run without blocks, or of odd ones")
        if holdings.tree.after(None, 0, keys[0]) is not None:
            raise ValueError("a run that is there twice")
        run = holdings.tree.add(keys, record.depth, size, parent, 0)
        runs.append(run)
        for number, held, beyond in record.held:
            cache, last = caches[number], len(keys)
            if not 0 <= held <= last or any(not held < offset < last for offset in beyond):
                raise ValueError("blocks outside of their run")
            added = run.add(cache.bit, 0, held) if held else 0
            added += sum(run.add(cache.bit, offset, offset + 1) for offset in beyond)
            holdings.count(cache, size, added)
            holdings.loose += run.loose(cache.bit)
    for cache, names in zip(caches, snapshot.caches, strict=True):
        _name_blocks(cache, names, runs)
        holdings.copies += len(cache.copies)
        while holdings.compact(DEFAULT_SIZES.page):
            pass


def _name_blocks(cache: TierCache, record: _TierRecord, runs: list[BlockRun]) -> None:
    """Fill a cache with the names of its blocks and with extra copies. Raises ValueError."""

    def named(blocks: Iterable[int]) -> Iterator[int]:
        for block in blocks:
            yield references(runs[block // _RUN_SPAN], block % _RUN_SPAN, 1)[0]

    known = [
        (name, block)
        for name, block in zip(_words(record.names), _words(record.blocks), strict=True)
        if block != _NO_BLOCK
    ]
    cache.names.add([name for name, _ in known], named(block for _, block in known))
    more = {block: count for block, count in record.copies.items() if block != _NO_BLOCK}
    cache.copies.update(zip(named(more), more.values(), strict=True))
    ignored = record.ignored_misses
    if len(record.confirmed or ()) > MAX_CONFIRMED or not 0 <= ignored <= IN_FLIGHT_ANSWERS:
        raise ValueError("more that came since than can be told")
    cache.confirmed = None if record.confirmed is None else set(record.confirmed)
    cache.ignored_misses = record.ignored_misses


def _words(data: bytes) -> "array[int]":
    words = array("Q")
    words.frombytes(data)
    return words
