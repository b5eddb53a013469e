"""Changes to a worker's KV cache, named like the fields of vLLM's KV events.

Pure data: the cache records the changes and the publisher sends them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

Hash = int
"""A block's hash as in events: the last 8 bytes of its digest, big-endian, unsigned."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one prompt that can be reused from now on."""

    hashes: list[Hash]
    #: The block before the first one; None where the prompt begins.
    parent: Hash | None
    #: Tokens of all these blocks, `len(hashes) * block_size` in number.
    token_ids: array[int]
    block_size: int
    lora_name: str | None
    #: Per block, what went into its hash besides tokens: adapter, salt (first block only).
    extra_keys: list[list[str] | None]
    #: Where the blocks are: "GPU", "CPU" or "STORAGE".
    medium: str = "GPU"
    #: Whether they are in a store that all workers share over the network.
    remote: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """One block evicted to make room."""

    hash: Hash
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole prefix cache dropped."""


Change = Stored | Removed | Cleared
