"""A paged KV cache with prefix reuse, after vLLM's block pool.

The rules, from `vllm/v1/core/block_pool.py` and `kv_cache_manager.py`:

1. Only full blocks are reused. They are looked up by their chained digests, from the first on.
2. Blocks in use have a reference count. An unused block keeps its content and waits in a queue.
3. A sequence releases its last block first, so that leaves are evicted before their parents.
   Eviction takes the block that has been unused longest.

If two sequences compute the same block at once, only the first copy is registered under the
digest (vLLM registers both), so that a removal event always means that the block is gone.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from simulator.kv.blocks import (
    Chain,
    Change,
    ClearedEvent,
    RemovedEvent,
    StoredEvent,
    event_hash,
    extra_keys,
)


class BlockCache:
    """`num_blocks` blocks of `block_size` tokens, each allocated when first used."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a cache needs at least one block of at least one token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._users: list[int] = []  # how many sequences use block i
        self._digest: list[bytes | None] = []  # the digest under which block i is cached
        self._cached: dict[bytes, int] = {}  # digest -> block
        self._idle: OrderedDict[int, None] = OrderedDict()  # unused blocks, least recent first
        self._changes: list[Change] = []

    def __repr__(self) -> str:
        return f"<BlockCache {self.used}/{self.num_blocks} used, {len(self._cached)} cached>"

    @property
    def free(self) -> int:
        """Return how many blocks could be handed out now, with or without cached content."""
        return self.num_blocks - len(self._users) + len(self._idle)

    @property
    def used(self) -> int:
        """Return how many blocks at least one sequence uses."""
        return len(self._users) - len(self._idle)

    @property
    def cached(self) -> int:
        """Return how many blocks a prompt could find by digest."""
        return len(self._cached)

    def match(self, digests: Sequence[bytes], limit: int) -> list[int]:
        """Return the blocks that hold the longest run of `digests[:limit]` from its start."""
        blocks: list[int] = []
        cached = self._cached
        for digest in digests[:limit]:
            block = cached.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def admit(self, matched: Sequence[int], fresh: int) -> list[int] | None:
        """Reference `matched` and take `fresh` new blocks; return the table, None if no room."""
        idle = self._idle
        waiting = sum(1 for block in matched if block in idle)
        if self.free - waiting < fresh:
            return None
        for block in matched:
            if self._users[block] == 0:
                del idle[block]
            self._users[block] += 1
        return [*matched, *(self._take() for _ in range(fresh))]

    def grow(self, table: list[int]) -> bool:
        """Add one block to a sequence's table; return false if every block is in use."""
        if not self.free:
            return False
        table.append(self._take())
        return True

    def name(
        self, table: Sequence[int], chain: Chain, tokens: array[int], first: int, stop: int
    ) -> None:
        """Register the full, computed blocks from `first` up to `stop` of a sequence for reuse."""
        start: int | None = None
        for index in range(first, stop):
            digest, block = chain.digests[index], table[index]
            taken = digest in self._cached
            if not taken:
                self._cached[digest] = block
                self._digest[block] = digest
                if start is None:
                    start = index
            elif start is not None:
                self.announce(chain, tokens, start, index)
                start = None
        if start is not None:
            self.announce(chain, tokens, start, stop)

    def release(self, table: Sequence[int]) -> None:
        """Release a sequence's blocks, last first; their content stays cached."""
        for block in reversed(table):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._idle[block] = None

    def reset(self) -> bool:
        """Drop all cached content; return false, as in vLLM, if any block is in use."""
        if self.used:
            return False
        self._cached.clear()
        self._digest = [None] * len(self._digest)
        self._changes.append(ClearedEvent())
        return True

    def announce(self, chain: Chain, tokens: array[int], start: int, stop: int) -> None:
        """Record a change that says blocks from `start` up to `stop` of a sequence are stored."""
        size = self.block_size
        self._changes.append(
            StoredEvent(
                hashes=[event_hash(digest) for digest in chain.digests[start:stop]],
                parent=event_hash(chain.digests[start - 1]) if start else None,
                token_ids=tokens[start * size : stop * size],
                block_size=size,
                lora_name=chain.lora_name,
                extra_keys=[
                    extra_keys(index, chain.lora_name, chain.salt) for index in range(start, stop)
                ],
            )
        )

    def drain(self) -> list[Change]:
        """Return the changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _take(self) -> int:
        """Take a block: a new one if any is left, else evict the one unused longest."""
        if len(self._users) < self.num_blocks:
            self._users.append(1)
            self._digest.append(None)
            return len(self._users) - 1
        block, _ = self._idle.popitem(last=False)
        self._users[block] = 1
        digest = self._digest[block]
        if digest is not None:
            self._digest[block] = None
            del self._cached[digest]
            self._changes.append(RemovedEvent(event_hash(digest)))
        return block
