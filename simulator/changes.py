"""What happened to a worker's KV cache, in the words of vLLM's KV events.

Pure data: the cache records these, the publisher puts them on the wire.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

Hash = int
"""A block's name as events carry it: the last 8 bytes of its digest, big-endian, unsigned."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one prompt that can be reused from now on."""

    hashes: list[Hash]
    #: The block before the first one; None where the prompt begins.
    parent: Hash | None
    #: Tokens of all the blocks together, `len(hashes) * block_size` of them.
    token_ids: array[int]
    block_size: int
    lora_name: str | None
    #: Per block, what besides tokens went into its hash: adapter, salt (first block only).
    extra_keys: list[list[str] | None]
    #: Where they lie: "GPU", "CPU" or "STORAGE".
    medium: str = "GPU"
    #: Behind the network, for all workers.
    remote: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """One block evicted for room."""

    hash: Hash
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole prefix cache dropped."""


Change = Stored | Removed | Cleared
