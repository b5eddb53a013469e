"""A bounded prefix tree of what was sent where, as one flat map.

A chained key names the whole path from the root, so a map of key → holders is the tree. Holders
are a bit mask, so finding every worker's depth is a search by halves over the path: deeper
holders are always a subset of shallower ones.

Order of use is kept in the same map. A path is touched from its leaf up to the root, so a child
is never younger than its parent and the oldest entry is always a leaf: eviction cuts leaves
first, as engines do, and what remains stays connected.
"""

from collections import OrderedDict
from collections.abc import Sequence

#: Measured bytes a block: key, mask, and its place in the ordered map.
BLOCK_BYTES = 224
#: Bits of retired holders are swept out of the masks once there are more than this.
MOST_BITS = 60


class PrefixTree:
    """Which worker was sent which prefix; at most `limit_bytes` large."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(1, limit_bytes // BLOCK_BYTES)
        self._holders: OrderedDict[int, int] = OrderedDict()
        self._bits: dict[str, int] = {}
        self._next_bit = 1

    def insert(self, keys: Sequence[int], worker: str) -> None:
        """Record that `worker` was sent the prompt with these chained keys, and touch its path."""
        bit = self._bits.get(worker) or self._new_bit(worker)
        holders = self._holders
        touch = holders.move_to_end
        # A path longer than the whole tree could only be kept from its root.
        for key in reversed(keys[: self._limit]):
            holders[key] = holders.get(key, 0) | bit
            touch(key)
        while len(holders) > self._limit:
            holders.popitem(last=False)

    def held(self, keys: Sequence[int]) -> dict[str, int]:
        """Return, for each worker that holds any, how many of the first blocks it holds."""
        live = self._live()
        if not keys or not live:
            return {}
        depths: dict[int, int] = {}
        get = self._holders.get
        spans = [(0, live, len(keys) + 1, 0)]
        while spans:
            low, low_mask, high, high_mask = spans.pop()
            if low_mask == high_mask:
                continue
            if high - low == 1:
                depths[low_mask & ~high_mask] = low
                continue
            middle = (low + high) // 2
            mask = get(keys[middle - 1], 0) & live
            spans.append((low, low_mask, middle, mask))
            spans.append((middle, mask, high, high_mask))
        return {
            worker: depth
            for worker, bit in self._bits.items()
            for mask, depth in depths.items()
            if mask & bit and depth
        }

    def forget(self, worker: str) -> None:
        """Drop everything `worker` held. Its bit is retired; the blocks go as they age."""
        self._bits.pop(worker, None)

    def _live(self) -> int:
        mask = 0
        for bit in self._bits.values():
            mask |= bit
        return mask

    def _new_bit(self, worker: str) -> int:
        if self._next_bit.bit_length() > MOST_BITS + len(self._bits):
            self._sweep()
        bit = self._bits[worker] = self._next_bit
        self._next_bit <<= 1
        return bit

    def _sweep(self) -> None:
        """Give live workers the low bits again, and drop blocks that nobody holds."""
        old = list(self._bits.items())
        self._bits = {worker: 1 << place for place, (worker, _) in enumerate(old)}
        self._next_bit = 1 << len(old)
        for key, mask in list(self._holders.items()):
            kept = 0
            for worker, bit in old:
                if mask & bit:
                    kept |= self._bits[worker]
            if kept:
                self._holders[key] = kept
            else:
                del self._holders[key]

    def __len__(self) -> int:
        """Blocks in the tree."""
        return len(self._holders)

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        return len(self._holders) * BLOCK_BYTES
