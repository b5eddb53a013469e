"""The tree of all blocks that anybody holds: runs, found by their first key or by a reference.

A prompt is followed from head to head. What engines call by names of their own is remembered as a
reference: the number of a run and an offset in it, in one integer. Neither is ever given again: a
run that was cut grows no more, so a reference to a block that is gone finds nothing.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from controller.runs import LONGEST, Run, bits

#: Bits of a reference for the offset: more than `LONGEST` needs.
BITS = 10
_OFFSET = (1 << BITS) - 1


class Found(NamedTuple):
    """A prompt's path through the tree."""

    depths: dict[int, int]
    """Blocks held from the first on without a gap, by place."""
    steps: list[tuple[int, Run, int]]
    """Where each run begins in the prompt, and where the prompt leaves it."""

    def reach(self, bit: int, start: int) -> int:
        """Up to which block a place holds everything from block `start` on."""
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
    """Runs of blocks, and how they follow one another."""

    def __init__(self) -> None:
        self.blocks = 0
        """Different ones."""
        self.ring: deque[Run] = deque()
        """Every run, and some that are empty by now."""
        self._heads: dict[int, Run] = {}
        self._numbered: dict[int, Run] = {}
        self._last = 0

    def __len__(self) -> int:
        """Runs."""
        return len(self._numbered)

    def find(self, keys: Sequence[int]) -> Found:
        """Follow a prompt's chained keys as far as anybody holds them."""
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
        """Return the run and the offset of a block, if it is there still."""
        run, offset = self._numbered.get(reference >> BITS), reference & _OFFSET
        return (run, offset) if run is not None and offset < len(run.keys) else None

    def run(self, reference: int) -> Run | None:
        """Return the run that a block is or was in, if that is there still."""
        return self._numbered.get(reference >> BITS)

    def __contains__(self, reference: object) -> bool:
        """Whether a block is there still."""
        return isinstance(reference, int) and self.at(reference) is not None

    def after(self, above: Run | None, offset: int, key: int) -> tuple[Run, int] | None:
        """Where the block with that key is, which follows one of `above`, or none."""
        if above is not None and offset + 1 < len(above.keys) and above.keys[offset + 1] == key:
            return above, offset + 1
        run = self._heads.get(key)
        return None if run is None else (run, 0)

    def lengthen(self, run: Run, keys: Sequence[int], place: int) -> int:
        """Make a run longer by new blocks that `place` holds; return how many of them fit."""
        fit = 0 if run.shut else max(0, min(len(keys), LONGEST - len(run.keys)))
        if fit:
            run.grow(keys[:fit], place)
            self.blocks += fit
        return fit

    def add(self, keys: Sequence[int], depth: int, size: int, above: Run | None, place: int) -> Run:
        """Put in a run of new blocks, at most `LONGEST`, all of which `place` holds."""
        self._last += 1
        run = Run(array("Q", keys), depth, size, above, self._last, full=place)
        if above is not None:
            above.children += 1
        self._heads[keys[0]] = self._numbered[run.number] = run
        self.ring.append(run)
        self.blocks += len(keys)
        return run

    def trim(self, run: Run | None) -> None:
        """Drop the blocks at the end that nobody holds any more, unless others follow them."""
        while run is not None and not run.children:
            reach, before = run.reach(), len(run.keys)
            if reach == before:
                return
            self.blocks -= before - reach
            if reach:
                run.cut(reach)
                return
            del self._heads[run.keys[0]], self._numbered[run.number]
            run.cut(0)
            above, run.parent = run.parent, None
            run = above
            if run is not None:
                run.children -= 1
        if len(self.ring) > len(self) + len(self) // 4 + 1000:
            self.ring = deque(run for run in self.ring if run.keys)


def references(run: Run, start: int, number: int) -> range:
    """Return references to some blocks of a run."""
    first = run.number << BITS | start
    return range(first, first + number)


def numbers(given: Sequence[int]) -> Iterator[int]:
    """Return one reference into each of the runs that these are in."""
    seen = {reference >> BITS for reference in given}
    return (number << BITS for number in seen)


def common(run: Sequence[int], keys: Sequence[int], at: int, offset: int = 0) -> int:
    """How many keys from `at` on are those of the run from `offset` on; the first one is."""
    low, high = 1, min(len(keys) - at, len(run) - offset)
    if run[offset + high - 1] == keys[at + high - 1]:
        return high
    while high - low > 1:  # chained keys are equal up to one point, and differ from there on
        middle = (low + high) // 2
        if run[offset + middle - 1] == keys[at + middle - 1]:
            low = middle
        else:
            high = middle
    return low


def _step(run: Run, at: int, end: int, alive: int, depths: dict[int, int]) -> int:
    """Write down who stops in this run, of those alive; return who holds it up to `end`."""
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
