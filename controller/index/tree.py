"""The tree of all held blocks: runs, found by their first key or by a reference.

A prompt is followed from run to run, by the first key of each. The names that engines give to
blocks are mapped to references: the number of a run and an offset in it, in one integer. References
are never reused: run numbers are not, and a run that was cut does not grow again. So a reference to
a block that is gone finds nothing.

Runs of consecutive blocks, and who holds how many of them.

Chained keys form a tree. Nearly all of it is chains without a branch, so it is stored in runs: a
run is a section of such a chain. For each place that holds any of it, a run knows how many of its
first blocks are there without a gap, and which ones after the gap. A place is identified by a bit.

A run is only ever cut at its end. If a chain branches in the middle of a run, the branch is a run
of its own, whose first block follows a block in the middle.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from controller.index.hash_table import Words

#: Most blocks in a run.
LONGEST = 512


class Run(Struct, gc=False, eq=False):
    """At most `LONGEST` blocks in a row. Not tracked by the garbage collector: there are many."""

    keys: "array[int]"
    depth: int
    """Number of blocks in the chain before this run."""
    size: int
    """Tokens per block."""
    parent: "Run | None"
    """The run with the block before the first one."""
    number: int
    """Its number in the tree, by which references find it."""
    full: int = 0
    """The places that hold all of it, as a mask."""
    part: dict[int, int] | None = None
    """How many of the first blocks (at least one) each other place holds."""
    beyond: dict[int, set[int]] | None = None
    """Offsets of blocks that a place holds after the first one that it lacks."""
    children: int = 0
    """Number of runs that follow a block of this one."""
    used: bool = False
    """A prompt has passed through it since the eviction sweep last came by."""
    shut: bool = False
    """It was cut and must not grow again, so that an offset never means another block."""

    def held(self, place: int) -> int:
        """Return how many of the first blocks `place` holds."""
        if self.full & place:
            return len(self.keys)
        return self.part.get(place, 0) if self.part else 0

    def holds(self, place: int, offset: int) -> bool:
        """Whether `place` holds the block at `offset`."""
        return offset < self.held(place) or (
            self.beyond is not None and offset in self.beyond.get(place, ())
        )

    def loose(self, place: int) -> int:
        """Return how many blocks `place` holds after the first one that it lacks."""
        return len(self.beyond.get(place, ())) if self.beyond else 0

    def grow(self, keys: Sequence[int], place: int) -> None:
        """Append blocks that `place` holds; other places that held all now hold a part."""
        before = len(self.keys)
        if self.full == place and not self.part and not self.beyond:
            self.keys.extend(keys)
            return
        if self.full:
            self.part = (self.part or {}) | dict.fromkeys(bits(self.full), before)
            self.full = 0
        self.keys.extend(keys)
        self.add(place, before, before + len(keys))

    def add(self, place: int, start: int, stop: int) -> int:
        """Add the blocks from `start` to `stop` to `place`; return how many it did not hold."""
        if self.full & place:
            return 0
        held = self.part.pop(place, 0) if self.part else 0
        there = self.beyond.pop(place, None) if self.beyond else None
        if there is None:
            if start > held:
                self._lie(place, held, set(range(start, stop)))
                return stop - start
            self._lie(place, max(held, stop), None)
            return max(0, stop - max(held, start))
        before = held + len(there)
        there.update(range(max(held, start), stop))
        while held in there:
            there.remove(held)
            held += 1
        self._lie(place, held, there)
        return held + len(there) - before

    def discard(self, place: int, offset: int) -> bool:
        """Remove a block from `place`; return whether it held it."""
        if self.full == place and offset == len(self.keys) - 1 and not self.part and offset:
            self.full = 0  # the last block of a run with one holder: by far the most frequent case
            self.part = {place: offset}
            return True
        if not self.holds(place, offset):
            return False
        held = self.held(place)
        there = self.beyond.pop(place, set()) if self.beyond else set()
        if offset < held:
            there.update(range(offset + 1, held))
            held = offset
        else:
            there.remove(offset)
        self.full &= ~place
        if self.part:
            self.part.pop(place, None)
        self._lie(place, held, there)
        return True

    def leave(self, place: int) -> int:
        """Remove all blocks from `place`; return how many it held."""
        held = self.held(place)
        there = self.beyond.pop(place, ()) if self.beyond else ()
        self.full &= ~place
        if self.part:
            self.part.pop(place, None)
        return held + len(there)

    def reach(self) -> int:
        """Return the offset after the last block that any place holds."""
        if self.full:
            return len(self.keys)
        reach = max(self.part.values()) if self.part else 0
        if self.beyond:
            reach = max(reach, *(max(there) + 1 for there in self.beyond.values()))
        return reach

    def cut(self, length: int) -> None:
        """Drop the blocks from offset `length` on, which no place may hold."""
        self.shut = True
        del self.keys[length:]
        if self.part:
            for place in [place for place, held in self.part.items() if held == length]:
                del self.part[place]
                self.full |= place
        # Empty dictionaries would keep their memory.
        self.part, self.beyond = self.part or None, self.beyond or None

    def _lie(self, place: int, held: int, there: set[int] | None) -> None:
        """Store what `place` holds; it must not be in any of the fields now."""
        if held == len(self.keys):
            self.full |= place
        elif held:
            self.part = self.part or {}
            self.part[place] = held
        if there:
            self.beyond = self.beyond or {}
            self.beyond[place] = there

    def places(self) -> int:
        """Return a mask of all places that hold any of it."""
        places = self.full
        for others in (self.part, self.beyond):
            for place in others or ():
                places |= place
        return places


def bits(mask: int) -> Iterator[int]:
    """Iterate over the bits of a mask."""
    while mask:
        bit = mask & -mask
        mask ^= bit
        yield bit


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
