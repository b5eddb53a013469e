"""Who holds which blocks: the tree of all blocks, the places, and their size in memory. Pure.

A place can hold several copies of a block: vLLM (`v1/core/block_pool.py`) does not merge equal
blocks, and offloaded chunks overlap. Such a block is announced and removed several times, so copies
are counted. But if a GPU's event contains only blocks it already holds, these are not copies. A
shared store has one copy of each block, however many engines have written it.

One tier of one engine: the names of its blocks, and how many there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from controller.events.decode import Tier
from controller.index.hash_table import Names, Tally
from controller.index.tree import LONGEST, Run, Tree, bits, common, numbers, references

#: Most names of new blocks that are tracked while a place is doubtful: about 1 MiB.
MOST_APART = 1 << 14
#: Answers assumed to be in flight when a loss is found out.
ON_THEIR_WAY = 16


class Place:
    """One tier of one engine; the shared store is a tier of the engine ``""``."""

    __slots__ = ("bit", "blocks", "copies", "excused", "names", "since", "sizes", "tier", "worker")

    def __init__(self, worker: str, tier: Tier, bit: int, tally: Tally) -> None:
        """`tally` counts the names of all places."""
        self.worker = worker
        self.tier = tier
        self.bit = bit
        self.names = Names(tally)
        self.copies: dict[int, int] = {}
        """Number of extra copies of blocks that are there more than once, by reference."""
        self.blocks = 0
        self.sizes: Counter[int] = Counter()
        """Number of blocks by size in tokens."""
        self.since: set[int] | None = None
        """While its contents are doubtful, the names of blocks that came since the doubt arose, and
        are certain; None while nothing is doubtful."""
        self.excused = 0
        """How many more misses to ignore after a loss was found out: answers that were in flight
        then may miss blocks that have been announced again since."""

    def came(self, names: Iterable[int]) -> None:
        """Track new blocks while in doubt; after `MOST_APART` of them, the doubt is dropped."""
        if self.since is not None:
            self.since.update(names)
            if len(self.since) > MOST_APART:
                self.since = None

    @property
    def usual(self) -> int:
        """The most frequent block size in tokens; 0 if there are no blocks."""
        return max(self.sizes, key=self.sizes.__getitem__, default=0)

    def empty(self) -> None:
        """Drop everything it holds."""
        self.names.clear()
        self.copies.clear()
        self.sizes.clear()
        self.blocks = 0
        self.since = None
        self.excused = 0

    def __repr__(self) -> str:
        return f"<Place {self.worker} {self.tier.name} {self.blocks} blocks>"


#: Bytes per block, for its key in its run. This and the sizes in `names` were measured as growth of
#: the process while blocks come and go, including what the allocator cannot give back.
BLOCK_BYTES = 14
#: Bytes per run, without its blocks.
RUN_BYTES = 480
#: Bytes per block that a place holds after a gap in a run, as such blocks are stored one by one.
LOOSE_BYTES = 75
#: Bytes per block that a place has more than once.
COPY_BYTES = 85
#: Bytes per place, without its names.
PLACE_BYTES = 1600


class Holdings:
    """The blocks of all places (see `place.py`)."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.holders = 0
        """Number of blocks, counted once for each place that holds them."""
        self.loose = 0
        """How many of these come after a gap in their run."""
        self.copies = 0
        """How many of these a place has more than once."""
        self._tally = Tally()
        self._places: dict[tuple[str, Tier], Place] = {}
        self._by_bit: dict[int, Place] = {}
        self._sizes: Counter[int] = Counter()
        """Blocks by size in tokens, counted as in `holders`."""

    # The places.

    def sizes(self) -> list[int]:
        """Return all block sizes in tokens, the most frequent first. Safe in any thread."""
        sizes = list(self._sizes.items())  # atomic
        return [size for size, _ in sorted(sizes, key=lambda one: (-one[1], one[0]))]

    def places(self) -> Iterator[Place]:
        """Iterate over every tier of every engine; the shared store belongs to engine ``""``."""
        return iter(self._places.values())

    def place(self, worker: str, tier: Tier) -> Place | None:
        """Return one tier of one engine, or None if it was never heard of."""
        return self._places.get((worker, tier))

    def place_of(self, bit: int) -> Place:
        """Return the place with this bit."""
        return self._by_bit[bit]

    def place_of_engine(self, worker: str, tier: Tier, shared: bool) -> Place:
        """Return one tier of one engine, or the shared store; create it if needed."""
        name = ("", Tier.L2) if shared else (worker, tier)
        place = self._places.get(name)
        if place is None:
            taken = sum(self._by_bit)
            bit = ~taken & (taken + 1)  # the lowest free one
            place = self._places[name] = self._by_bit[bit] = Place(*name, bit, self._tally)
        return place

    def close(self, worker: str, tier: Tier) -> None:
        """Drop a tier with all that it held."""
        place = self._places.pop((worker, tier), None)
        if place is not None:
            self.empty(place)
            del self._by_bit[place.bit]

    # Adding.

    def add(
        self, place: Place, above: Run | None, offset: int, keys: list[int], size: int
    ) -> Sequence[int]:
        """Add blocks of `place` that follow block `offset` of `above`; return their references."""
        added: Sequence[int] = ()
        repeated: list[int] = []
        at, number = 0, len(keys)
        while at < number:
            found = self.tree.after(above, offset, keys[at])
            if found is None:
                # If a block is unknown, so are all after it: no run is dropped before its children.
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
        """Add existing blocks of a run to `place`; return references to those it held before."""
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
        """Count further copies on `place`: blocks it held before, of the `number` in one event.

        A GPU event without any new block may report reuse instead (vLLM `kv_cache_report_mode`,
        "full"), so it is ignored: blocks counted as copies by mistake would never leave. If they
        were copies after all, the first removal takes the block away, and too little is predicted
        instead of too much.
        """
        if place.tier is Tier.GPU and len(repeated) == number:
            return
        copies = place.copies
        for reference in repeated:
            self.copies += reference not in copies
            copies[reference] = copies.get(reference, 0) + 1 if place.worker else 1

    def count(self, place: Place, size: int, number: int) -> None:
        """Count `number` more blocks of `size` tokens on `place`; fewer if negative."""
        place.blocks += number
        self.holders += number
        for sizes in (place.sizes, self._sizes):
            sizes[size] += number
            if not sizes[size]:
                del sizes[size]

    def _grow(
        self, place: Place, above: Run | None, offset: int, keys: list[int], size: int
    ) -> Sequence[int]:
        """Add new blocks: at the end of the run they follow, if possible, else in new runs."""
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

    # Removing.

    def remove(self, place: Place, name: int) -> bool:
        """Remove one copy of the block with that name from `place`; return whether it was known."""
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
        """Remove blocks of a prompt that were not found on a place; return how many it held.

        Of a block with several copies only one is removed: the place may have announced it again
        since.
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

    def keep(self, place: Place, names: Iterable[int]) -> int:
        """Remove everything but blocks with these names; return how many blocks that were.

        Of each block that stays there is one copy.
        """
        before = place.blocks
        known = ((name, place.names.get(name)) for name in names)
        kept = {name: reference for name, reference in known if reference is not None}
        staying: dict[int, list[int]] = {}
        for reference in sorted(set(kept.values())):
            found = self.tree.at(reference)
            if found is not None and found[0].holds(place.bit, found[1]):
                staying.setdefault(found[0].number, []).append(found[1])
        self._leave_all(place, staying)
        self.copies -= len(place.copies)
        place.copies.clear()
        place.names.clear()
        place.names.add(list(kept), kept.values())
        return before - place.blocks

    def empty(self, place: Place) -> None:
        """Remove everything from `place`."""
        self.keep(place, ())
        place.empty()

    def _leave_all(self, place: Place, staying: Mapping[int, Sequence[int]]) -> None:
        """Remove all blocks from `place` but some offsets of some runs, by the run's number."""
        for reference in numbers(place.names.references()):
            self._leave(place, self.tree.run(reference), staying)
        if place.blocks > sum(map(len, staying.values())):  # a faulty engine gave a name to two
            for run in list(self.tree.ring):
                self._leave(place, run, staying)

    def _leave(self, place: Place, run: Run | None, staying: Mapping[int, Sequence[int]]) -> None:
        left = self._left(place, run) if run is not None else 0
        if run is None or not left:
            return
        for offset in staying.get(run.number, ()):
            self.hold(place, run, offset, 1)
        self.tree.trim(run)

    def _left(self, place: Place, run: Run) -> int:
        """Remove all blocks of a run from `place`; return how many it held."""
        self.loose -= run.loose(place.bit)
        left = run.leave(place.bit)
        if left:
            self.count(place, run.size, -left)
        return left

    def drop(self, run: Run) -> None:
        """Drop a run from the index, whoever holds it."""
        gone = references(run, 0, len(run.keys))
        for bit in list(bits(run.places())):
            place = self._by_bit[bit]
            place.names.doubt(self._left(place, run), self.tree.there)
            for reference in gone if place.copies else ():
                self.copies -= place.copies.pop(reference, None) is not None
        self.tree.trim(run)

    def purge(self) -> None:
        """Drop the names of blocks that are not in the tree any more."""
        for place in self.places():
            place.names.purge(self.tree.there)

    @property
    def promised(self) -> int:
        """Bytes that `tidy` will free."""
        return self._tally.promised

    def tidy(self, number: int) -> bool:
        """Tidy up about `number` names, as far as needed; return False if there was no need."""
        return self._tally.tidy(number)

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        size = self.tree.blocks * BLOCK_BYTES + self._tally.bytes
        size += len(self.tree) * RUN_BYTES + len(self._places) * PLACE_BYTES
        return size + self.loose * LOOSE_BYTES + self.copies * COPY_BYTES
