"""The tree of all held blocks: runs, found by their first key or by a reference.

A prompt is followed from run to run, by the first key of each. The names that engines give to
blocks are mapped to references: the number of a run and an offset in it, in one integer. References
are never reused: run numbers are not, and a run that was cut does not grow again. So a reference to
a block that is gone finds nothing.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from controller.index.runs import LONGEST, Run, bits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from controller.index.pages import Words

#: Bits of a reference for the offset: more than `LONGEST` needs.
BITS = 10
_OFFSET = (1 << BITS) - 1
#: Runs of the ring that are looked at when one goes; of these, at least a fifth are empty.
_TURN = 8


class Found(NamedTuple):
    """A prompt's path through the tree."""

    depths: dict[int, int]
    """Number of blocks held from the first on without a gap, by the place's bit."""
    steps: list[tuple[int, Run, int]]
    """The runs, each with the positions in the prompt where it begins and where they part."""

    def reach(self, bit: int, start: int) -> int:
        """Return the block up to which a place holds everything from block `start` on."""
        for begin, run, end in self.steps:
            if end <= start:
                continue
            offset = start - begin
            held = run.held(bit)
            if held > offset:
                start = min(end, begin + held)
            elif run.beyond:
                there = run.beyond.get(bit, ())
                while start < end and start - begin in there:
                    start += 1
            if start < end:
                break
        return start


class Tree:
    """Runs of blocks, and how they follow each other."""

    def __init__(self) -> None:
        self.blocks = 0
        """Number of different blocks."""
        self.ring: deque[Run] = deque()
        """All runs, and some that are empty by now."""
        self._heads: dict[int, Run] = {}
        self._numbered: dict[int, Run] = {}
        self._last = 0

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._numbered)

    def find(self, keys: Sequence[int]) -> Found:
        """Follow a prompt's chained keys as far as they are in the tree."""
        get, number = self._heads.get, len(keys)
        depths: dict[int, int] = {}
        steps: list[tuple[int, Run, int]] = []
        at, alive = 0, -1
        while at < number:
            run = get(keys[at])
            if run is None:
                break
            run.used = True
            end = at + common(run.keys, keys, at)
            steps.append((at, run, end))
            if alive:
                alive = _step(run, at, end, alive, depths)
            at = end
        if alive > 0:
            depths.update(dict.fromkeys(bits(alive), at))
        return Found(depths, steps)

    def at(self, reference: int) -> tuple[Run, int] | None:
        """Return the run and the offset of a block, or None if it is gone."""
        run, offset = self._numbered.get(reference >> BITS), reference & _OFFSET
        return (run, offset) if run is not None and offset < len(run.keys) else None

    def run(self, reference: int) -> Run | None:
        """Return the run that a block is or was in, or None if the run is gone."""
        return self._numbered.get(reference >> BITS)

    def __contains__(self, reference: object) -> bool:
        """Whether a block still exists."""
        return isinstance(reference, int) and self.at(reference) is not None

    def there(self, given: "Words") -> "NDArray[np.bool_]":
        """Return which of the `given` references point into runs that still exist."""
        import numpy as np  # noqa: PLC0415

        runs, which = np.unique(given >> np.uint64(BITS), return_inverse=True)
        found = map(self._numbered.__contains__, runs.tolist())
        return np.fromiter(found, np.bool_, len(runs))[which]

    def after(self, above: Run | None, offset: int, key: int) -> tuple[Run, int] | None:
        """Return the run and offset of the block with `key`, or None if there is none.

        It follows block `offset` of `above` (None: nothing).
        """
        if above is not None and offset + 1 < len(above.keys) and above.keys[offset + 1] == key:
            return above, offset + 1
        run = self._heads.get(key)
        return None if run is None else (run, 0)

    def lengthen(self, run: Run, keys: Sequence[int], place: int) -> int:
        """Append new blocks, which `place` holds, to a run; return how many fit."""
        fit = 0 if run.shut else max(0, min(len(keys), LONGEST - len(run.keys)))
        if fit:
            run.grow(keys[:fit], place)
            self.blocks += fit
        return fit

    def add(self, keys: Sequence[int], depth: int, size: int, above: Run | None, place: int) -> Run:
        """Add a run of new blocks, at most `LONGEST`, all of which `place` holds."""
        self._last += 1
        run = Run(array("Q", keys), depth, size, above, self._last, full=place)
        if above is not None:
            above.children += 1
        self._heads[keys[0]] = self._numbered[run.number] = run
        self.ring.append(run)
        self.blocks += len(keys)
        return run

    def trim(self, run: Run | None) -> None:
        """Drop blocks at the end of a run that no place holds, unless other runs follow the run.

        If the whole run goes, go on with its parent.
        """
        while run is not None and not run.children:
            reach, before = run.reach(), len(run.keys)
            if reach == before:
                return
            self.blocks -= before - reach
            if reach:
                run.cut(reach)
                return
            run = self._taken_out(run)

    def _taken_out(self, run: Run) -> Run | None:
        """Take a run out; return its parent, which has one child fewer then."""
        del self._heads[run.keys[0]], self._numbered[run.number]
        run.cut(0)
        above, run.parent = run.parent, None
        if above is not None:
            above.children -= 1
        if len(self.ring) > len(self) + len(self) // 4 + 1000:
            self._turn()
        return above

    def _turn(self) -> None:
        """Take empty runs out of the ring: a few at a time, as all at once would take long."""
        for _ in range(_TURN):
            run = self.ring.popleft()
            if run.keys:
                self.ring.append(run)


def references(run: Run, start: int, number: int) -> range:
    """Return references to `number` blocks of a run, from offset `start` on."""
    first = run.number << BITS | start
    return range(first, first + number)


def numbers(given: "Words") -> list[int]:
    """Return one reference into each run that the `given` references point to."""
    import numpy as np  # noqa: PLC0415

    seen: list[int] = (np.unique(given >> np.uint64(BITS)) << np.uint64(BITS)).tolist()
    return seen


def common(run: Sequence[int], keys: Sequence[int], at: int, offset: int = 0) -> int:
    """Return how many keys from `at` on match the run from `offset` on; the first must match."""
    low, high = 1, min(len(keys) - at, len(run) - offset)
    if run[offset + high - 1] == keys[at + high - 1]:
        return high
    while high - low > 1:  # chained keys match up to one point, and differ from there on
        middle = (low + high) // 2
        if run[offset + middle - 1] == keys[at + middle - 1]:
            low = middle
        else:
            high = middle
    return low


def _step(run: Run, at: int, end: int, alive: int, depths: dict[int, int]) -> int:
    """Record in `depths` which `alive` places stop in this run; return those that reach `end`."""
    here, length = run.full, end - at
    if run.part:
        for bit, held in run.part.items():
            if held >= length:
                here |= bit
            elif alive & bit:
                depths[bit] = at + held
    if at:
        for bit in bits(alive & ~here):
            depths.setdefault(bit, at)
    return alive & here
