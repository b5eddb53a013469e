"""Who holds which blocks: the tree of all of them, the places, and what it takes in memory. Pure.

Presence is counted: engines may have a block twice (vLLM `v1/core/block_pool.py` does not merge
equal blocks, and offloaded chunks overlap), and tell so by storing and removing it twice. What a
GPU tells again with nothing new beside it is no second one. A shared store has one of each, however
many have written it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from controller.events import Tier
from controller.names import Tally
from controller.place import Place
from controller.runs import LONGEST, Run, bits
from controller.tree import Tree, common, numbers, references

#: Bytes of a block: its key in its run. These and those of `names` are what a process grows by,
#: measured while blocks come and go: with what the allocator cannot give back.
BLOCK_BYTES = 14
#: Bytes of a run beside its blocks.
RUN_BYTES = 480
#: Bytes of a block that a place holds after one that it lacks: it is remembered by itself.
LOOSE_BYTES = 75
#: Bytes of a block that a place has more than once.
COPY_BYTES = 85
#: Bytes of a place beside its names.
PLACE_BYTES = 1600


class Holdings:
    """The blocks of all places. What a place is, `place.py` says."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.holders = 0
        """Blocks, counted once for each place that holds them."""
        self.loose = 0
        """Of these, those after one that the place lacks."""
        self.copies = 0
        """And those that it has more than once."""
        self._tally = Tally()
        self._places: dict[tuple[str, Tier], Place] = {}
        self._by_bit: dict[int, Place] = {}
        self._sizes: Counter[int] = Counter()
        """Of blocks, as `holders` counts them."""

    # The places.

    def sizes(self) -> list[int]:
        """Tokens a block, all that are held anywhere; those of most blocks first. May be asked from
        any thread."""
        sizes = list(self._sizes.items())  # in one go
        return [size for size, _ in sorted(sizes, key=lambda one: (-one[1], one[0]))]

    def places(self) -> Iterator[Place]:
        """Every tier of every engine; the shared store is one of the engine called ``""``."""
        return iter(self._places.values())

    def place(self, worker: str, tier: Tier) -> Place | None:
        """One tier of one engine, if it was ever heard of."""
        return self._places.get((worker, tier))

    def place_of(self, bit: int) -> Place:
        """Whose bit it is."""
        return self._by_bit[bit]

    def place_of_engine(self, worker: str, tier: Tier, shared: bool) -> Place:
        """One tier of one engine; what is shared belongs to nobody."""
        name = ("", Tier.L2) if shared else (worker, tier)
        place = self._places.get(name)
        if place is None:
            taken = sum(self._by_bit)
            bit = ~taken & (taken + 1)  # the lowest free one
            place = self._places[name] = self._by_bit[bit] = Place(*name, bit, self._tally)
        return place

    def close(self, worker: str, tier: Tier) -> None:
        """That tier is gone, with all that it held."""
        place = self._places.pop((worker, tier), None)
        if place is not None:
            self.empty(place)
            del self._by_bit[place.bit]

    # What comes.

    def add(
        self, place: Place, above: Run | None, offset: int, keys: list[int], size: int
    ) -> Sequence[int]:
        """`place` holds these, which follow one block of `above`; return references to them."""
        added: Sequence[int] = ()
        repeated: list[int] = []
        at, number = 0, len(keys)
        while at < number:
            found = self.tree.after(above, offset, keys[at])
            if found is None:
                # What follows an unknown block is unknown: runs stay while others follow them.
                fresh = self._grow(place, above, offset, keys[at:] if at else keys, size)
                added = [*added, *fresh] if added else fresh
                break
            above, start = found
            here = common(above.keys, keys, at, start)
            repeated += self.hold(place, above, start, here)
            more = references(above, start, here)
            added = [*added, *more] if added else more
            offset = start + here - 1
            at += here
        self.repeat(place, repeated, number)
        return added

    def hold(self, place: Place, run: Run, start: int, number: int) -> list[int]:
        """`place` holds blocks of a run; return references to those that it held before."""
        bit, repeated = place.bit, []
        if run.places() & bit:
            repeated = [
                reference
                for offset, reference in enumerate(references(run, start, number), start)
                if run.holds(bit, offset)
            ]
        self.loose -= run.loose(bit)
        new = run.add(bit, start, start + number)
        self.loose += run.loose(bit)
        if new:
            self.count(place, run.size, new)
        return repeated

    def repeat(self, place: Place, repeated: list[int], number: int) -> None:
        """`place` has these once more, of the so many blocks of one event.

        A GPU that tells nothing new may be telling what it reused (vLLM `kv_cache_report_mode`,
        "full"): were they copies, they would never leave. If they were, the first that leaves takes
        the block with it, and too little is predicted instead of too much.
        """
        if place.tier is Tier.GPU and len(repeated) == number:
            return
        copies = place.copies
        for reference in repeated:
            self.copies += reference not in copies
            copies[reference] = copies.get(reference, 0) + 1 if place.worker else 1

    def count(self, place: Place, size: int, number: int) -> None:
        """`place` holds so many more blocks of that size; fewer, if below zero."""
        place.blocks += number
        self.holders += number
        for sizes in (place.sizes, self._sizes):
            sizes[size] += number
            if not sizes[size]:
                del sizes[size]

    def _grow(
        self, place: Place, above: Run | None, offset: int, keys: list[int], size: int
    ) -> Sequence[int]:
        """New blocks: at the end of a run, if that is what they follow, or in runs of their own."""
        tree, bit, at = self.tree, place.bit, 0
        self.count(place, size, len(keys))
        added: Sequence[int] = ()
        if above is not None and offset + 1 == len(above.keys):
            self.loose -= above.loose(bit)
            at = tree.lengthen(above, keys, bit)
            self.loose += above.loose(bit)
            added = references(above, offset + 1, at)
        depth = above.depth + offset + 1 if above is not None else 0
        while at < len(keys):
            some = keys[at : at + LONGEST]
            above = tree.add(some, depth + at, size, above, bit)
            more = references(above, 0, len(some))
            added = [*added, *more] if added else more
            at += len(some)
        return added

    # What goes.

    def remove(self, place: Place, name: int) -> bool:
        """What the engine calls so left `place`, or one of its copies did; return whether it was
        known there."""
        copies = place.copies
        if copies and (known := place.names.get(name)) in copies:
            assert known is not None  # noqa: S101 - None is no reference
            left = copies[known] - 1 if place.worker else 0
            if left:
                copies[known] = left
            else:
                del copies[known]
                self.copies -= 1
            if place.worker:
                return True
        reference = place.names.pop(name)
        if reference is None:
            return False
        found = self.tree.at(reference)
        if found is not None:
            self._discard(place, *found)
        return True

    def _discard(self, place: Place, run: Run, offset: int) -> None:
        self.loose -= run.loose(place.bit)
        gone = run.discard(place.bit, offset)
        self.loose += run.loose(place.bit)
        if gone:
            self.count(place, run.size, -1)
            if offset == len(run.keys) - 1:
                self.tree.trim(run)

    def lose(self, place: Place, keys: Sequence[int], start: int, stop: int) -> int:
        """Some blocks of a prompt were not found on a place: as if it had told that they left.

        What it has told of once more stays: that may have been since then. Returns how many went.
        """
        before, copies = place.blocks, place.copies
        for begin, run, end in reversed(self.tree.find(keys[:stop]).steps):
            for offset in range(end - begin - 1, max(start - begin, 0) - 1, -1):
                (reference,) = references(run, offset, 1)
                left = copies.get(reference, 0) - 1
                if left < 0:
                    self._discard(place, run, offset)
                elif left:
                    copies[reference] = left
                else:
                    del copies[reference]
                    self.copies -= 1
        return before - place.blocks

    def empty(self, place: Place) -> None:
        """`place` holds nothing any more."""
        for reference in numbers(place.names.keys()):
            self._leave(place, self.tree.run(reference))
        if place.blocks:  # names that were given twice, by an engine at fault
            for run in list(self.tree.ring):
                self._leave(place, run)
        self.copies -= len(place.copies)
        place.empty()

    def _leave(self, place: Place, run: Run | None) -> None:
        left = self._left(place, run) if run is not None else 0
        if left:
            self.tree.trim(run)

    def _left(self, place: Place, run: Run) -> int:
        """`place` holds nothing of a run any more; return how many blocks it held."""
        self.loose -= run.loose(place.bit)
        left = run.leave(place.bit)
        if left:
            self.count(place, run.size, -left)
        return left

    def drop(self, run: Run) -> None:
        """Nobody holds anything of that run any more, whatever they say."""
        gone = references(run, 0, len(run.keys))
        for bit in list(bits(run.places())):
            place = self._by_bit[bit]
            place.names.doubt(self._left(place, run), self.tree)
            for reference in gone if place.copies else ():
                self.copies -= place.copies.pop(reference, None) is not None
        self.tree.trim(run)

    def purge(self) -> None:
        """Drop the names of what was dropped."""
        for place in self.places():
            place.names.purge(self.tree)

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        size = self.tree.blocks * BLOCK_BYTES + self._tally.bytes
        size += len(self.tree) * RUN_BYTES + len(self._places) * PLACE_BYTES
        return size + self.loose * LOOSE_BYTES + self.copies * COPY_BYTES
