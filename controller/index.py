"""Which block is where: key → holders and (worker, tier) → blocks in one structure. Pure.

Keys are chained (`strategies.blocks.even_chain`), so a key names the whole path from the root, and
the tree is a map of key → run of blocks (`runs`). A prompt is matched run by run: few steps,
however many blocks. Engines name blocks in ways of their own; each place, a tier of one engine,
remembers what its names stand for (`names`), for removals come by name.

Presence is counted: engines may have a block twice (vLLM `v1/core/block_pool.py` does not merge
equal blocks, and offloaded chunks overlap), and tell so by storing and removing it twice.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec

from controller.events import Removed, Stored, Tier
from controller.names import SETTLED_BYTES, Names
from controller.orphans import Orphans
from controller.runs import LONGEST, Run, bits
from strategies.blocks import even_chain, even_root, extra_key

#: Bytes of a block: its key, its place in the map and in its run. Measured, with room to grow.
BLOCK_BYTES = 88
#: Bytes of a block for each holder: its name. As the arrays have it; new ones take more.
HOLDER_BYTES = 2 * SETTLED_BYTES
#: Bytes of a run beside its blocks.
RUN_BYTES = 224
#: Part of the bound that orphans of one engine may take.
_ORPHANS = 64

_TIERS = tuple(Tier)
_encode = msgspec.msgpack.Encoder().encode


class Place:
    """One tier of one engine."""

    __slots__ = ("bit", "blocks", "copies", "names", "sizes", "tier", "worker")

    def __init__(self, worker: str, tier: Tier, bit: int) -> None:
        self.worker = worker
        self.tier = tier
        self.bit = bit
        self.names = Names()
        self.copies: dict[int, int] = {}
        """Of blocks that are there more than once, how many more; by key."""
        self.blocks = 0
        self.sizes: set[int] = set()
        """Tokens a block, all that were seen."""

    def __repr__(self) -> str:
        return f"<Place {self.worker} {self.tier.name} {self.blocks} blocks>"


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


class Index:
    """The blocks of all engines, in at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.blocks: dict[int, Run] = {}
        self._places: dict[tuple[str, Tier], Place] = {}
        self._by_bit: dict[int, Place] = {}
        self._orphans: dict[str, Orphans] = {}
        self.ring: deque[Run] = deque()
        """Every run, and some that are empty by now."""
        self.runs = 0
        self.holders = 0
        """Blocks, counted once for each place that holds them."""
        self.counts: Counter[str] = Counter()
        """What could not be used or kept, by reason, in blocks."""

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
        if self.bytes > self._limit:
            self._shrink()

    def remove(self, worker: str, event: Removed) -> None:
        """Blocks left a tier of `worker`; those that are not known are passed over."""
        place = self.place_of_engine(worker, event.tier, event.shared)
        self._remove(worker, place, event.shared, event.hashes)

    def clear(self, worker: str, tier: Tier) -> None:
        """Everything left a tier of `worker`."""
        place = self._places.get((worker, tier))
        if place is not None:
            self._empty(place)
        orphans = self._orphans.get(worker)
        if orphans is not None:
            orphans.clear(tier)

    def forget(self, worker: str) -> None:
        """The engine is gone, with all its tiers; what lies in a shared store stays."""
        for tier in Tier:
            place = self._places.pop((worker, tier), None)
            if place is not None:
                self._empty(place)
                del self._by_bit[place.bit]
        self._orphans.pop(worker, None)

    # What prompts ask.

    def sizes(self) -> set[int]:
        """Tokens a block, all that are in use anywhere."""
        return {size for place in self._places.values() for size in place.sizes}

    def places(self) -> Iterator[Place]:
        """Every tier of every engine; the shared store is one of the engine called ``""``."""
        return iter(self._places.values())

    def place(self, worker: str, tier: Tier) -> Place | None:
        """One tier of one engine, if it was ever heard of."""
        return self._places.get((worker, tier))

    def find(self, keys: Sequence[int]) -> Found:
        """Follow a prompt's chained keys as far as anybody holds them."""
        get, number = self.blocks.get, len(keys)
        depths: dict[int, int] = {}
        steps: list[tuple[int, Run, int]] = []
        at, alive = 0, -1
        while at < number:
            run = get(keys[at])
            if run is None or run.keys[0] != keys[at]:
                break
            run.used = True
            end = at + _common(run.keys, keys, at)
            steps.append((at, run, end))
            if alive:
                alive = _step(run, at, end, alive, depths)
            at = end
        if alive > 0:
            depths.update(dict.fromkeys(bits(alive), at))
        return Found(depths, steps)

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

    def _key(self, worker: str, name: int) -> int | None:
        """Return what any tier of an engine calls by that name: they name blocks alike."""
        for tier in _TIERS:
            place = self._places.get((worker, tier))
            if place is not None and (key := place.names.get(name)) is not None:
                return key
        shared = self._places.get(("", Tier.L2))
        return None if shared is None else shared.names.get(name)

    def _store(self, worker: str, place: Place, event: Stored) -> bool:
        """Store one event; False where it cannot be, or not yet."""
        hashes, size = event.hashes, event.size
        if not size:
            return self._offloaded(worker, place, event)
        if len(event.tokens) != 4 * size * len(hashes):
            self.counts["tokens do not fit"] += len(hashes)
            return False
        above: Run | None = None
        depth = 0
        if event.parent is None:
            root = even_root(event.adapter, _salt(event))
        else:
            parent = self._key(worker, event.parent)
            above = self.blocks.get(parent) if parent else None
            if parent is None or above is None:
                self._orphan(worker).keep(event)
                return False
            if above.size != size:
                self.counts["part of a block"] += len(hashes)
                return False
            root, depth = parent, above.depth + above.offset(parent) + 1
        keys = even_chain(root, event.tokens, size)
        if event.extras is not None:
            keys = _with_extras(root, event)
        place.sizes.add(size)
        self._add(place, above, depth, keys, size)
        place.names.add(hashes, keys)
        return True

    def _offloaded(self, worker: str, place: Place, event: Stored) -> bool:
        """Blocks without tokens: the engine has told of them by the same names before."""
        for name in event.hashes:
            key = self._key(worker, name)
            run = self.blocks.get(key) if key else None
            if run is None or key is None:
                self.counts["unknown without tokens"] += 1
                continue
            place.sizes.add(run.size)
            self._hold(place, run, run.offset(key), 1)
            place.names.add([name], [key])
        return True

    def _add(
        self, place: Place, above: Run | None, depth: int, keys: Sequence[int], size: int
    ) -> None:
        """`place` holds these keys, the first of them at `depth`, after a block of `above`."""
        get = self.blocks.get
        at, number = 0, len(keys)
        while at < number:
            run = get(keys[at])
            if run is None:
                # What follows an unknown block is unknown: runs stay while others follow them.
                self._grow(place, above, depth + at, keys[at:] if at else keys, size)
                break
            offset = run.offset(keys[at])
            number_here = _common(run.keys, keys, at, offset)
            self._hold(place, run, offset, number_here)
            above = run
            at += number_here

    def _hold(self, place: Place, run: Run, offset: int, number: int) -> None:
        """`place` holds blocks of a run; those that it held before it holds once more."""
        bit = place.bit
        if run.places() & bit:
            for one in range(offset, offset + number):
                if run.holds(bit, one):
                    key = run.keys[one]
                    place.copies[key] = place.copies.get(key, 0) + 1
        new = run.add(bit, offset, offset + number)
        place.blocks += new
        self.holders += new

    def _grow(
        self, place: Place, above: Run | None, depth: int, keys: Sequence[int], size: int
    ) -> None:
        """New blocks: at the end of a run, if that is what they follow, or in runs of their own."""
        blocks, bit, at, run = self.blocks, place.bit, 0, above
        place.blocks += len(keys)
        self.holders += len(keys)
        if run is not None and depth == run.depth + len(run.keys) < run.depth + LONGEST:
            at = min(len(keys), LONGEST - len(run.keys))
            run.grow(keys[:at], bit)
            blocks.update(zip(keys[:at], repeat(run)))
        while at < len(keys):
            some = keys[at : at + LONGEST]
            if run is not None:
                run.children += 1
            run = Run(array("Q", some), depth + at, size, run, full=bit)
            blocks.update(zip(some, repeat(run)))
            self.ring.append(run)
            self.runs += 1
            at += len(some)

    def _remove(self, worker: str, place: Place, shared: bool, names: Sequence[int]) -> None:
        copies, blocks, bit = place.copies, self.blocks, place.bit
        for name in names:
            if copies and (key := place.names.get(name)) in copies:
                assert key is not None  # noqa: S101 - None is no key
                left = copies[key] - 1
                if left:
                    copies[key] = left
                else:
                    del copies[key]
                continue
            key = place.names.pop(name)
            if key is None:
                orphans = self._orphans.get(worker)
                if not orphans or not orphans.remove(place.tier, shared, name):
                    self.counts["unknown removed"] += 1
                continue
            run = blocks.get(key)
            if run is not None:
                self._discard(place, run, run.offset(key), bit)

    def _discard(self, place: Place, run: Run, offset: int, bit: int) -> None:
        if not run.discard(bit, offset):
            return
        if offset == len(run.keys) - 1:
            self._trim(run)
        place.blocks -= 1
        self.holders -= 1

    def _trim(self, run: Run | None) -> None:
        """Drop the blocks at the end that nobody holds any more, unless others follow them."""
        blocks = self.blocks
        while run is not None and not run.children:
            reach = run.reach()
            if reach == len(run.keys):
                return
            for key in run.keys[reach:]:
                del blocks[key]
            run.cut(reach)
            if reach:
                return
            self.runs -= 1
            above, run.parent = run.parent, None
            run = above
            if run is not None:
                run.children -= 1
        if len(self.ring) > 2 * self.runs + 1000:
            self.ring = deque(run for run in self.ring if run.keys)

    def _empty(self, place: Place) -> None:
        """`place` holds nothing any more."""
        get = self.blocks.get
        runs = {run for _, key in place.names if (run := get(key)) is not None}
        for run in runs:
            self.holders -= run.leave(place.bit)
            self._trim(run)
        place.names = Names()
        place.copies.clear()
        place.sizes.clear()
        place.blocks = 0

    def _orphan(self, worker: str) -> Orphans:
        orphans = self._orphans.get(worker)
        if orphans is None:
            orphans = self._orphans[worker] = Orphans(self._limit // _ORPHANS)
        return orphans

    # The bound.

    def _shrink(self) -> None:
        """Drop runs at the ends of paths that no prompt has passed for longest."""
        room = self._limit - self._limit // 32
        ring = self.ring
        spared = 0
        while self.bytes > room and ring:
            run = ring.popleft()
            if not run.keys:
                continue
            if run.children or (run.used and spared < 2 * self.runs):
                run.used = False
                spared += 1
                ring.append(run)
                continue
            self._drop(run)

    def _drop(self, run: Run) -> None:
        self.counts["dropped for room"] += len(run.keys)
        for bit in list(bits(run.places())):
            place = self._by_bit[bit]
            left = run.leave(bit)
            place.blocks -= left
            self.holders -= left
            place.names.doubt(left, self.blocks)
            for key in run.keys if place.copies else ():
                place.copies.pop(key, None)
        self._trim(run)

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        size = len(self.blocks) * BLOCK_BYTES + self.holders * HOLDER_BYTES
        size += self.runs * RUN_BYTES
        if self._orphans:
            size += sum(orphans.bytes for orphans in self._orphans.values())
        return size

    def __len__(self) -> int:
        """Different blocks."""
        return len(self.blocks)

    @property
    def waiting(self) -> int:
        """Parents that orphans wait for."""
        return sum(map(len, self._orphans.values()))

    def __repr__(self) -> str:
        return f"<Index {len(self)} blocks, {self.holders} held, {len(self._places)} places>"


def _common(run: Sequence[int], keys: Sequence[int], at: int, offset: int = 0) -> int:
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


def _salt(event: Stored) -> str:
    """Return the salt in the first block of a sequence: its one extra that is text of its own."""
    first = event.extras[0] if event.extras else None
    texts = _texts(first, event.adapter)
    return texts[0] if len(texts) == 1 else ""


def _texts(extras: object, adapter: str) -> list[str]:
    given = extras if isinstance(extras, list) else []
    return [one for one in given if isinstance(one, str) and one != adapter]


def _with_extras(root: int, event: Stored) -> list[int]:
    """Return keys of blocks whose names have more in them: images and the like.

    The adapter and the salt are in the root already.
    """
    salted = event.parent is None and bool(_salt(event))
    keys, key, width = [], root, 4 * event.size
    extras = event.extras or ()
    for number in range(len(event.hashes)):
        block = event.tokens[number * width : (number + 1) * width]
        (key,) = even_chain(key, block, event.size)
        given = extras[number] if number < len(extras) else None
        known = [event.adapter, _salt(event)] if salted and not number else [event.adapter]
        more = [one for one in given if one not in known] if isinstance(given, list) else []
        if more:
            key = extra_key(key, _encode(more))
        keys.append(key)
    return keys
