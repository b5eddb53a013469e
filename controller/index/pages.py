"""A page of names: those from one name up to the next page's first, each with its reference.

Most of them are in two sorted arrays, where a name is found by binary search. New ones are in a
dictionary, and a name that is removed is marked. When there are many of either, the page is due: it
is replaced by pages of at most `PAGE` names that have neither, so this never takes long.
"""

from bisect import bisect_left
from collections.abc import Callable
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
