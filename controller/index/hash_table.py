"""A compact map from an engine's block names to references: 16 bytes per name once settled.

New names go into a dictionary, and from there, many at a time, into the `pages` they belong to. A
page that has got many is settled later, and names of blocks that are gone are looked for later: a
little with every event (`Tally.tidy`), as all at once would take seconds in a large index.

A page of names: those from one name up to the next page's first, each with its reference.

Most of them are in two sorted arrays, where a name is found by binary search. New ones are in a
dictionary, and a name that is removed is marked. When there are many of either, the page is due: it
is replaced by pages of at most `PAGE` names that have neither, so this never takes long.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

# Importing numpy takes 17 MB, and only processes with an index need it.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    #: Tells which of these references stand for blocks that still exist.
    There = Callable[[Words], NDArray[np.bool_]]

#: A page is due when it has as many new names as this plus an eighth of the others.
FEW = 256
#: Most names in a page that was just settled.
PAGE = 1 << 16
#: Most names of which it is looked up at once whether their blocks still exist, which takes longer.
SLICE = 1 << 12
#: Marks a removed name in the arrays; references are never 0.
GONE = 0


class Page:
    """Names next to each other."""

    __slots__ = (
        *("came", "due", "first", "fresh", "hollow", "many", "struck", "view"),
        *("_hashes", "_keys"),
    )

    def __init__(self, first: int, hashes: "Words", keys: "Words") -> None:
        """`first` is the lowest name that belongs here; `hashes` are sorted."""
        self.first = first
        self.view = (hashes, keys)
        """The arrays. That of the names is never written to."""
        self._hashes: memoryview = memoryview(hashes.data)
        self._keys: memoryview = memoryview(keys.data)
        self.fresh: dict[int, int] = {}
        self.came = self.struck = 0
        """How many names were added, and how many of the arrays were removed."""
        self.many = max(1, FEW + len(self) // 8)
        """It is due when so many names were added."""
        self.hollow = max(1, min(len(self), FEW + len(self) // 2))
        """It is due when so many names of the arrays were removed."""
        self.due = False
        """Whether it waits to be settled."""

    def __len__(self) -> int:
        """Return the number of names in the arrays, also of those that were removed since."""
        return len(self._hashes)

    @property
    def left(self) -> int:
        """About how many names there are."""
        return len(self) - self.struck + self.came

    def take(self, names: dict[int, int]) -> bool:
        """Add names, in a dictionary that is given away; return whether it is due."""
        if self.fresh:
            self.fresh.update(names)
        else:
            self.fresh = names
        self.came += len(names)
        return self.came >= self.many

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
            self._keys[at] = GONE
            self.struck += 1
        return key

    def strike(self, name: int, there: "There") -> int:
        """Remove names of blocks that are gone, from `name` on, in a slice of the arrays.

        Return the name where to go on, or 0 at the end.
        """
        start = bisect_left(self._hashes, name)
        keys = self.view[1][start : start + SLICE]
        gone = ~there(keys)
        self.struck += int((keys[gone] != GONE).sum())
        keys[gone] = GONE
        stop = start + len(keys)
        return self._hashes[stop] if stop < len(self) else 0

    def settled(self) -> "list[Page]":
        """Return pages with all its names in arrays; none if there are no names."""
        hashes, keys = self._merged()
        alive = keys != GONE
        if not alive.all():
            hashes, keys = hashes[alive], keys[alive]
        if len(hashes) <= PAGE:
            return [Page(self.first, hashes, keys)] if len(hashes) else []
        pieces = -(-len(hashes) // PAGE)
        cuts = [len(hashes) * piece // pieces for piece in range(pieces + 1)]
        return [
            Page(
                int(hashes[start]) if start else self.first,
                *(hashes[start:stop].copy(), keys[start:stop].copy()),
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

    def joined(self, after: "Page") -> "Page":
        """Return one page with the names of this and of the next."""
        import numpy as np  # noqa: PLC0415

        pairs = zip(self.view, after.view, strict=True)
        page = Page(self.first, *(np.concatenate(pair) for pair in pairs))
        page.fresh = self.fresh | after.fresh
        return page


def columns(names: dict[int, int]) -> "tuple[Words, Words]":
    """Return the names, sorted, and the reference of each."""
    import numpy as np  # noqa: PLC0415

    hashes = np.fromiter(names.keys(), np.uint64, len(names))
    keys = np.fromiter(names.values(), np.uint64, len(names))
    order = np.argsort(hashes)
    return hashes[order], keys[order]


if TYPE_CHECKING:
    #: All names in dictionaries, and the arrays of each page.
    Copied = tuple[dict[int, int], list[Words], list[Words]]

#: Most names that wait to be moved into pages.
_FRONT = 1 << 13
#: Bytes per name in a dictionary, for the number and its slot. Measured, with room to grow.
FRESH_BYTES = 130
#: Bytes per name in the arrays.
SETTLED_BYTES = 16


class Tally:
    """Adds up the size of several maps, and knows what is to be tidied up in them."""

    __slots__ = ("bytes", "due", "gone", "struck")

    def __init__(self) -> None:
        self.bytes = 0
        """Estimated size in memory."""
        self.gone = self.struck = 0
        """How many names are doubtful and not looked for yet, and how many removed ones are still
        in arrays."""
        self.due: deque[tuple[Names, Page | None]] = deque()
        """Pages that are to be settled; without a page, names that are to be looked up."""

    @property
    def promised(self) -> int:
        """Bytes that will be free once all is tidied up."""
        return SETTLED_BYTES * (self.gone + self.struck)

    def tidy(self, number: int) -> bool:
        """Tidy up about `number` names; return False if there was nothing to do."""
        found = bool(self.due)
        while self.due and number > 0:
            names, page = self.due.popleft()
            if page is not None:
                number -= FEW + len(page)
                names.settle(page)
            else:
                number -= 4 * SLICE
                names.sweep()
        return found


class Names:
    """A map from 64-bit names to references, which are from 1 to 2**63."""

    __slots__ = (
        *("_doubted", "_firsts", "_front", "_hand", "_kept", "_pages", "_queued", "_room"),
        *("_settled", "_tally", "_there"),
    )

    def __init__(self, tally: Tally) -> None:
        """Count the size in `tally`, together with that of other maps."""
        self._tally = tally
        self._kept = self._settled = self._room = self._doubted = self._queued = 0
        self._begin()

    def _begin(self) -> None:
        self._front: dict[int, int] = {}
        self._pages = [_empty()]
        self._firsts = [0]
        """Where each page begins."""
        self._tally.gone -= self._doubted
        self._doubted = self._hand = 0
        """How many names are doubtful, and the name that is looked up next."""
        self._there: There | None = None
        self._count(0, 0)

    def _count(self, settled: int, kept: int) -> None:
        """Set the number of names in arrays, and in dictionaries of pages."""
        before = self.bytes
        self._settled, self._kept = settled, kept
        # The memory of the dictionaries will be needed again before the pages are due again, so
        # their size at that point is counted already now, however few names are in them.
        self._room = max(settled // 8, kept + len(self._front))
        self._tally.bytes += self.bytes - before

    @property
    def bytes(self) -> int:
        """Estimated size in memory, as counted in the tally."""
        return self._room * FRESH_BYTES + self._settled * SETTLED_BYTES

    def add(self, hashes: Sequence[int], keys: Iterable[int]) -> None:
        """Give names to blocks that have no name here yet, or the same one."""
        self._front.update(zip(hashes, keys, strict=False))
        number = len(self._front)
        if (size := number + self._kept) > self._room:
            self._tally.bytes += (size - self._room) * FRESH_BYTES
            self._room = size
        if number > FEW + min(self._settled // 8, _FRONT):
            self._spread()

    def get(self, name: int) -> int | None:
        """Return the reference to the block with that name, or None."""
        key = self._front.get(name)
        if key is None:
            key = self._pages[bisect_right(self._firsts, name) - 1].get(name)
        return key

    def pop(self, name: int) -> int | None:
        """Remove a name; return the reference that it stood for, or None."""
        key = self._front.pop(name, None)
        page = self._pages[bisect_right(self._firsts, name) - 1]
        before = page.struck
        other = page.pop(name)
        self._tally.struck += page.struck - before
        if page.struck >= page.hollow:
            self._put_off(page)
        return key or other

    def references(self) -> "Words":
        """Return the references of all names; some may occur twice, and some may be 0."""
        import numpy as np  # noqa: PLC0415

        dicts = [self._front, *(page.fresh for page in self._pages)]
        fresh = [np.fromiter(one.values(), np.uint64, len(one)) for one in dicts]
        return np.concatenate([*fresh, *(page.view[1] for page in self._pages)])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over every name and its reference."""
        names, keys = told(self.copy())
        return zip(names.tolist(), keys.tolist(), strict=True)

    def copy(self) -> "Copied":
        """Return a copy for `told`, which takes longer but can run in another thread."""
        fresh: dict[int, int] = {}
        for page in self._pages:
            fresh.update(page.fresh)
        fresh.update(self._front)
        views = [page.view for page in self._pages]
        return fresh, [hashes for hashes, _ in views], [keys.copy() for _, keys in views]

    def doubt(self, number: int, there: "There") -> None:
        """Note that `number` names stand for blocks that are not there any more."""
        self._doubted += number
        self._tally.gone += number
        self._there = there
        self._queue()

    def _queue(self) -> None:
        """Have slices swept, in proportion to the doubtful names; at most each slice once."""
        enough = max(1, min(FEW + self._settled // 8, SLICE // 8))
        most = min(self._doubted // enough, 1 + self._settled // SLICE)
        while self._queued < most:
            self._queued += 1
            self._tally.due.append((self, None))

    def sweep(self) -> None:
        """Drop names of blocks that are gone among the next ones; all in turn, in their order."""
        share = self._doubted // max(1, self._queued)
        self._queued -= 1
        self._doubted -= share
        self._tally.gone -= share
        if self._there is None:
            return
        if self._settled < SLICE:  # if there are few names, most of them are new
            self._settle_all()
        at = bisect_right(self._firsts, self._hand) - 1
        page, after = self._pages[at], (*self._firsts[at + 1 : at + 2], 0)
        before = page.struck
        self._hand = page.strike(self._hand, self._there) or after[0]
        self._tally.struck += page.struck - before
        self._queue()
        if page.struck >= min(page.many // 2, page.hollow):
            self._put_off(page)

    def purge(self, there: "There") -> None:
        """Drop the names of all blocks that are not there any more, now."""
        self._tally.gone -= self._doubted
        self._doubted = 0
        self._settle_all()
        for page in self._pages:
            before, name = page.struck, page.strike(page.first, there)
            while name:
                name = page.strike(name, there)
            self._tally.struck += page.struck - before
        self._settle_all()

    def _settle_all(self) -> None:
        self._spread()
        for page in list(self._pages):
            self.settle(page)

    def clear(self) -> None:
        """Remove all names."""
        self._tally.struck -= sum(page.struck for page in self._pages)
        self._begin()

    def _put_off(self, page: Page) -> None:
        if not page.due:
            page.due = True
            self._tally.due.append((self, page))

    def _spread(self) -> None:
        """Move new names into their pages."""
        front, self._front = self._front, {}
        for page, names in zip(self._pages, self._divided(front), strict=True):
            if names and page.take(names):
                self._put_off(page)
        self._count(self._settled, self._kept + len(front))

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

    def settle(self, page: Page) -> None:
        """Replace a page by settled ones, unless that was done since; join two that are small."""
        at = bisect_right(self._firsts, page.first) - 1
        if self._pages[at] is not page:
            return
        low, old, kept, struck = at, len(page), page.came, page.struck
        if at and page.left + (before := self._pages[at - 1]).left < PAGE // 4:
            low, old, kept = at - 1, old + len(before), kept + before.came
            struck += before.struck
            page = before.joined(page)
        pages = page.settled()
        if not pages and len(self._pages) == at + 1 - low:
            pages = [_empty()]
        self._pages[low : at + 1] = pages
        self._firsts[low : at + 1] = [one.first for one in pages]
        self._firsts[0] = self._pages[0].first = 0
        self._tally.struck -= struck
        self._count(self._settled + sum(map(len, pages)) - old, self._kept - kept)


def told(copied: "Copied") -> "tuple[Words, Words]":
    """Return all names in a copy, and the reference of each."""
    import numpy as np  # noqa: PLC0415

    fresh, *arrays = copied
    hashes, keys = (np.concatenate(one) for one in arrays)
    names, values = columns(fresh)
    there = (keys != GONE) & ~np.isin(hashes, names)
    return np.append(names, hashes[there]), np.append(values, keys[there])


def _empty() -> Page:
    import numpy as np  # noqa: PLC0415

    return Page(0, np.empty(0, np.uint64), np.empty(0, np.uint64))
