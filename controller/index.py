"""Which block is where: key → holders and (worker, tier) → blocks in one structure. Pure.

Keys are chained (`strategies.blocks.even_chain`), so a key names the whole path from the root, and
a prompt is matched run by run of the `tree`: few steps, however many blocks. Engines name blocks in
ways of their own; each place, a tier of one engine, remembers what its names stand for (`names`),
for removals come by name.

Presence is counted: engines may have a block twice (vLLM `v1/core/block_pool.py` does not merge
equal blocks, and offloaded chunks overlap), and tell so by storing and removing it twice. What a
GPU tells again with nothing new beside it is no second one.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from controller.events import Removed, Stored, Tier
from controller.keys import keys_of, root_of
from controller.names import SETTLED_BYTES
from controller.orphans import Orphans, Room
from controller.place import Place
from controller.runs import LONGEST, Run, bits
from controller.tree import Found, Tree, common, numbers, references
from controller.unsaid import emptied
from strategies.blocks import even_chain

#: Bytes of a block: its key in its run. Measured, with room to grow.
BLOCK_BYTES = 10
#: Bytes of a block for each holder: its name. The arrays have it in less, what is new takes more.
HOLDER_BYTES = 3 * SETTLED_BYTES
#: Bytes of a run beside its blocks.
RUN_BYTES = 400
#: Bytes of a block that a place holds after one that it lacks: it is remembered by itself.
LOOSE_BYTES = 80
#: Bytes of a block that a place has more than once.
COPY_BYTES = 120
#: Part of the bound that the orphans of all engines may take.
_ORPHANS = 8

_TIERS = tuple(Tier)


class Index:
    """The blocks of all engines, in at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit = limit_bytes
        """The bound."""
        self.tree = Tree()
        self._places: dict[tuple[str, Tier], Place] = {}
        self._by_bit: dict[int, Place] = {}
        self._orphans: dict[str, Orphans] = {}
        self._sizes: Counter[int] = Counter()
        """Of blocks, as `holders` counts them."""
        self.holders = 0
        """Blocks, counted once for each place that holds them."""
        self.loose = 0
        """Of these, those after one that the place lacks."""
        self.copies = 0
        """And those that it has more than once."""
        self.counts: Counter[str] = Counter()
        """What could not be used or kept, by reason, in blocks."""
        self._room = Room(limit_bytes // _ORPHANS, self.counts)

    # What engines tell.

    def store(self, worker: str, event: Stored) -> None:
        """Blocks lie on a tier of `worker` from now on."""
        todo: list[tuple[Stored, Sequence[int]]] = [(event, ())] if event.hashes else []
        while todo:
            event, gone = todo.pop()
            place = self.place_of_engine(worker, event.tier, event.shared)
            if not self._store(worker, place, event):
                continue
            if gone:
                self._remove(worker, place, event.shared, gone)
            orphans = self._orphans.get(worker)
            if orphans:
                for name in event.hashes:
                    todo += [(one.event, one.gone) for one in orphans.of(name)]
        if self.bytes > self.limit:
            self._shrink()

    def remove(self, worker: str, event: Removed) -> None:
        """Blocks left a tier of `worker`; those that are not known are passed over."""
        place = self.place_of_engine(worker, event.tier, event.shared)
        self._remove(worker, place, event.shared, event.hashes)

    def clear(self, worker: str, tier: Tier) -> None:
        """Everything left a tier of `worker`.

        With the GPU, vLLM may have emptied the host's memory too (`/reset_prefix_cache` with
        `reset_external`), and tells nothing of it: what lies there is doubtful from now on.
        """
        place = self._places.get((worker, tier))
        if place is not None:
            self._empty(place)
        orphans = self._orphans.get(worker)
        if orphans is not None:
            orphans.clear(tier)
        host = self._places.get((worker, Tier.L1))
        if tier is Tier.GPU and host is not None:
            host.since = set()

    def adopt(self, other: "Index") -> None:
        """Hold what another one holds, which is not to be used any more; only while empty."""
        self.tree, self.holders, self._sizes = other.tree, other.holders, other._sizes  # noqa: SLF001 - of its own kind
        self.loose, self.copies = other.loose, other.copies
        self._places, self._by_bit = other._places, other._by_bit  # noqa: SLF001
        if self.bytes > self.limit:
            self._shrink()

    def forget(self, worker: str) -> None:
        """The engine is gone, with all its tiers; what lies in a shared store stays."""
        for tier in Tier:
            place = self._places.pop((worker, tier), None)
            if place is not None:
                self._empty(place)
                del self._by_bit[place.bit]
        orphans = self._orphans.pop(worker, None)
        if orphans is not None:
            orphans.forget()

    # What prompts ask.

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

    def find(self, keys: Sequence[int]) -> Found:
        """Follow a prompt's chained keys as far as anybody holds them."""
        return self.tree.find(keys)

    def place_of(self, bit: int) -> Place:
        """Whose bit it is."""
        return self._by_bit[bit]

    # How it is done.

    def place_of_engine(self, worker: str, tier: Tier, shared: bool) -> Place:
        """One tier of one engine; what is shared belongs to nobody."""
        name = ("", Tier.L2) if shared else (worker, tier)
        place = self._places.get(name)
        if place is None:
            taken = sum(self._by_bit)
            bit = ~taken & (taken + 1)  # the lowest free one
            place = self._places[name] = self._by_bit[bit] = Place(*name, bit)
        return place

    def _block(self, worker: str, name: int) -> tuple[Run, int] | None:
        """Return what any tier of an engine calls by that name: they name blocks alike."""
        for where in (*((worker, tier) for tier in _TIERS), ("", Tier.L2)):
            place = self._places.get(where)
            reference = place.names.get(name) if place is not None else None
            if reference is not None and (found := self.tree.at(reference)) is not None:
                return found
        return None

    def _store(self, worker: str, place: Place, event: Stored) -> bool:
        """Store one event; False where it cannot be, or not yet."""
        hashes, size = event.hashes, event.size
        if place.told_again(hashes):
            emptied(self, place)
        if not size:
            return self._offloaded(worker, place, event)
        if len(event.tokens) != 4 * size * len(hashes):
            self.counts["tokens do not fit"] += len(hashes)
            return False
        known = self._known(worker, event)
        if known is None:
            self._orphan(worker).keep(event)
            return False
        above, offset, keys = known
        if above is not None and above.size != size:
            self.counts["part of a block"] += len(hashes)
            return False
        added = self._add(place, above, offset, keys, size)
        place.names.add(hashes, added)
        place.came(hashes)
        return True

    def _known(self, worker: str, event: Stored) -> tuple[Run | None, int, list[int]] | None:
        """Return after which block of which run an event's blocks come, and their keys; None while
        that is not known.

        What offload tiers are told to hold lacks salts and hashes of images, which are part of the
        names alone (vLLM `kv_connector/v1/offloading/events.py`): who is known by name is that.
        """
        if event.tier is not Tier.GPU and event.extras is None:
            found = self._block(worker, event.hashes[0])
            if found is not None and found[0].size == event.size:
                run, offset = found
                rest = event.tokens[4 * event.size :]
                keys = [run.keys[offset], *even_chain(run.keys[offset], rest, event.size)]
                return (run, offset - 1, keys) if offset else (None, -1, keys)
        if event.parent is None:
            return None, -1, keys_of(event, root_of(event))
        found = self._block(worker, event.parent)
        return None if found is None else (*found, keys_of(event, found[0].keys[found[1]]))

    def _offloaded(self, worker: str, place: Place, event: Stored) -> bool:
        """Blocks without tokens: the engine has told of them by the same names before."""
        repeated: list[int] = []
        known = 0
        for name in event.hashes:
            found = self._block(worker, name)
            if found is None:
                self.counts["unknown without tokens"] += 1
                continue
            run, offset = found
            known += 1
            repeated += self._hold(place, run, offset, 1)
            place.names.add([name], references(run, offset, 1))
            place.came([name])
        self._repeat(place, repeated, known)
        return True

    def _add(
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
            repeated += self._hold(place, above, start, here)
            more = references(above, start, here)
            added = [*added, *more] if added else more
            offset = start + here - 1
            at += here
        self._repeat(place, repeated, number)
        return added

    def _hold(self, place: Place, run: Run, start: int, number: int) -> list[int]:
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

    def _repeat(self, place: Place, repeated: list[int], number: int) -> None:
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
            copies[reference] = copies.get(reference, 0) + 1

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

    def _remove(self, worker: str, place: Place, shared: bool, names: Sequence[int]) -> None:
        copies = place.copies
        if place.since:
            place.since.difference_update(names)
        for name in names:
            if copies and (known := place.names.get(name)) in copies:
                assert known is not None  # noqa: S101 - None is no reference
                left = copies[known] - 1
                if left:
                    copies[known] = left
                else:
                    del copies[known]
                    self.copies -= 1
                continue
            reference = place.names.pop(name)
            if reference is None:
                orphans = self._orphans.get(worker)
                if not orphans or not orphans.remove(place.tier, shared, name):
                    self.counts["unknown removed"] += 1
                continue
            found = self.tree.at(reference)
            if found is not None:
                self.discard(place, *found)

    def discard(self, place: Place, run: Run, offset: int) -> None:
        """`place` holds one block of a run no more."""
        self.loose -= run.loose(place.bit)
        gone = run.discard(place.bit, offset)
        self.loose += run.loose(place.bit)
        if gone:
            self.count(place, run.size, -1)
            if offset == len(run.keys) - 1:
                self.tree.trim(run)

    def _empty(self, place: Place) -> None:
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

    def _orphan(self, worker: str) -> Orphans:
        orphans = self._orphans.get(worker)
        if orphans is None:
            orphans = self._orphans[worker] = Orphans(self._room)
        return orphans

    # The bound.

    def _shrink(self) -> None:
        """Drop runs at the ends of paths that no prompt has passed for longest."""
        room = self.limit - self.limit // 32
        spared = 0
        while self.bytes > room and self.tree.ring:
            run = self.tree.ring.popleft()
            if not run.keys:
                continue
            if run.children or (run.used and spared < 2 * len(self.tree)):
                run.used = False
                spared += 1
                self.tree.ring.append(run)
                continue
            self._drop(run)

    def _drop(self, run: Run) -> None:
        self.counts["dropped for room"] += len(run.keys)
        gone = references(run, 0, len(run.keys))
        for bit in list(bits(run.places())):
            place = self._by_bit[bit]
            place.names.doubt(self._left(place, run), self.tree)
            for reference in gone if place.copies else ():
                self.copies -= place.copies.pop(reference, None) is not None
        self.tree.trim(run)

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        size = self.tree.blocks * BLOCK_BYTES + self.holders * HOLDER_BYTES
        size += len(self.tree) * RUN_BYTES
        size += self.loose * LOOSE_BYTES + self.copies * COPY_BYTES
        return size + self._room.bytes

    def __len__(self) -> int:
        """Different blocks."""
        return self.tree.blocks

    @property
    def waiting(self) -> int:
        """Parents that orphans wait for."""
        return sum(map(len, self._orphans.values()))

    def __repr__(self) -> str:
        return f"<Index {len(self)} blocks, {self.holders} held, {len(self._places)} places>"
