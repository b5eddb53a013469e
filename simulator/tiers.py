"""Slower places for KV blocks behind the GPU: the host's memory, and a store that all can reach.

What becomes full on the GPU is copied to both, as offloading connectors do
(`vllm/v1/kv_offload`): the host keeps what was used last, the store is told of once by whoever
writes first. A prompt that the GPU lacks is loaded from there, block after block, as long as the
next one is found.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from simulator.changes import Change, Removed, Stored
from simulator.hashing import Chain, event_hash, extra_keys

#: Tokens a second that are loaded from each.
HOST_RATE, STORE_RATE = 200_000.0, 50_000.0


class Store:
    """Blocks behind the network, of all workers together; what was used last stays."""

    def __init__(self, blocks: int) -> None:
        self._room = blocks
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        """Whether a block is there; then it was used now."""
        if digest not in self._held:
            return False
        self._held.move_to_end(digest)
        return True

    def write(self, digest: bytes) -> bool:
        """Keep a block; return whether it is new here."""
        if digest in self:
            return False
        self._held[digest] = None
        if len(self._held) > self._room:
            self._held.popitem(last=False)  # nobody is told, as with a store of its own
        return True


class Tiers:
    """What one worker has besides its GPU."""

    def __init__(
        self, block_size: int, host_blocks: int, store: Store | None = None, *, bare: bool = False
    ) -> None:
        """`bare`: what goes to the host is announced without tokens, by names alone."""
        self._block_size = block_size
        self._room = host_blocks
        self._host: OrderedDict[bytes, None] = OrderedDict()
        self._store = store
        self._bare = bare
        self._changes: list[Change] = []

    def find(self, digests: Sequence[bytes]) -> tuple[int, float]:
        """How many of these blocks can be loaded, from the first on, and in how many seconds."""
        found, seconds = 0, 0.0
        for digest in digests:
            if digest in self._host:
                self._host.move_to_end(digest)
                seconds += self._block_size / HOST_RATE
            elif self._store is not None and digest in self._store:
                seconds += self._block_size / STORE_RATE
            else:
                break
            found += 1
        return found, seconds

    def offload(self, chain: Chain, tokens: array[int], first: int, stop: int) -> None:
        """Copy blocks `first` to `stop` of a sequence."""
        for index in range(first, stop):
            digest = chain.digests[index]
            if self._room:
                self._keep(chain, tokens, index)
            if self._store is not None and self._store.write(digest):
                self._changes.append(self._stored(chain, tokens, index, "STORAGE"))

    def _keep(self, chain: Chain, tokens: array[int], index: int) -> None:
        digest = chain.digests[index]
        if digest in self._host:
            self._host.move_to_end(digest)
            return
        self._host[digest] = None
        self._changes.append(self._stored(chain, tokens, index, "CPU"))
        if len(self._host) > self._room:
            oldest, _ = self._host.popitem(last=False)
            self._changes.append(Removed(event_hash(oldest), "CPU"))

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

    def drain(self) -> list[Change]:
        """The changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes
