"""Blocks that follow one another, kept together, and who holds how many of them.

Chained keys make a tree. Nearly all of it is chains without a branch, so it is kept in runs: a run
is a stretch of such a chain. For each place that holds any of it, a run knows how many of its
first blocks are there without a gap, and which ones beyond the gap. A place is a bit.

A run is cut only at its end. Where a chain branches in the middle of a run, the branch is a run of
its own whose first block follows a block in the middle.
"""

from array import array
from collections.abc import Iterator, Sequence

from msgspec import Struct

#: Blocks of a run.
LONGEST = 512


class Run(Struct, gc=False, eq=False):
    """At most `LONGEST` blocks in a row. Not seen by the garbage collector: there are many."""

    keys: "array[int]"
    depth: int
    """Blocks of the chain before this run."""
    size: int
    """Tokens a block."""
    parent: "Run | None"
    """Where the block before the first was when the run began."""
    number: int
    """Its own, by which it can be found."""
    full: int = 0
    """The places that hold all of it."""
    part: dict[int, int] | None = None
    """How many of the first blocks others hold, at least one each."""
    beyond: dict[int, set[int]] | None = None
    """Blocks that a place holds after the first one that it lacks, by their offset."""
    children: int = 0
    """Runs that follow a block of this one."""
    used: bool = False
    """A prompt has passed since the sweep came by last."""
    shut: bool = False
    """It was cut, and grows no more: an offset means one block, or none."""

    def held(self, place: int) -> int:
        """How many of the first blocks `place` holds."""
        if self.full & place:
            return len(self.keys)
        return self.part.get(place, 0) if self.part else 0

    def holds(self, place: int, offset: int) -> bool:
        """Whether `place` holds the block at `offset`."""
        return offset < self.held(place) or (
            self.beyond is not None and offset in self.beyond.get(place, ())
        )

    def loose(self, place: int) -> int:
        """How many blocks `place` holds after the first one that it lacks."""
        return len(self.beyond.get(place, ())) if self.beyond else 0

    def grow(self, keys: Sequence[int], place: int) -> None:
        """Make it longer by blocks that `place` holds; others who held all hold a part now."""
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
        """`place` holds these blocks now; return how many of them it did not hold before."""
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
        """`place` holds this block no more; return whether it did."""
        if self.full == place and offset == len(self.keys) - 1 and not self.part and offset:
            self.full = 0  # the end of a run that one holds: by far the most frequent
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
        """`place` holds nothing any more; return how many blocks it held."""
        held = self.held(place)
        there = self.beyond.pop(place, ()) if self.beyond else ()
        self.full &= ~place
        if self.part:
            self.part.pop(place, None)
        return held + len(there)

    def reach(self) -> int:
        """Up to which offset anybody holds anything."""
        if self.full:
            return len(self.keys)
        reach = max(self.part.values()) if self.part else 0
        if self.beyond:
            reach = max(reach, *(max(there) + 1 for there in self.beyond.values()))
        return reach

    def cut(self, length: int) -> None:
        """Drop the blocks from there on, which nobody holds."""
        self.shut = True
        del self.keys[length:]
        if self.part:
            for place in [place for place, held in self.part.items() if held == length]:
                del self.part[place]
                self.full |= place
        self.part, self.beyond = self.part or None, self.beyond or None  # empty ones keep theirs

    def _lie(self, place: int, held: int, there: set[int] | None) -> None:
        """Write down what `place` holds; it stands nowhere now."""
        if held == len(self.keys):
            self.full |= place
        elif held:
            self.part = self.part or {}
            self.part[place] = held
        if there:
            self.beyond = self.beyond or {}
            self.beyond[place] = there

    def places(self) -> int:
        """Return everyone who holds any of it."""
        places = self.full
        for others in (self.part, self.beyond):
            for place in others or ():
                places |= place
        return places


def bits(mask: int) -> Iterator[int]:
    """Each bit of a mask."""
    while mask:
        bit = mask & -mask
        mask ^= bit
        yield bit
