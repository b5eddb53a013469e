"""KV blocks: their chained digests, and changes to what is cached, named as vLLM's KV events.

As in vLLM (`vllm/v1/core/kv_cache_utils.py`, `hash_block_tokens`): a block's digest covers its
parent's digest, its tokens, and extra keys: the adapter's name in every block, the cache salt in
the first. Two differences: sha256 runs over packed bytes, which is several times faster here than
pickling a tuple first as vLLM does, and the root is the simulator's own. So these digests equal
neither vLLM's nor the router's keys, and no test can pass merely because both hash alike.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import sha256

Hash = int
"""A block's hash as in events: the last 8 bytes of its digest, big-endian, unsigned."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
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
class RemovedEvent:
    """One block evicted to make room."""

    hash: Hash
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class ClearedEvent:
    """The whole prefix cache dropped."""


Change = StoredEvent | RemovedEvent | ClearedEvent

ROOT = sha256(b"simulator: the block before the first").digest()


def root_of(seed: str) -> bytes:
    """Return the root digest for a seed (`PYTHONHASHSEED`); another seed changes every digest."""
    return sha256(ROOT + seed.encode()).digest() if seed else ROOT


def event_hash(digest: bytes) -> Hash:
    """Return the integer that events carry for a digest (vLLM's default representation)."""
    return int.from_bytes(digest[-8:], "big")


def extra_keys(index: int, lora_name: str | None, salt: str | None) -> list[str] | None:
    """Return what goes into the hash of block `index` of a prompt besides its tokens, or None."""
    keys = [lora_name] if lora_name else []
    if salt and index == 0:
        keys.append(salt)
    return keys or None


class Chain:
    """The digests of a growing sequence's full blocks, in order."""

    __slots__ = ("_block_size", "_lora", "_root", "_salt", "digests", "lora_name", "salt")

    def __init__(
        self, block_size: int, lora_name: str | None, salt: str | None, root: bytes = ROOT
    ) -> None:
        self._root = root
        self.lora_name = lora_name
        self.salt = salt
        self.digests: list[bytes] = []
        self._block_size = block_size
        self._lora = b"" if not lora_name else b"\x00lora\x00" + lora_name.encode()
        self._salt = b"" if not salt else b"\x00salt\x00" + salt.encode()

    def extend(self, tokens: array[int]) -> None:
        """Add the digests of the full blocks of `tokens` that have none yet."""
        digests = self.digests
        done, full = len(digests), len(tokens) // self._block_size
        if full <= done:
            return
        size = self._block_size
        width = size * tokens.itemsize
        packed = tokens[done * size : full * size].tobytes()
        parent = digests[-1] if digests else self._root
        for index in range(done, full):
            start = (index - done) * width
            extra = self._lora if index else self._lora + self._salt
            parent = sha256(parent + packed[start : start + width] + extra).digest()
            digests.append(parent)
