"""The tree of all held blocks: runs, found by their first key or by a reference.

A prompt is followed from run to run, by the first key of each. The names that engines give to
blocks are mapped to references: the number of a run and an offset in it, in one integer. References
are never reused: run numbers are not, and a run that was cut does not grow again. So a reference to
a block that is gone finds nothing.

Chained keys form a tree. Nearly all of it is chains without a branch, so it is stored in runs: a
run is a section of such a chain. For each holder (a tier of an engine) of any of it, a run knows
how many of its first blocks are there without a gap, and which ones after the gap. A holder is
identified by a bit. A run is only ever cut at its end. If a chain branches in the middle of a run,
the branch is a run of its own, whose first block follows a block in the middle.
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
MAX_RUN_BLOCKS = 512
#: Bits of a reference for the offset: more than `MAX_RUN_BLOCKS` needs.
OFFSET_BITS = 10
_OFFSET = (1 << OFFSET_BITS) - 1
#: Runs of the ring that are looked at when one goes; of these, at least a fifth are empty.
_RING_STEPS = 8


class BlockRun(Struct, gc=False, eq=False):
    """At most `MAX_RUN_BLOCKS` blocks in a row; not garbage-collected, as there are many."""

    keys: "array[int]"
    depth: int
    """Number of blocks in the chain before this run."""
    size: int
    """Tokens per block."""
    parent: "BlockRun | None"
    """The run with the block before the first one."""
    number: int
    """Its number in the tree, by which references find it."""
    full: int = 0
    """The holders that hold all of it, as a mask."""
    part: dict[int, int] | None = None
    """How many of the first blocks (at least one) each other holder holds."""
    beyond: dict[int, set[int]] | None = None
    """Offsets of blocks that a holder holds after the first one that it lacks."""
    children: int = 0
    """Number of runs that follow a block of this one."""
    used: bool = False
    """A prompt has passed through it since the eviction sweep last came by."""
    shut: bool = False
    """It was cut and must not grow again, so that an offset never means another block."""

    def held(self, holder: int) -> int:
        """Return how many of the first blocks `holder` holds."""
        if self.full & holder:
            return len(self.keys)
        return self.part.get(holder, 0) if self.part else 0

    def holds(self, holder: int, offset: int) -> bool:
        """Return true if `holder` holds the block at `offset`."""
        return offset < self.held(holder) or (
            self.beyond is not None and offset in self.beyond.get(holder, ())
        )

    def loose(self, holder: int) -> int:
        """Return how many blocks `holder` holds after the first one that it lacks."""
        return len(self.beyond.get(holder, ())) if self.beyond else 0

    def grow(self, keys: Sequence[int], holder: int) -> None:
        """Append blocks that `holder` holds; other holders that held all now hold a part."""
        before = len(self.keys)
        if self.full == holder and not self.part and not self.beyond:
            self.keys.extend(keys)
            return
        if self.full:
            self.part = (self.part or {}) | dict.fromkeys(bits(self.full), before)
            self.full = 0
        self.keys.extend(keys)
        self.add(holder, before, before + len(keys))

    def add(self, holder: int, start: int, stop: int) -> int:
        """Add the blocks from `start` to `stop` to `holder`; return how many it did not hold."""
        if self.full & holder:
            return 0
        held = self.part.pop(holder, 0) if self.part else 0
        there = self.beyond.pop(holder, None) if self.beyond else None
        if there is None:
            if start > held:
                self._lie(holder, held, set(range(start, stop)))
                return stop - start
            self._lie(holder, max(held, stop), None)
            return max(0, stop - max(held, start))
        before = held + len(there)
        there.update(range(max(held, start), stop))
        while held in there:
            there.remove(held)
            held += 1
        self._lie(holder, held, there)
        return held + len(there) - before

    def discard(self, holder: int, offset: int) -> bool:
        """Remove a block from `holder`; return whether it held it."""
        if self.full == holder and offset == len(self.keys) - 1 and not self.part and offset:
            self.full = 0  # the last block of a run with one holder: by far the most frequent case
            self.part = {holder: offset}
            return True
        if not self.holds(holder, offset):
            return False
        held = self.held(holder)
        there = self.beyond.pop(holder, set()) if self.beyond else set()
        if offset < held:
            there.update(range(offset + 1, held))
            held = offset
        else:
            there.remove(offset)
        self.full &= ~holder
        if self.part:
            self.part.pop(holder, None)
        self._lie(holder, held, there)
        return True

    def leave(self, holder: int) -> int:
        """Remove all blocks from `holder`; return how many it held."""
        held = self.held(holder)
        there = self.beyond.pop(holder, ()) if self.beyond else ()
        self.full &= ~holder
        if self.part:
            self.part.pop(holder, None)
        return held + len(there)

    def reach(self) -> int:
        """Return the offset after the last block that any holder holds."""
        if self.full:
            return len(self.keys)
        reach = max(self.part.values()) if self.part else 0
        if self.beyond:
            reach = max(reach, *(max(there) + 1 for there in self.beyond.values()))
        return reach

    def cut(self, length: int) -> None:
        """Drop the blocks from offset `length` on, which no holder may hold."""
        self.shut = True
        del self.keys[length:]
        if self.part:
            for holder in [holder for holder, held in self.part.items() if held == length]:
                del self.part[holder]
                self.full |= holder
        # Empty dictionaries would keep their memory.
        self.part, self.beyond = self.part or None, self.beyond or None

    def _lie(self, holder: int, held: int, there: set[int] | None) -> None:
        """Store what `holder` holds; it must not be in any of the fields now."""
        if held == len(self.keys):
            self.full |= holder
        elif held:
            self.part = self.part or {}
            self.part[holder] = held
        if there:
            self.beyond = self.beyond or {}
            self.beyond[holder] = there

    def holders(self) -> int:
        """Return a mask of all holders that hold any of it."""
        holders = self.full
        for others in (self.part, self.beyond):
            for holder in others or ():
                holders |= holder
        return holders


def bits(mask: int) -> Iterator[int]:
    """Iterate over the bits of a mask."""
    while mask:
        bit = mask & -mask
        mask ^= bit
        yield bit


class PrefixMatch(NamedTuple):
    """A prompt's path through the tree."""

    depths: dict[int, int]
    """Number of blocks held from the first on without a gap, by the holder's bit."""
    steps: list[tuple[int, BlockRun, int]]
    """The runs, each with the positions in the prompt where it begins and where they part."""

    def reach(self, bit: int, start: int) -> int:
        """Return the block up to which a holder holds everything from block `start` on."""
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

    def __init__(self, run_blocks: int = MAX_RUN_BLOCKS) -> None:
        self.run_blocks = run_blocks
        """Most blocks in a run."""
        self.blocks = 0
        """Number of different blocks."""
        self.ring: deque[BlockRun] = deque()
        """All runs, and some that are empty by now."""
        self._heads: dict[int, BlockRun] = {}
        self._numbered: dict[int, BlockRun] = {}
        self._last = 0

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._numbered)

    def find(self, keys: Sequence[int]) -> PrefixMatch:
        """Follow a prompt's chained keys as far as they are in the tree."""
        get, number = self._heads.get, len(keys)
        depths: dict[int, int] = {}
        steps: list[tuple[int, BlockRun, int]] = []
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
        return PrefixMatch(depths, steps)

    def at(self, reference: int) -> tuple[BlockRun, int] | None:
        """Return the run and the offset of a block, or None if it is gone."""
        run, offset = self._numbered.get(reference >> OFFSET_BITS), reference & _OFFSET
        return (run, offset) if run is not None and offset < len(run.keys) else None

    def run(self, reference: int) -> BlockRun | None:
        """Return the run that a block is or was in, or None if the run is gone."""
        return self._numbered.get(reference >> OFFSET_BITS)

    def __contains__(self, reference: object) -> bool:
        """Return true if a block still exists."""
        return isinstance(reference, int) and self.at(reference) is not None

    def existing(self, given: "Words") -> "NDArray[np.bool_]":
        """Return which of the `given` references point into runs that still exist."""
        import numpy as np  # noqa: PLC0415

        runs, which = np.unique(given >> np.uint64(OFFSET_BITS), return_inverse=True)
        known = map(self._numbered.__contains__, runs.tolist())
        return np.fromiter(known, np.bool_, len(runs))[which]

    def after(self, above: BlockRun | None, offset: int, key: int) -> tuple[BlockRun, int] | None:
        """Return the run and offset of the block with `key`, or None if there is none.

        It follows block `offset` of `above` (None: nothing).
        """
        if above is not None and offset + 1 < len(above.keys) and above.keys[offset + 1] == key:
            return above, offset + 1
        run = self._heads.get(key)
        return None if run is None else (run, 0)

    def lengthen(self, run: BlockRun, keys: Sequence[int], holder: int) -> int:
        """Append new blocks, which `holder` holds, to a run; return how many fit."""
        fit = 0 if run.shut else max(0, min(len(keys), self.run_blocks - len(run.keys)))
        if fit:
            run.grow(keys[:fit], holder)
            self.blocks += fit
        return fit

    def add(
        self, keys: Sequence[int], depth: int, size: int, above: BlockRun | None, holder: int
    ) -> BlockRun:
        """Add a run of new blocks, at most `run_blocks`, all of which `holder` holds."""
        self._last += 1
        run = BlockRun(array("Q", keys), depth, size, above, self._last, full=holder)
        if above is not None:
            above.children += 1
        self._heads[keys[0]] = self._numbered[run.number] = run
        self.ring.append(run)
        self.blocks += len(keys)
        return run

    def trim(self, run: BlockRun | None) -> None:
        """Drop blocks at the end of a run that no holder holds, unless other runs follow the run.

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

    def _taken_out(self, run: BlockRun) -> BlockRun | None:
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
        for _ in range(_RING_STEPS):
            run = self.ring.popleft()
            if run.keys:
                self.ring.append(run)


def references(run: BlockRun, start: int, number: int) -> range:
    """Return references to `number` blocks of a run, from offset `start` on."""
    first = run.number << OFFSET_BITS | start
    return range(first, first + number)


def numbers(given: "Words") -> list[int]:
    """Return one reference into each run that the `given` references point to."""
    import numpy as np  # noqa: PLC0415

    seen: list[int] = (
        np.unique(given >> np.uint64(OFFSET_BITS)) << np.uint64(OFFSET_BITS)
    ).tolist()
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


def _step(run: BlockRun, at: int, end: int, alive: int, depths: dict[int, int]) -> int:
    """Record in `depths` which `alive` holders stop in this run; return those that reach `end`."""
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
