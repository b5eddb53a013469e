"""The engine's names of blocks → our keys, 16 bytes each once they have settled.

New names stand in a dictionary; when there are many they are merged into two sorted arrays, where
a name is found by halving. A block that leaves is struck out, and gone with the next merge.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

# Loading numpy takes 17 MB, and only who has a memory needs it.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Words = NDArray[np.uint64]

#: Names that are merged at once: these, or an eighth of those merged before if that is more.
FEW = 256
#: Bytes of a name in the dictionary: the number, and its place. Measured, with room to grow.
FRESH_BYTES = 112
#: Bytes of a name in the arrays.
SETTLED_BYTES = 16
#: Our keys are never 0: what is struck out.
_GONE = 0


class Names:
    """A map from 64-bit numbers to keys, which are 1 to 2**60."""

    __slots__ = ("_doubted", "_fresh", "_hashes", "_keys", "_known", "_settled", "_struck", "_view")

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415

        self._fresh: dict[int, int] = {}
        self._struck = self._doubted = 0
        self._known: Container[int] = ()
        self._settle(np.empty(0, np.uint64), np.empty(0, np.uint64))

    def _settle(self, hashes: "_Words", keys: "_Words") -> None:
        self._settled = len(hashes)
        self._hashes: memoryview = memoryview(hashes.data)
        self._keys: memoryview = memoryview(keys.data)
        self._view = (hashes, keys)

    def add(self, hashes: Sequence[int], keys: Iterable[int]) -> None:
        """Give names to blocks. None of them has one here, or the same as now."""
        self._fresh.update(zip(hashes, keys, strict=False))
        if len(self._fresh) > FEW + self._settled // 8:
            self._merge()

    def get(self, name: int) -> int | None:
        """Return the key of the block of that name, if there is one."""
        key = self._fresh.get(name)
        if key is None and self._settled:
            place = bisect_left(self._hashes, name)
            if place < self._settled and self._hashes[place] == name:
                key = self._keys[place] or None
        return key

    def pop(self, name: int) -> int | None:
        """Take a name away; return the key that it stood for."""
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
        """What the names stand for; some may be told twice."""
        settled = self._view[1]
        return [*self._fresh.values(), *settled[settled != _GONE].tolist()]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every name and its key."""
        yield from self._fresh.items()
        for name, key in zip(self._hashes, self._keys, strict=True):
            if key and name not in self._fresh:
                yield name, key

    def doubt(self, number: int, known: Container[int]) -> None:
        """So many names stand for keys that are not among the known ones any more."""
        self._doubted += number
        self._known = known
        if self._doubted > FEW + self._settled // 2:
            self._merge()

    def _merge(self) -> None:
        import numpy as np  # noqa: PLC0415

        fresh = self._fresh
        hashes, keys = self._view
        alive = keys != _GONE
        if self._doubted:
            known = self._known
            fresh = {name: key for name, key in fresh.items() if key in known}
            alive &= np.fromiter((key in known for key in keys.tolist()), np.bool_, len(keys))
        new = len(fresh)
        hashes = np.concatenate((hashes[alive], np.fromiter(fresh.keys(), np.uint64, new)))
        keys = np.concatenate((keys[alive], np.fromiter(fresh.values(), np.uint64, new)))
        order = np.argsort(hashes, kind="stable")
        hashes, keys = hashes[order], keys[order]
        last = np.ones(len(hashes), np.bool_)  # of equal names the newest
        last[:-1] = hashes[1:] != hashes[:-1]
        self._fresh = {}
        self._struck = self._doubted = 0
        self._settle(hashes[last], keys[last])

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        return len(self._fresh) * FRESH_BYTES + self._settled * SETTLED_BYTES
