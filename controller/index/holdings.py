"""Who holds which blocks: the tree of all blocks, the caches, and their size in memory. Pure.

A cache is one tier of one engine, or the shared store. It can hold several copies of a block: vLLM
(`v1/core/block_pool.py`) does not merge equal blocks, and offloaded chunks overlap. Such a block is
announced and removed several times, so copies are counted. But if a GPU's event contains only
blocks it already holds, these are not copies. A shared store has one copy of each block, however
many engines have written it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from controller.index.block_events import Tier
from controller.index.hash_table import DEFAULT_SIZES, Compaction, HashTable, TableSizes
from controller.index.tree import MAX_RUN_BLOCKS, BlockRun, Tree, bits, common, numbers, references

#: Most names of new blocks that are tracked while a cache is doubtful: about 1 MiB.
MAX_CONFIRMED = 1 << 14
#: Answers assumed to be in flight when a loss is found out.
IN_FLIGHT_ANSWERS = 16

#: Bytes per block, for its key in its run. This and the sizes in `names` were measured as growth of
#: the process while blocks come and go, including what the allocator cannot give back.
BLOCK_BYTES = 14
#: Bytes per run, without its blocks.
RUN_BYTES = 480
#: Bytes per block that a cache holds after a gap in a run, as such blocks are stored one by one.
GAPPED_BYTES = 75
#: Bytes per block that a cache has more than once.
COPY_BYTES = 85
#: Bytes per cache, without its names.
TIER_BYTES = 1600


class TierCache:
    """One tier of one engine; the shared store is a tier of the engine ``""``."""

    __slots__ = (
        "bit",
        "blocks",
        "confirmed",
        "copies",
        "ignored_misses",
        "names",
        "sizes",
        "tier",
        "worker",
    )

    def __init__(self, worker: str, tier: Tier, bit: int, compaction: Compaction) -> None:
        """`compaction` counts the names of all caches."""
        self.worker = worker
        self.tier = tier
        self.bit = bit
        self.names = HashTable(compaction)
        self.copies: dict[int, int] = {}
        """Number of extra copies of blocks that are there more than once, by reference."""
        self.blocks = 0
        self.sizes: Counter[int] = Counter()
        """Number of blocks by size in tokens."""
        self.confirmed: set[int] | None = None
        """While its contents are doubtful, the names of blocks that came since the doubt arose, and
        are certain; None while nothing is doubtful."""
        self.ignored_misses = 0
        """How many more misses to ignore after a loss was found out: answers that were in flight
        then may miss blocks that have been announced again since."""

    def confirm(self, names: Iterable[int]) -> None:
        """Track new blocks while in doubt; after `MAX_CONFIRMED` of them, the doubt is dropped."""
        if self.confirmed is not None:
            self.confirmed.update(names)
            if len(self.confirmed) > MAX_CONFIRMED:
                self.confirmed = None

    @property
    def usual_block_size(self) -> int:
        """The most frequent block size in tokens; 0 if there are no blocks."""
        return max(self.sizes, key=self.sizes.__getitem__, default=0)

    def empty(self) -> None:
        """Drop everything it holds."""
        self.names.clear()
        self.copies.clear()
        self.sizes.clear()
        self.blocks = 0
        self.confirmed = None
        self.ignored_misses = 0


class Holdings:
    """The blocks of all caches (see `TierCache`)."""

    def __init__(self, run_blocks: int = MAX_RUN_BLOCKS, sizes: TableSizes = DEFAULT_SIZES) -> None:
        self.tree = Tree(run_blocks)
        self.holders = 0
        """Number of blocks, counted once for each cache that holds them."""
        self.loose = 0
        """How many of these come after a gap in their run."""
        self.copies = 0
        """How many of these a cache has more than once."""
        self._compaction = Compaction(sizes)
        self._caches: dict[tuple[str, Tier], TierCache] = {}
        self._by_bit: dict[int, TierCache] = {}
        self._sizes: Counter[int] = Counter()
        """Blocks by size in tokens, counted as in `holders`."""

    # The caches.

    def sizes(self) -> list[int]:
        """Return all block sizes in tokens, the most frequent first. Safe in any thread."""
        sizes = list(self._sizes.items())  # atomic
        return [size for size, _ in sorted(sizes, key=lambda entry: (-entry[1], entry[0]))]

    def caches(self) -> Iterator[TierCache]:
        """Iterate over every tier of every engine; the shared store belongs to engine ``""``."""
        return iter(self._caches.values())

    def cache(self, worker: str, tier: Tier) -> TierCache | None:
        """Return one tier of one engine, or None if it was never heard of."""
        return self._caches.get((worker, tier))

    def cache_of(self, bit: int) -> TierCache:
        """Return the cache with this bit."""
        return self._by_bit[bit]

    def cache_for(self, worker: str, tier: Tier, shared: bool) -> TierCache:
        """Return one tier of one engine, or the shared store; create it if needed."""
        name = ("", Tier.L2) if shared else (worker, tier)
        cache = self._caches.get(name)
        if cache is None:
            taken = sum(self._by_bit)
            bit = ~taken & (taken + 1)  # the lowest free one
            cache = self._caches[name] = self._by_bit[bit] = TierCache(*name, bit, self._compaction)
        return cache

    def close(self, worker: str, tier: Tier) -> None:
        """Drop a tier with all that it held."""
        cache = self._caches.pop((worker, tier), None)
        if cache is not None:
            self.empty(cache)
            del self._by_bit[cache.bit]

    # Adding.

    def add(
        self, cache: TierCache, above: BlockRun | None, offset: int, keys: list[int], size: int
    ) -> list[int]:
        """Add blocks of `cache` that follow block `offset` of `above`; return their references."""
        added: list[int] = []
        repeated: list[int] = []
        at, number = 0, len(keys)
        while at < number:
            following = self.tree.after(above, offset, keys[at])
            if following is None:
                # If a block is unknown, so are all after it: no run is dropped before its children.
                added += self._grow(cache, above, offset, keys[at:] if at else keys, size)
                break
            above, start = following
            here = common(above.keys, keys, at, start)
            repeated += self.hold(cache, above, start, here)
            added += references(above, start, here)
            offset = start + here - 1
            at += here
        self.repeat(cache, repeated, number)
        return added

    def hold(self, cache: TierCache, run: BlockRun, start: int, number: int) -> list[int]:
        """Add existing blocks of a run to `cache`; return references to those it held before."""
        bit, repeated = cache.bit, []
        if run.holders() & bit:
            repeated = [
                reference
                for offset, reference in enumerate(references(run, start, number), start)
                if run.holds(bit, offset)
            ]
        self.loose -= run.loose(bit)
        new = run.add(bit, start, start + number)
        self.loose += run.loose(bit)
        if new:
            self.count(cache, run.size, new)
        return repeated

    def repeat(self, cache: TierCache, repeated: list[int], number: int) -> None:
        """Count further copies on `cache`: blocks it held before, of the `number` in one event.

        A GPU event without any new block may report reuse instead (vLLM `kv_cache_report_mode`,
        "full"), so it is ignored: blocks counted as copies by mistake would never leave. If they
        were copies after all, the first removal takes the block away, and too little is predicted
        instead of too much.
        """
        if cache.tier is Tier.GPU and len(repeated) == number:
            return
        copies = cache.copies
        for reference in repeated:
            self.copies += reference not in copies
            copies[reference] = copies.get(reference, 0) + 1 if cache.worker else 1

    def count(self, cache: TierCache, size: int, number: int) -> None:
        """Count `number` more blocks of `size` tokens on `cache`; fewer if negative."""
        cache.blocks += number
        self.holders += number
        for sizes in (cache.sizes, self._sizes):
            sizes[size] += number
            if not sizes[size]:
                del sizes[size]

    def _grow(
        self, cache: TierCache, above: BlockRun | None, offset: int, keys: list[int], size: int
    ) -> list[int]:
        """Add new blocks: at the end of the run they follow, if possible, else in new runs."""
        tree, bit, at = self.tree, cache.bit, 0
        self.count(cache, size, len(keys))
        added: list[int] = []
        if above is not None and offset + 1 == len(above.keys):
            self.loose -= above.loose(bit)
            at = tree.lengthen(above, keys, bit)
            self.loose += above.loose(bit)
            added += references(above, offset + 1, at)
        depth = above.depth + offset + 1 if above is not None else 0
        while at < len(keys):
            chunk = keys[at : at + tree.run_blocks]
            above = tree.add(chunk, depth + at, size, above, bit)
            added += references(above, 0, len(chunk))
            at += len(chunk)
        return added

    # Removing.

    def remove(self, cache: TierCache, name: int) -> bool:
        """Remove one copy of the block with that name from `cache`; return whether it was known."""
        copies = cache.copies
        if copies and (known := cache.names.get(name)) in copies:
            assert known is not None  # noqa: S101 - None is no reference
            left = copies[known] - 1 if cache.worker else 0
            if left:
                copies[known] = left
            else:
                del copies[known]
                self.copies -= 1
            if cache.worker:
                return True
        reference = cache.names.pop(name)
        if reference is None:
            return False
        block = self.tree.at(reference)
        if block is not None:
            self._discard(cache, *block)
        return True

    def _discard(self, cache: TierCache, run: BlockRun, offset: int) -> None:
        self.loose -= run.loose(cache.bit)
        gone = run.discard(cache.bit, offset)
        self.loose += run.loose(cache.bit)
        if gone:
            self.count(cache, run.size, -1)
            if offset == len(run.keys) - 1:
                self.tree.trim(run)

    def lose(self, cache: TierCache, keys: Sequence[int], start: int, stop: int) -> int:
        """Remove blocks of a prompt that were not found on a cache; return how many it held.

        Of a block with several copies only one is removed: the cache may have announced it again
        since.
        """
        before, copies = cache.blocks, cache.copies
        for begin, run, end in reversed(self.tree.find(keys[:stop]).steps):
            for offset in range(end - begin - 1, max(start - begin, 0) - 1, -1):
                (reference,) = references(run, offset, 1)
                left = copies.get(reference, 0) - 1
                if left < 0:
                    self._discard(cache, run, offset)
                elif left:
                    copies[reference] = left
                else:
                    del copies[reference]
                    self.copies -= 1
        return before - cache.blocks

    def keep(self, cache: TierCache, names: Iterable[int]) -> int:
        """Remove everything but blocks with these names; return how many blocks that were.

        Of each block that stays there is one copy.
        """
        before = cache.blocks
        known = ((name, cache.names.get(name)) for name in names)
        kept = {name: reference for name, reference in known if reference is not None}
        staying: dict[int, list[int]] = {}
        for reference in sorted(set(kept.values())):
            block = self.tree.at(reference)
            if block is not None and block[0].holds(cache.bit, block[1]):
                staying.setdefault(block[0].number, []).append(block[1])
        self._leave_all(cache, staying)
        self.copies -= len(cache.copies)
        cache.copies.clear()
        cache.names.clear()
        cache.names.add(list(kept), kept.values())
        return before - cache.blocks

    def empty(self, cache: TierCache) -> None:
        """Remove everything from `cache`."""
        self.keep(cache, ())
        cache.empty()

    def _leave_all(self, cache: TierCache, staying: Mapping[int, Sequence[int]]) -> None:
        """Remove all blocks from `cache` but some offsets of some runs, by the run's number."""
        for reference in numbers(cache.names.references()):
            self._leave(cache, self.tree.run(reference), staying)
        if cache.blocks > sum(map(len, staying.values())):  # a faulty engine gave a name to two
            for run in list(self.tree.ring):
                self._leave(cache, run, staying)

    def _leave(
        self, cache: TierCache, run: BlockRun | None, staying: Mapping[int, Sequence[int]]
    ) -> None:
        if run is not None and self._left(cache, run):
            for offset in staying.get(run.number, ()):
                self.hold(cache, run, offset, 1)
            self.tree.trim(run)

    def _left(self, cache: TierCache, run: BlockRun) -> int:
        """Remove all blocks of a run from `cache`; return how many it held."""
        self.loose -= run.loose(cache.bit)
        left = run.leave(cache.bit)
        if left:
            self.count(cache, run.size, -left)
        return left

    def drop(self, run: BlockRun) -> None:
        """Drop a run from the index, whoever holds it."""
        gone = references(run, 0, len(run.keys))
        for bit in list(bits(run.holders())):
            cache = self._by_bit[bit]
            cache.names.mark_stale(self._left(cache, run), self.tree.existing)
            for reference in gone if cache.copies else ():
                self.copies -= cache.copies.pop(reference, None) is not None
        self.tree.trim(run)

    def purge(self) -> None:
        """Drop the names of blocks that are not in the tree any more."""
        for cache in self.caches():
            cache.names.purge(self.tree.existing)

    @property
    def reclaimable(self) -> int:
        """Bytes that `compact` will free."""
        return self._compaction.reclaimable

    def compact(self, number: int) -> bool:
        """Compact about `number` names; return False if there was no need."""
        return self._compaction.compact(number)

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        size = self.tree.blocks * BLOCK_BYTES + self._compaction.bytes
        size += len(self.tree) * RUN_BYTES + len(self._caches) * TIER_BYTES
        return size + self.loose * GAPPED_BYTES + self.copies * COPY_BYTES
