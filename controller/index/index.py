"""The index of blocks: key → holders and (worker, tier) → blocks in one structure. Pure.

Keys are chained (`strategies.prefix.block_keys.even_chain`), so a key identifies the whole path
from the root, and a prompt is matched run by run of the `tree`: a few steps, however many blocks.
Engines have their own names for blocks. As removals come by name, each cache (a tier of one engine)
maps its names to blocks (`hash_table`). `holdings` stores who holds what; this module interprets
events, computes their blocks' keys from tokens and whatever else names cover, and drops blocks when
memory runs out.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from controller.index.block_events import BlockRemoved, BlockStored, Tier
from controller.index.hash_table import DEFAULT_SIZES, TableSizes
from controller.index.holdings import IN_FLIGHT_ANSWERS, Holdings, TierCache
from controller.index.orphans import OrphanBudget, Orphans
from controller.index.tree import MAX_RUN_BLOCKS, BlockRun, PrefixMatch, references
from strategies.prefix.block_keys import even_chain, even_root, extra_key

_encode = msgspec.msgpack.Encoder().encode


def root_of(event: BlockStored) -> int:
    """Return the key before the first block of a sequence."""
    return even_root(event.adapter, _salt(event) if event.extras else "")


def keys_of(event: BlockStored, root: int) -> list[int]:
    """Return the key of each block; `root` is the key before the first."""
    if event.extras is None:
        return even_chain(root, event.tokens, event.size)
    return _with_extras(root, event)


def _salt(event: BlockStored) -> str:
    """Return the salt: the only text among the first block's extras, apart from the adapter."""
    first = event.extras[0] if event.extras else None
    extras = first if isinstance(first, list) else []
    texts = [extra for extra in extras if isinstance(extra, str) and extra != event.adapter]
    return texts[0] if len(texts) == 1 else ""


def _with_extras(root: int, event: BlockStored) -> list[int]:
    """Return the keys of blocks whose names cover more than tokens, such as images.

    The adapter and the salt are part of the root already.
    """
    salt = _salt(event) if event.parent is None else ""
    keys, key, width = [], root, 4 * event.size
    extras = event.extras or ()
    for number in range(len(event.hashes)):
        block = event.tokens[number * width : (number + 1) * width]
        (key,) = even_chain(key, block, event.size)
        given = extras[number] if number < len(extras) else None
        known = [event.adapter, salt] if salt and not number else [event.adapter]
        more = [extra for extra in given if extra not in known] if isinstance(given, list) else []
        if more:
            key = extra_key(key, _encode(more))
        keys.append(key)
    return keys


#: The orphans of all engines may take 1 / `_ORPHAN_SHARE` of the memory bound.
_ORPHAN_SHARE = 8

#: Steps that an event takes to make room, plus one for 8 of its blocks; see `Index._shrink`. If a
#: prompt has used every run, the index grows by 1 / `_SHRINK_STEPS` before one is dropped.
_SHRINK_STEPS = 64

_TIERS = tuple(Tier)


class Index:
    """The blocks of all engines, in at most `limit_bytes`."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        run_blocks: int = MAX_RUN_BLOCKS,
        sizes: TableSizes = DEFAULT_SIZES,
    ) -> None:
        self.limit = limit_bytes
        """Memory bound in bytes."""
        self._compacted = sizes.page // 2
        """About so many names are compacted with each event, plus 8 for each of its blocks. That is
        enough, as they have to be when an eighth is new or stale; and takes a few milliseconds."""
        self._high = limit_bytes - limit_bytes // 32
        self._low = self._high - limit_bytes // 256
        self.holdings = Holdings(run_blocks, sizes)
        self._orphans: dict[str, Orphans] = {}
        self.counts: Counter[str] = Counter()
        """Number of blocks that could not be used or kept, by reason."""
        self._orphan_budget = OrphanBudget(limit_bytes // _ORPHAN_SHARE, self.counts)

    # Events.

    def store(self, worker: str, event: BlockStored) -> None:
        """Apply an event: blocks are on a tier of `worker` from now on."""
        number = len(event.hashes)
        todo: list[tuple[BlockStored, Sequence[int]]] = [(event, ())] if number else []
        while todo:
            event, gone = todo.pop()
            cache = self.holdings.cache_for(worker, event.tier, event.shared)
            if not self._store(worker, cache, event):
                continue
            if gone:
                self._remove(worker, cache, event.shared, gone)
            orphans = self._orphans.get(worker)
            if orphans:
                for name in event.hashes:
                    todo += [(orphan.event, orphan.gone) for orphan in orphans.of(name)]
        self.holdings.compact(self._compacted + 8 * number)
        if self.bytes > self._high:
            self._shrink(_SHRINK_STEPS + number // 8)

    def remove(self, worker: str, event: BlockRemoved) -> None:
        """Apply an event: blocks left a tier of `worker`. Unknown ones are only counted."""
        cache = self.holdings.cache_for(worker, event.tier, event.shared)
        self._remove(worker, cache, event.shared, event.hashes)
        self.holdings.compact(self._compacted)

    def clear(self, worker: str, tier: Tier) -> None:
        """Apply an event: everything left a tier of `worker`.

        When vLLM clears the GPU, it may also have emptied host memory (`/reset_prefix_cache` with
        `reset_external`) without an event, so the contents of L1 are doubtful from now on.
        """
        cache = self.cache(worker, tier)
        if cache is not None:
            self.holdings.empty(cache)
        orphans = self._orphans.get(worker)
        if orphans is not None:
            orphans.clear(tier)
        host = self.cache(worker, Tier.L1)
        if tier is Tier.GPU and host is not None:
            host.confirmed = set()

    def forget(self, worker: str) -> None:
        """Drop an engine with all its tiers; blocks in a shared store stay."""
        for tier in Tier:
            self.holdings.close(worker, tier)
        orphans = self._orphans.pop(worker, None)
        if orphans is not None:
            orphans.forget()

    def adopt(self, holdings: Holdings) -> None:
        """Take over a snapshot's holdings, as far as there is room; only while empty."""
        self.holdings = holdings
        self._shrink(0)

    # Queries.

    def sizes(self) -> list[int]:
        """See `Holdings.sizes`."""
        return self.holdings.sizes()

    def caches(self) -> Iterator[TierCache]:
        """See `Holdings.caches`."""
        return self.holdings.caches()

    def cache(self, worker: str, tier: Tier) -> TierCache | None:
        """See `Holdings.cache`."""
        return self.holdings.cache(worker, tier)

    def cache_of(self, bit: int) -> TierCache:
        """See `Holdings.cache_of`."""
        return self.holdings.cache_of(bit)

    def find(self, keys: Sequence[int]) -> PrefixMatch:
        """Follow a prompt's chained keys as far as they are in the tree."""
        return self.holdings.tree.find(keys)

    # Storing and removing.

    def _block(self, worker: str, name: int) -> tuple[BlockRun, int] | None:
        """Return the block with that name on any tier of an engine: all tiers name blocks alike."""
        for where in (*((worker, tier) for tier in _TIERS), ("", Tier.L2)):
            cache = self.holdings.cache(*where)
            reference = cache.names.get(name) if cache is not None else None
            if reference is not None and (block := self.holdings.tree.at(reference)) is not None:
                return block
        return None

    def _store(self, worker: str, cache: TierCache, event: BlockStored) -> bool:
        """Store the blocks of one event; return False if that is not possible, or not yet."""
        hashes, size = event.hashes, event.size
        if cache.confirmed is not None and self._announced_again(cache, hashes):
            self._lose(cache)
            cache.ignored_misses = IN_FLIGHT_ANSWERS
        if not size:
            return self._offloaded(worker, cache, event)
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
        added = self.holdings.add(cache, above, offset, keys, size)
        cache.names.add(hashes, added)
        cache.confirm(hashes)
        return True

    def _known(
        self, worker: str, event: BlockStored
    ) -> tuple[BlockRun | None, int, list[int]] | None:
        """Return the run and offset after which an event's blocks come, and their keys.

        None while the parent is unknown. Events of offload tiers lack salts and image hashes, which
        only show in the names (vLLM `kv_connector/v1/offloading/events.py`); so a block there whose
        name is known is taken to be the known block.
        """
        if event.tier is not Tier.GPU and event.extras is None:
            block = self._block(worker, event.hashes[0])
            if block is not None and block[0].size == event.size:
                run, offset = block
                rest = event.tokens[4 * event.size :]
                keys = [run.keys[offset], *even_chain(run.keys[offset], rest, event.size)]
                return (run, offset - 1, keys) if offset else (None, -1, keys)
        if event.parent is None:
            return None, -1, keys_of(event, root_of(event))
        parent = self._block(worker, event.parent)
        return None if parent is None else (*parent, keys_of(event, parent[0].keys[parent[1]]))

    # Losses without an event.

    def doubt(self, worker: str) -> None:
        """Learn that `worker` missed a block on L1: if L1 is doubtful, its old blocks are gone."""
        host = self.cache(worker, Tier.L1)
        if host is not None and host.confirmed is not None:
            self._lose(host)

    @staticmethod
    def _announced_again(cache: TierCache, names: Sequence[int]) -> bool:
        """Return true if a cache had all these before it was in doubt, and none came since."""
        confirmed, get = cache.confirmed or (), cache.names.get
        return all(name not in confirmed and get(name) is not None for name in names)

    def _lose(self, cache: TierCache) -> None:
        """Remove everything that `cache` had before its engine was cleared."""
        confirmed, cache.confirmed = cache.confirmed or set(), None
        self.counts["gone without a word"] += self.holdings.keep(cache, confirmed)

    def _offloaded(self, worker: str, cache: TierCache, event: BlockStored) -> bool:
        """Store blocks without tokens: the engine has announced them by the same names before."""
        repeated: list[int] = []
        known = 0
        for name in event.hashes:
            block = self._block(worker, name)
            if block is None:
                self.counts["unknown without tokens"] += 1
                continue
            run, offset = block
            known += 1
            repeated += self.holdings.hold(cache, run, offset, 1)
            cache.names.add([name], references(run, offset, 1))
            cache.confirm([name])
        self.holdings.repeat(cache, repeated, known)
        return True

    def _remove(self, worker: str, cache: TierCache, shared: bool, names: Sequence[int]) -> None:
        remove = self.holdings.remove
        if cache.confirmed:
            cache.confirmed.difference_update(names)
        for name in names:
            if remove(cache, name):
                continue
            orphans = self._orphans.get(worker)
            if not orphans or not orphans.remove(cache.tier, shared, name):
                self.counts["unknown removed"] += 1

    def _orphan(self, worker: str) -> Orphans:
        orphans = self._orphans.get(worker)
        if orphans is None:
            orphans = self._orphans[worker] = Orphans(self._orphan_budget)
        return orphans

    # The memory bound.

    def _shrink(self, steps: int) -> None:
        """Drop runs without children that no prompt has used lately, to make room.

        The work is limited by `steps`: looking at a run is one, and so is each cache that holds it
        when it is dropped. More are taken only while the bound is exceeded. What is dropped counts
        as free at once, though its names are looked for later.
        """
        held, tree = self.holdings, self.holdings.tree
        while tree.ring:
            enough = steps <= 0 or self.bytes - held.reclaimable <= self._low
            if enough and self.bytes <= self.limit:
                break
            if enough and held.compact(self._compacted):
                continue
            steps -= 1
            run = tree.ring.popleft()
            if not run.keys:
                continue
            if run.children or run.used:
                run.used = False
                tree.ring.append(run)
                continue
            steps -= run.holders().bit_count()
            self.counts["dropped for room"] += len(run.keys)
            held.drop(run)
            if not len(tree):  # only names are left
                held.purge()

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        return self.holdings.bytes + self._orphan_budget.bytes

    def __len__(self) -> int:
        """Return the number of different blocks."""
        return self.holdings.tree.blocks

    @property
    def waiting(self) -> int:
        """Number of parents that orphans wait for."""
        return sum(map(len, self._orphans.values()))
