"""A compact map from an engine's block names to references: 16 bytes per name once settled.

New names go into a dictionary. When there are many, they are merged into two sorted arrays, where a
name is found by binary search. A name that is removed is marked, and dropped with the next merge.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

# Importing numpy takes 17 MB, and only processes with an index need it.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    #: The dictionary, and both arrays.
    Copied = tuple[dict[int, int], Words, Words]

#: New names are merged when there are more than this plus an eighth of the settled ones.
FEW = 256
#: Bytes per name in the dictionary, for the number and its slot. Measured, with room to grow.
FRESH_BYTES = 130
#: Bytes per name in the arrays.
SETTLED_BYTES = 16
#: Marks a removed name in the arrays; references are never 0.
_GONE = 0


class Tally:
    """Adds up the size of several maps."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0
        """Estimated size in memory."""


class Names:
    """A map from 64-bit names to references, which are from 1 to 2**63."""

    __slots__ = (
        *("_doubted", "_fresh", "_hashes", "_keys", "_known", "_room", "_settled"),
        *("_struck", "_tally", "_view"),
    )

    def __init__(self, tally: Tally) -> None:
        """Count the size in `tally`, together with that of other maps."""
        self._tally = tally
        self._settled = self._room = 0
        self._begin()

    def _begin(self) -> None:
        import numpy as np  # noqa: PLC0415

        self._fresh: dict[int, int] = {}
        self._struck = self._doubted = 0
        self._known: Container[int] = ()
        self._settle(np.empty(0, np.uint64), np.empty(0, np.uint64))

    def _settle(self, hashes: "Words", keys: "Words") -> None:
        # The memory of the dictionary will be needed again before the next merge, so its size at
        # that point is counted already now, however few names are in it.
        before = self.bytes
        self._settled, self._room = len(hashes), len(hashes) // 8
        self._tally.bytes += self.bytes - before
        self._hashes: memoryview = memoryview(hashes.data)
        self._keys: memoryview = memoryview(keys.data)
        self._view = (hashes, keys)

    @property
    def bytes(self) -> int:
        """Estimated size in memory, as counted in the tally."""
        return self._room * FRESH_BYTES + self._settled * SETTLED_BYTES

    def add(self, hashes: Sequence[int], keys: Iterable[int]) -> None:
        """Give names to blocks that have no name here yet, or the same one."""
        self._fresh.update(zip(hashes, keys, strict=False))
        if (size := len(self._fresh)) > self._room:
            self._tally.bytes += (size - self._room) * FRESH_BYTES
            self._room = size
        if len(self._fresh) > FEW + self._settled // 8:
            self._merge()

    def get(self, name: int) -> int | None:
        """Return the reference to the block with that name, or None."""
        key = self._fresh.get(name)
        if key is None and self._settled:
            place = bisect_left(self._hashes, name)
            if place < self._settled and self._hashes[place] == name:
                key = self._keys[place] or None
        return key

    def pop(self, name: int) -> int | None:
        """Remove a name; return the reference that it stood for, or None."""
        key = self._fresh.pop(name, None)
        if self._settled:
            place = bisect_left(self._hashes, name)
            if place < self._settled and self._hashes[place] == name and self._keys[place]:
                key = key or self._keys[place]
                self._keys[place] = _GONE
                self._struck += 1
                if self._struck > FEW + self._settled // 2:
                    self._merge()
        return key

    def keys(self) -> list[int]:
        """Return the references of all names; some may occur twice."""
        settled = self._view[1]
        return [*self._fresh.values(), *settled[settled != _GONE].tolist()]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over every name and its reference."""
        names, keys = told(self.copy())
        return zip(names.tolist(), keys.tolist(), strict=True)

    def copy(self) -> "Copied":
        """Return a copy for `told`, which takes longer but can run in another thread."""
        hashes, keys = self._view  # `hashes` is never written to: a merge creates a new array
        return self._fresh.copy(), hashes, keys.copy()

    def doubt(self, number: int, known: Container[int]) -> None:
        """Note that `number` names stand for blocks that are not in `known` any more."""
        self._doubted += number
        self._known = known
        if self._doubted > FEW + self._settled // 8:
            self._merge()

    def purge(self, known: Container[int]) -> None:
        """Drop the names of all blocks that are not in `known` any more, now."""
        self.doubt(FEW + self._settled + 1, known)

    def clear(self) -> None:
        """Remove all names."""
        self._begin()

    def _merge(self) -> None:
        import numpy as np  # noqa: PLC0415

        fresh, (hashes, keys) = self._fresh, self._view
        if self._doubted > FEW + self._settled // 8:
            known = self._known
            fresh = {name: key for name, key in fresh.items() if key in known}
            for place in [place for place, key in enumerate(keys.tolist()) if key not in known]:
                self._keys[place] = _GONE
            self._doubted, self._struck = 0, 1
        if self._struck:
            alive = keys != _GONE
            hashes, keys = hashes[alive], keys[alive]
        new = np.fromiter(fresh.keys(), np.uint64, len(fresh))
        values = np.fromiter(fresh.values(), np.uint64, len(fresh))
        order = np.argsort(new)
        new, values = new[order], values[order]
        where = np.searchsorted(hashes, new)
        had = where < len(hashes)
        had[had] = hashes[where[had]] == new[had]
        keys[where[had]] = values[had]
        where, new, values = where[~had], new[~had], values[~had]
        self._fresh, self._struck = {}, 0
        self._settle(np.insert(hashes, where, new), np.insert(keys, where, values))


def told(copied: "Copied") -> "tuple[Words, Words]":
    """Return all names in a copy, and the reference of each."""
    import numpy as np  # noqa: PLC0415

    fresh, hashes, keys = copied
    names = np.fromiter(fresh, np.uint64, len(fresh))
    there = (keys != _GONE) & ~np.isin(hashes, names)
    values = np.fromiter(fresh.values(), np.uint64, len(fresh))
    return np.append(names, hashes[there]), np.append(values, keys[there])
