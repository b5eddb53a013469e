"""A paged KV cache with prefix reuse, after vLLM's block pool.

The rules, from `vllm/v1/core/block_pool.py` and `kv_cache_manager.py`:

1. Only full blocks are reused, found by their chained digest from the first on.
2. A block in use is counted; one that nobody uses keeps its content and waits in a queue.
3. A sequence gives its blocks back last block first, so that leaves are evicted before the
   blocks they hang on. Eviction takes the block that has waited longest.

Where two sequences compute the same block at once, the first keeps the name and the second's
copy stays nameless (vLLM lists both under one name), so that a removal always means gone.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from simulator.changes import Change, Cleared, Removed, Stored
from simulator.hashing import Chain, event_hash, extra_keys


class BlockCache:
    """`num_blocks` blocks of `block_size` tokens. Not a thing is allocated until it is used."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a cache needs at least one block of at least one token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._users: list[int] = []  # how many sequences use block i
        self._digest: list[bytes | None] = []  # the name of block i's content
        self._cached: dict[bytes, int] = {}  # name -> block
        self._idle: OrderedDict[int, None] = OrderedDict()  # unused, longest waiting first
        self._changes: list[Change] = []

    def __repr__(self) -> str:
        return f"<BlockCache {self.used}/{self.num_blocks} used, {len(self._cached)} cached>"

    @property
    def free(self) -> int:
        """Blocks that could be handed out now, cached content or not."""
        return self.num_blocks - len(self._users) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that some sequence uses."""
        return len(self._users) - len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks that a prompt could find by name."""
        return len(self._cached)

    def match(self, digests: Sequence[bytes], limit: int) -> list[int]:
        """The blocks that hold the longest run of `digests[:limit]` from its start."""
        found: list[int] = []
        cached = self._cached
        for digest in digests[:limit]:
            block = cached.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, matched: Sequence[int], fresh: int) -> list[int] | None:
        """Use the matched blocks and `fresh` new ones: their table, or None without the room."""
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
        """Add one block to a sequence's table; False when every block is in use."""
        if not self.free:
            return False
        table.append(self._take())
        return True

    def name(
        self, table: Sequence[int], chain: Chain, tokens: array[int], first: int, stop: int
    ) -> None:
        """Make the full blocks `first` to `stop` of a sequence, now computed, findable."""
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
        """Give a sequence's blocks back, last first; what they hold stays findable."""
        for block in reversed(table):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._idle[block] = None

    def reset(self) -> bool:
        """Forget all content; refused (False), as in vLLM, while any block is in use."""
        if self.used:
            return False
        self._cached.clear()
        self._digest = [None] * len(self._digest)
        self._changes.append(Cleared())
        return True

    def announce(self, chain: Chain, tokens: array[int], start: int, stop: int) -> None:
        """Record blocks `start` to `stop` of a sequence as stored."""
        size = self.block_size
        self._changes.append(
            Stored(
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
        """The changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _take(self) -> int:
        """An unused block: a fresh one while there are any, else the longest idle, evicted."""
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
            self._changes.append(Removed(event_hash(digest)))
        return block
