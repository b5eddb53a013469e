"""Tiers that report their changes as KV events, as vLLM's offloading connectors do.

For host memory vLLM announces both stored and removed blocks; for a store only stored ones, once,
by the worker that wrote them first (`vllm/v1/kv_offload`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from simulator.kv.blocks import Chain, event_hash, extra_keys
from simulator.kv.changes import Change, Removed, Stored
from simulator.kv.tiers import Loaded, Move, Tiers


class Offloading:
    """Tiers that record changes. With `bare`, those of host memory carry hashes, no tokens."""

    def __init__(self, tiers: Tiers[bytes], block_size: int, *, bare: bool = False) -> None:
        self.tiers = tiers
        self._block_size = block_size
        self._bare = bare
        self._changes: list[Change] = []

    def find(self, chain: Chain, tokens: array[int], start: int, stop: int) -> Loaded:
        """Load blocks of a sequence from block `start` on, up to but not including `stop`."""
        moves: list[Move] = []
        loaded = self.tiers.find(chain.digests[:stop], start, moves)
        self._tell(moves, chain, tokens, start)
        return loaded

    def offload(self, chain: Chain, tokens: array[int], first: int, stop: int) -> None:
        """Copy blocks from `first` up to `stop` of a sequence to the tiers."""
        moves: list[Move] = []
        self.tiers.write(chain.digests[first:stop], moves)
        self._tell(moves, chain, tokens, first)

    def drain(self) -> list[Change]:
        """The changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _tell(self, moves: Sequence[Move], chain: Chain, tokens: array[int], first: int) -> None:
        if not moves:
            return
        digests = chain.digests
        places = {digests[index]: index for index in range(first, len(digests))}
        for key, medium, stored in moves:
            assert isinstance(key, bytes)  # noqa: S101 - the keys are digests
            if stored:
                self._changes.append(self._stored(chain, tokens, places[key], medium))
            else:
                self._changes.append(Removed(event_hash(key), medium))

    def _stored(self, chain: Chain, tokens: array[int], index: int, medium: str) -> Stored:
        bare, size = self._bare and medium == "CPU", self._block_size
        return Stored(
            hashes=[event_hash(chain.digests[index])],
            parent=event_hash(chain.digests[index - 1]) if index and not bare else None,
            token_ids=array("I") if bare else tokens[index * size : (index + 1) * size],
            block_size=0 if bare else size,
            lora_name=chain.lora_name,
            extra_keys=[extra_keys(index, chain.lora_name, chain.salt)],
            medium=medium,
            remote=medium == "STORAGE",
        )
