"""A bounded prefix tree of what was sent where: one flat map, and each worker's order of use.

A chained key names the whole path from the root, so a map of key → holders is the tree. Holders
are a bit mask, and deeper holders are always a subset of shallower ones, so every worker's depth
is found by halving the path.

Each worker's blocks stand in the order of their use, as they do in its own cache. A path is
touched from its leaf up to the root, so a child is never younger than its parent and the oldest
block is always a leaf: eviction cuts leaves first, as engines do (vLLM `v1/core/block_pool.py`
frees a request's blocks in reverse), and what remains stays connected.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

#: Every block counts one.
BLOCKS = range(1 << 32)
UNBOUNDED = 1 << 62
#: Bytes of a block: its key, its mask, its places in both maps. Measured 260, with room to grow.
BLOCK_BYTES = 320


class Placement(NamedTuple):
    """What one `insert` did."""

    number: int
    """Of this worker's placements."""
    new: int
    """Blocks that the worker did not hold before: the last ones of the prompt."""


class PrefixTree:
    """Which worker was sent which prefix; at most `limit_bytes` large, in equal shares."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes // BLOCK_BYTES
        self._holders: dict[int, int] = {}
        self._workers: dict[str, _Shadow] = {}
        self._names: dict[int, str] = {}
        """Which worker a bit stands for."""

    def insert(
        self,
        keys: Sequence[int],
        worker: str,
        capacity: int | None = None,
        ends: Sequence[int] = BLOCKS,
    ) -> Placement:
        """Record that `worker` was sent the prompt with these chained keys.

        `capacity` is how much its own cache holds, if known: it forgets beyond that. `ends` tells
        how much the first blocks take, in the same unit; otherwise each of them counts one.
        """
        shadow = self._workers.get(worker) or self._join(worker)
        room = self._share()
        capacity = UNBOUNDED if capacity is None else capacity
        # Of a path longer than the room, only what is nearest to the root could be kept.
        kept = min(len(keys), room)
        if ends[kept] > capacity:
            kept = bisect_right(ends, capacity, hi=kept) - 1
        holders, order, bit = self._holders, shadow.order, shadow.bit
        touch = order.move_to_end
        new = 0
        for place in range(kept - 1, -1, -1):
            key = keys[place]
            if key in order:
                touch(key)
            else:
                order[key] = size = ends[place + 1] - ends[place]
                shadow.size += size
                holders[key] = holders.get(key, 0) | bit
                new += 1
        if len(order) > room or shadow.size > capacity:
            self._shrink(shadow, room, capacity)
        shadow.placements += 1
        return Placement(shadow.placements, new)

    def held(self, keys: Sequence[int]) -> dict[str, int]:
        """Return, for each worker that holds any, how many of the first blocks it holds."""
        get = self._holders.get
        if not keys:
            return {}
        first = get(keys[0], 0)
        whole = get(keys[-1], 0)
        depths: dict[str, int] = {}
        self._credit(whole, len(keys), depths)
        if first == whole:  # so do most: they hold all of it, or nothing
            return depths
        spans = [(1, first, len(keys), whole)]
        while spans:
            low, low_mask, high, high_mask = spans.pop()
            if low_mask == high_mask:
                continue
            if high - low == 1:
                self._credit(low_mask & ~high_mask, low, depths)
                continue
            middle = (low + high) // 2
            mask = get(keys[middle - 1], 0)
            spans.append((low, low_mask, middle, mask))
            spans.append((middle, mask, high, high_mask))
        return depths

    def _credit(self, mask: int, depth: int, depths: dict[str, int]) -> None:
        """Write down `depth` for each worker in `mask`."""
        while mask:
            bit = mask & -mask
            mask ^= bit
            depths[self._names[bit]] = depth

    def take_back(self, keys: Sequence[int], worker: str, placement: Placement) -> None:
        """`worker` did not take this prompt on: drop the blocks that its placement added.

        Only if nothing was placed there since; then they are leaves that nobody else stands on,
        and what remains stays connected. Otherwise they are left to age.
        """
        shadow = self._workers.get(worker)
        if shadow is None or shadow.placements != placement.number:
            return
        path = [key for key in keys if key in shadow.order]
        for key in path[len(path) - placement.new :]:
            shadow.size -= shadow.order.pop(key)
            self._release(key, shadow.bit)

    def forget(self, worker: str) -> None:
        """Drop everything `worker` held."""
        shadow = self._workers.pop(worker, None)
        if shadow is not None:
            self._shrink(shadow, 0)
            del self._names[shadow.bit]

    def _join(self, worker: str) -> "_Shadow":
        taken = sum(self._names)
        shadow = self._workers[worker] = _Shadow(~taken & (taken + 1))  # the lowest free bit
        self._names[shadow.bit] = worker
        for other in self._workers.values():  # everyone's share has become smaller
            self._shrink(other, self._share())
        return shadow

    def _share(self) -> int:
        return max(1, self._limit // len(self._workers))

    def _shrink(self, shadow: "_Shadow", room: int, capacity: int = UNBOUNDED) -> None:
        order = shadow.order
        while len(order) > room or shadow.size > capacity:
            key, size = order.popitem(last=False)
            shadow.size -= size
            self._release(key, shadow.bit)

    def _release(self, key: int, bit: int) -> None:
        left = self._holders[key] & ~bit
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]

    def __len__(self) -> int:
        """Blocks in the tree, counted once for each holder."""
        return sum(len(shadow.order) for shadow in self._workers.values())

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        return len(self) * BLOCK_BYTES


class _Shadow:
    """What one worker was sent, the oldest use first."""

    __slots__ = ("bit", "order", "placements", "size")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.placements = 0
        self.size = 0
        self.order: OrderedDict[int, int] = OrderedDict()
        """How much each block takes, by its key."""
