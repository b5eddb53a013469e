"""Runs of consecutive blocks, and who holds how many of them.

Chained keys form a tree. Nearly all of it is chains without a branch, so it is stored in runs: a
run is a section of such a chain. For each place that holds any of it, a run knows how many of its
first blocks are there without a gap, and which ones after the gap. A place is identified by a bit.

A run is only ever cut at its end. If a chain branches in the middle of a run, the branch is a run
of its own, whose first block follows a block in the middle.
"""

from array import array
from collections.abc import Iterator, Sequence

from msgspec import Struct

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
