"""A compact map from an engine's hashes of blocks to references: 16 bytes for each.

An engine's hash of a block is called its name here. New names go into a buffer, and from there,
many at a time, into the pages they belong to. A page has the names from its first one up to the
next page's first: most of them in two sorted arrays, where a binary search finds them, new ones in
a dictionary. A name that is removed leaves a tombstone. A page with many new names or tombstones is
due: it is replaced by pages of a bounded number of names that have neither. That is done later,
as is the search for names of gone blocks: a little with every event (`Compaction.compact`), as
all at once would take seconds in a large index.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

# Importing numpy takes 17 MB, and only processes with an index need it.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    #: Tells which of these references stand for blocks that still exist.
    Exists = Callable[[Words], NDArray[np.bool_]]
    #: All names in dictionaries, and the arrays of each page.
    TableCopy = tuple[dict[int, int], list[Words], list[Words]]

#: Marks a removed name in the arrays; references are never 0.
TOMBSTONE = 0
#: Bytes per name in a dictionary, for the number and its slot. Measured, with room to grow.
DICT_ENTRY_BYTES = 130
#: Bytes per name in the arrays.
ARRAY_ENTRY_BYTES = 16


class TableSizes(NamedTuple):
    """How much is compacted at a time, in names."""

    page: int = 1 << 16
    """Most names in a page that was just compacted."""
    pending: int = 256
    """A page is due when it has as many new names as this plus an eighth of the others."""
    slice: int = 1 << 12
    """Most names of which it is looked up at once whether their blocks still exist."""
    buffered: int = 1 << 13
    """Most names that wait to be moved into pages."""


DEFAULT_SIZES = TableSizes()


class TablePage:
    """Names next to each other."""

    __slots__ = (
        *("added", "due", "first", "fresh", "max_tombstones", "max_added", "tombstones", "view"),
        *("_hashes", "_keys", "_sizes"),
    )

    def __init__(self, first: int, hashes: "Words", keys: "Words", sizes: TableSizes) -> None:
        """`first` is the lowest name that belongs here; `hashes` are sorted."""
        self._sizes = sizes
        self.first = first
        self.view = (hashes, keys)
        """The arrays. That of the names is never written to."""
        self._hashes: memoryview = memoryview(hashes.data)
        self._keys: memoryview = memoryview(keys.data)
        self.fresh: dict[int, int] = {}
        self.added = self.tombstones = 0
        """How many names were added, and how many of the arrays were removed."""
        self.max_added = max(1, sizes.pending + len(self) // 8)
        """It is due when so many names were added."""
        self.max_tombstones = max(1, min(len(self), sizes.pending + len(self) // 2))
        """It is due when so many names of the arrays were removed."""
        self.due = False
        """Whether it waits to be compacted."""

    def __len__(self) -> int:
        """Return the number of names in the arrays, also of those that were removed since."""
        return len(self._hashes)

    @property
    def left(self) -> int:
        """About how many names there are."""
        return len(self) - self.tombstones + self.added

    def take(self, names: dict[int, int]) -> bool:
        """Add names, in a dictionary that is given away; return whether it is due."""
        if self.fresh:
            self.fresh.update(names)
        else:
            self.fresh = names
        self.added += len(names)
        return self.added >= self.max_added

    def get(self, name: int) -> int | None:
        """Return the reference to the block with that name, or None."""
        key = self.fresh.get(name)
        if key is None:
            hashes = self._hashes
            at = bisect_left(hashes, name)
            if at < len(hashes) and hashes[at] == name:
                key = self._keys[at] or None
        return key

    def pop(self, name: int) -> int | None:
        """Remove a name; return the reference that it stood for, or None."""
        key = self.fresh.pop(name, None)
        hashes = self._hashes
        at = bisect_left(hashes, name)
        if at < len(hashes) and hashes[at] == name and self._keys[at]:
            key = key or self._keys[at]
            self._keys[at] = TOMBSTONE
            self.tombstones += 1
        return key

    def drop_missing(self, name: int, exists: "Exists") -> int:
        """Remove names of blocks that are gone, from `name` on, in a slice of the arrays.

        Return the name where to go on, or 0 at the end.
        """
        start = bisect_left(self._hashes, name)
        keys = self.view[1][start : start + self._sizes.slice]
        gone = ~exists(keys)
        self.tombstones += int((keys[gone] != TOMBSTONE).sum())
        keys[gone] = TOMBSTONE
        stop = start + len(keys)
        return self._hashes[stop] if stop < len(self) else 0

    def compacted(self) -> "list[TablePage]":
        """Return pages with all its names in arrays; none if there are no names."""
        hashes, keys = self._merged()
        alive = keys != TOMBSTONE
        if not alive.all():
            hashes, keys = hashes[alive], keys[alive]
        if len(hashes) <= self._sizes.page:
            return [TablePage(self.first, hashes, keys, self._sizes)] if len(hashes) else []
        pieces = -(-len(hashes) // self._sizes.page)
        cuts = [len(hashes) * piece // pieces for piece in range(pieces + 1)]
        return [
            TablePage(
                int(hashes[start]) if start else self.first,
                *(hashes[start:stop].copy(), keys[start:stop].copy(), self._sizes),
            )
            for start, stop in pairwise(cuts)
        ]

    def _merged(self) -> "tuple[Words, Words]":
        import numpy as np  # noqa: PLC0415

        hashes, keys = self.view
        if not self.fresh:
            return hashes, keys
        new, values = columns(self.fresh)
        where = np.searchsorted(hashes, new)
        had = where < len(hashes)
        had[had] = hashes[where[had]] == new[had]
        keys[where[had]] = values[had]
        where, new, values = where[~had], new[~had], values[~had]
        return np.insert(hashes, where, new), np.insert(keys, where, values)

    def joined(self, after: "TablePage") -> "TablePage":
        """Return one page with the names of this and of the next."""
        import numpy as np  # noqa: PLC0415

        pairs = zip(self.view, after.view, strict=True)
        hashes, keys = (np.concatenate(pair) for pair in pairs)
        page = TablePage(self.first, hashes, keys, self._sizes)
        page.fresh = self.fresh | after.fresh
        return page


def columns(names: dict[int, int]) -> "tuple[Words, Words]":
    """Return the names, sorted, and the reference of each."""
    import numpy as np  # noqa: PLC0415

    hashes = np.fromiter(names.keys(), np.uint64, len(names))
    keys = np.fromiter(names.values(), np.uint64, len(names))
    order = np.argsort(hashes)
    return hashes[order], keys[order]


class Compaction:
    """The compaction that several tables still need, and their size."""

    __slots__ = ("bytes", "due", "sizes", "stale", "tombstones")

    def __init__(self, sizes: TableSizes = DEFAULT_SIZES) -> None:
        self.sizes = sizes
        self.bytes = 0
        """Estimated size in memory."""
        self.stale = self.tombstones = 0
        """How many names of gone blocks were not looked for yet; how many tombstones there are."""
        self.due: deque[tuple[HashTable, TablePage | None]] = deque()
        """Pages that are to be compacted; without a page, names that are to be looked up."""

    @property
    def reclaimable(self) -> int:
        """Bytes that will be free once all is compacted."""
        return ARRAY_ENTRY_BYTES * (self.stale + self.tombstones)

    def compact(self, number: int) -> bool:
        """Compact about `number` names; return False if there was nothing to do."""
        needed = bool(self.due)
        while self.due and number > 0:
            table, page = self.due.popleft()
            if page is not None:
                number -= self.sizes.pending + len(page)
                table.compact(page)
            else:
                number -= 4 * self.sizes.slice
                table.sweep()
        return needed


class HashTable:
    """A map from 64-bit names to references, which are from 1 to 2**63."""

    __slots__ = (
        *("_stale", "_firsts", "_buffer", "_cursor", "_in_dicts", "_pages", "_queued", "_reserved"),
        *("_in_arrays", "_compaction", "_exists", "_sizes"),
    )

    def __init__(self, compaction: Compaction) -> None:
        """Count the size in `compaction`, together with that of other tables."""
        self._compaction, self._sizes = compaction, compaction.sizes
        self._in_dicts = self._in_arrays = self._reserved = self._stale = self._queued = 0
        self._begin()

    def _begin(self) -> None:
        self._buffer: dict[int, int] = {}
        self._pages = [_empty_page(self._sizes)]
        self._firsts = [0]
        """Where each page begins."""
        self._compaction.stale -= self._stale
        self._stale = self._cursor = 0
        """How many names of blocks that are gone it has, and the name that is looked up next."""
        self._exists: Exists | None = None
        self._count(0, 0)

    def _count(self, in_arrays: int, in_dicts: int) -> None:
        """Set the number of names in arrays, and in dictionaries of pages."""
        before = self.bytes
        self._in_arrays, self._in_dicts = in_arrays, in_dicts
        # The memory of the dictionaries will be needed again before the pages are due again, so
        # their size at that point is counted already now, however few names are in them.
        self._reserved = max(in_arrays // 8, in_dicts + len(self._buffer))
        self._compaction.bytes += self.bytes - before

    @property
    def bytes(self) -> int:
        """Estimated size in memory, as counted in the `Compaction`."""
        return self._reserved * DICT_ENTRY_BYTES + self._in_arrays * ARRAY_ENTRY_BYTES

    def add(self, hashes: Sequence[int], keys: Iterable[int]) -> None:
        """Give names to blocks that have no name here yet, or the same one."""
        self._buffer.update(zip(hashes, keys, strict=False))
        number = len(self._buffer)
        if (size := number + self._in_dicts) > self._reserved:
            self._compaction.bytes += (size - self._reserved) * DICT_ENTRY_BYTES
            self._reserved = size
        if number > self._sizes.pending + min(self._in_arrays // 8, self._sizes.buffered):
            self._flush()

    def get(self, name: int) -> int | None:
        """Return the reference to the block with that name, or None."""
        key = self._buffer.get(name)
        if key is None:
            key = self._pages[bisect_right(self._firsts, name) - 1].get(name)
        return key

    def pop(self, name: int) -> int | None:
        """Remove a name; return the reference that it stood for, or None."""
        key = self._buffer.pop(name, None)
        page = self._pages[bisect_right(self._firsts, name) - 1]
        before = page.tombstones
        other = page.pop(name)
        self._compaction.tombstones += page.tombstones - before
        if page.tombstones >= page.max_tombstones:
            self._schedule(page)
        return key or other

    def references(self) -> "Words":
        """Return the references of all names; some may occur twice, and some may be 0."""
        import numpy as np  # noqa: PLC0415

        dicts = [self._buffer, *(page.fresh for page in self._pages)]
        buffered = [np.fromiter(fresh.values(), np.uint64, len(fresh)) for fresh in dicts]
        return np.concatenate([*buffered, *(page.view[1] for page in self._pages)])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over every name and its reference."""
        names, keys = entries(self.copy())
        return zip(names.tolist(), keys.tolist(), strict=True)

    def copy(self) -> "TableCopy":
        """Return a copy for `entries`, which takes longer but can run in another thread."""
        fresh: dict[int, int] = {}
        for page in self._pages:
            fresh.update(page.fresh)
        fresh.update(self._buffer)
        views = [page.view for page in self._pages]
        return fresh, [hashes for hashes, _ in views], [keys.copy() for _, keys in views]

    def mark_stale(self, number: int, exists: "Exists") -> None:
        """Note that `number` names stand for blocks that are not there any more."""
        self._stale += number
        self._compaction.stale += number
        self._exists = exists
        self._queue()

    def _queue(self) -> None:
        """Have slices swept, in proportion to the stale names; at most each slice once."""
        enough = max(
            1,
            min(
                self._sizes.pending + self._in_arrays // 8,
                self._sizes.slice // 8,
            ),
        )
        most = min(self._stale // enough, 1 + self._in_arrays // self._sizes.slice)
        while self._queued < most:
            self._queued += 1
            self._compaction.due.append((self, None))

    def sweep(self) -> None:
        """Drop names of blocks that are gone among the next ones; all in turn, in their order."""
        share = self._stale // max(1, self._queued)
        self._queued -= 1
        self._stale -= share
        self._compaction.stale -= share
        if self._exists is None:
            return
        if self._in_arrays < self._sizes.slice:  # if there are few names, most of them are new
            self._compact_all()
        at = bisect_right(self._firsts, self._cursor) - 1
        page, after = self._pages[at], (*self._firsts[at + 1 : at + 2], 0)
        before = page.tombstones
        self._cursor = page.drop_missing(self._cursor, self._exists) or after[0]
        self._compaction.tombstones += page.tombstones - before
        self._queue()
        if page.tombstones >= min(page.max_added // 2, page.max_tombstones):
            self._schedule(page)

    def purge(self, exists: "Exists") -> None:
        """Drop the names of all blocks that are not there any more, now."""
        self._compaction.stale -= self._stale
        self._stale = 0
        self._compact_all()
        for page in self._pages:
            before, name = page.tombstones, page.drop_missing(page.first, exists)
            while name:
                name = page.drop_missing(name, exists)
            self._compaction.tombstones += page.tombstones - before
        self._compact_all()

    def _compact_all(self) -> None:
        self._flush()
        for page in list(self._pages):
            self.compact(page)

    def clear(self) -> None:
        """Remove all names."""
        self._compaction.tombstones -= sum(page.tombstones for page in self._pages)
        self._begin()

    def _schedule(self, page: TablePage) -> None:
        if not page.due:
            page.due = True
            self._compaction.due.append((self, page))

    def _flush(self) -> None:
        """Move new names into their pages."""
        buffered, self._buffer = self._buffer, {}
        for page, names in zip(self._pages, self._divided(buffered), strict=True):
            if names and page.take(names):
                self._schedule(page)
        self._count(self._in_arrays, self._in_dicts + len(buffered))

    def _divided(self, names: dict[int, int]) -> Iterator[dict[int, int]]:
        """Return the names that belong to each page."""
        import numpy as np  # noqa: PLC0415

        if len(self._pages) == 1:
            yield names
            return
        hashes, keys = columns(names)
        cuts = np.searchsorted(hashes, np.array(self._firsts[1:], np.uint64)).tolist()
        # Not pairs of both: many tuples would make the garbage collector look at everything.
        left, right = hashes.tolist(), keys.tolist()
        for start, stop in pairwise((0, *cuts, len(names))):
            yield dict(zip(left[start:stop], right[start:stop], strict=True))

    def compact(self, page: TablePage) -> None:
        """Replace a page by compacted ones, unless that was done since; join two that are small."""
        at = bisect_right(self._firsts, page.first) - 1
        if self._pages[at] is not page:
            return
        low, old, added, tombstones = at, len(page), page.added, page.tombstones
        if at and page.left + (before := self._pages[at - 1]).left < self._sizes.page // 4:
            low, old, added = at - 1, old + len(before), added + before.added
            tombstones += before.tombstones
            page = before.joined(page)
        pages = page.compacted()
        if not pages and len(self._pages) == at + 1 - low:
            pages = [_empty_page(self._sizes)]
        self._pages[low : at + 1] = pages
        self._firsts[low : at + 1] = [page.first for page in pages]
        self._firsts[0] = self._pages[0].first = 0
        self._compaction.tombstones -= tombstones
        self._count(self._in_arrays + sum(map(len, pages)) - old, self._in_dicts - added)


def entries(copied: "TableCopy") -> "tuple[Words, Words]":
    """Return all names in a copy, and the reference of each."""
    import numpy as np  # noqa: PLC0415

    fresh, *arrays = copied
    hashes, keys = (np.concatenate(parts) for parts in arrays)
    names, values = columns(fresh)
    kept = (keys != TOMBSTONE) & ~np.isin(hashes, names)
    return np.append(names, hashes[kept]), np.append(values, keys[kept])


def _empty_page(sizes: TableSizes) -> TablePage:
    import numpy as np  # noqa: PLC0415

    return TablePage(0, np.empty(0, np.uint64), np.empty(0, np.uint64), sizes)
