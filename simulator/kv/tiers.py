"""KV tiers behind the GPU: host memory (L1) and a store shared by all workers (L2).

1. A prompt is looked up on the GPU, then on L1, then on L2, block by block. Prefill starts at the
   first block that no tier has.
2. Computed blocks are written to both tiers.
3. Blocks loaded from L2 are kept on L1 from then on.
4. Each tier evicts the least recently used block. A lookup touches all blocks found of a prompt,
   last block first, so that leaves are evicted before their parents (vLLM
   `v1/kv_offload/lru_manager.py`, `touch`).

Pure: keys stand for blocks, and the loading time and the moves are returned.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from simulator.kv.blocks import Chain, Change, RemovedEvent, StoredEvent, event_hash, extra_keys
from simulator.kv.stores import BlockStore, LruSet

K = TypeVar("K", bound=Hashable)

Medium = Literal["CPU", "STORAGE"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second that a worker loads from each tier."""

    l1: float = 200_000.0
    l2: float = 50_000.0

    def __post_init__(self) -> None:
        """Raise ValueError for rates that are not above zero."""
        if not (self.l1 > 0 and self.l2 > 0):
            raise ValueError("tiers load some tokens a second")


#: The default rates: 26 and 6.5 GB/s for an 8B model (131,072 bytes a token, see `profiles`).
DEFAULT_RATES = Rates()


class TierHits(NamedTuple):
    """Blocks that a lookup found on each tier, and how long loading them takes."""

    l1: int = 0
    l2: int = 0
    seconds: float = 0.0


class TierMove(NamedTuple, Generic[K]):
    """A block that was stored on a tier or evicted from it."""

    key: K
    medium: Medium
    stored: bool


class Tiers(Generic[K]):
    """The tiers of one worker besides its GPU."""

    def __init__(
        self,
        block_size: int,
        l1_blocks: int,
        store: BlockStore[K] | None = None,
        rates: Rates = DEFAULT_RATES,
    ) -> None:
        """Create them; `l1_blocks` 0 means no L1, and workers given the same `store` share it."""
        self._l1_s = block_size / rates.l1
        self._l2_s = block_size / rates.l2
        self.l1: LruSet[K] = LruSet(l1_blocks)
        self.store = store

    def find(
        self, keys: Sequence[K], start: int, moves: list[TierMove[K]] | None = None
    ) -> TierHits:
        """Load a prompt's blocks from `start` on, as far as the tiers have them.

        The GPU has the blocks before `start`. Blocks stored on L1 meanwhile, and those evicted
        for them, are appended to `moves` in order.
        """
        l1, at, number = self.l1, start, len(keys)
        from_l1 = from_l2 = 0
        while at < number:
            if keys[at] in l1:
                at += 1
                from_l1 += 1
                continue
            if self.store is None:
                break
            stop = at + 1
            while stop < number and keys[stop] not in l1:
                stop += 1
            stored = self.store.held(keys[at:stop])
            self._keep(keys[at : at + stored], moves)
            at += stored
            from_l2 += stored
            if at < stop:
                break
        for key in reversed(keys[:at]):
            l1.touch(key)
        return TierHits(from_l1, from_l2, from_l1 * self._l1_s + from_l2 * self._l2_s)

    def write(self, keys: Sequence[K], moves: list[TierMove[K]] | None = None) -> None:
        """Copy newly computed blocks to both tiers and append what changed to `moves`."""
        self._keep(keys, moves)
        if self.store is not None:
            for key, new in zip(keys, self.store.write(keys), strict=True):
                if new and moves is not None:
                    moves.append(TierMove(key, "STORAGE", stored=True))

    def clear(self) -> None:
        """Clear L1, as when the process ends; the store keeps its blocks."""
        self.l1.clear()

    def _keep(self, keys: Sequence[K], moves: list[TierMove[K]] | None) -> None:
        l1 = self.l1
        if not l1.room:
            return
        for key in keys:
            if l1.touch(key):
                continue
            evicted = l1.keep(key)
            if moves is not None:
                moves.append(TierMove(key, "CPU", stored=True))
                if evicted is not None:
                    moves.append(TierMove(evicted, "CPU", stored=False))


class Offloading:
    """Tiers that report their changes as KV events, as vLLM's offloading connectors do.

    For host memory vLLM announces both stored and removed blocks; for a store only stored ones,
    once, by the worker that wrote them first (`vllm/v1/kv_offload`). With `bare`, events about host
    memory carry hashes, no tokens.
    """

    def __init__(self, tiers: Tiers[bytes], block_size: int, *, bare: bool = False) -> None:
        self.tiers = tiers
        self._block_size = block_size
        self._bare = bare
        self._changes: list[Change] = []

    def find(self, chain: Chain, tokens: array[int], start: int, stop: int) -> TierHits:
        """Load blocks of a sequence from block `start` on, up to but not including `stop`."""
        moves: list[TierMove[bytes]] = []
        loaded = self.tiers.find(chain.digests[:stop], start, moves)
        self._record(moves, chain, tokens, start)
        return loaded

    def offload(self, chain: Chain, tokens: array[int], first: int, stop: int) -> None:
        """Copy blocks from `first` up to `stop` of a sequence to the tiers."""
        moves: list[TierMove[bytes]] = []
        self.tiers.write(chain.digests[first:stop], moves)
        self._record(moves, chain, tokens, first)

    def drain(self) -> list[Change]:
        """Return the changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _record(
        self, moves: Sequence[TierMove[bytes]], chain: Chain, tokens: array[int], first: int
    ) -> None:
        if not moves:
            return
        digests = chain.digests
        places = {digests[index]: index for index in range(first, len(digests))}
        for key, medium, stored in moves:
            if stored:
                self._changes.append(self._stored(chain, tokens, places[key], medium))
            else:
                self._changes.append(RemovedEvent(event_hash(key), medium))

    def _stored(self, chain: Chain, tokens: array[int], index: int, medium: str) -> StoredEvent:
        bare, size = self._bare and medium == "CPU", self._block_size
        return StoredEvent(
            hashes=[event_hash(chain.digests[index])],
            parent=event_hash(chain.digests[index - 1]) if index and not bare else None,
            token_ids=array("I") if bare else tokens[index * size : (index + 1) * size],
            block_size=0 if bare else size,
            lora_name=chain.lora_name,
            extra_keys=[extra_keys(index, chain.lora_name, chain.salt)],
            medium=medium,
            remote=medium == "STORAGE",
        )
