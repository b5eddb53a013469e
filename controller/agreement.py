"""Whether engines call the same blocks by the same names, and how they come by these.

Nothing here depends on it, for blocks are known by their tokens. Engines that share a store do:
what one wrote there another finds only under the same name.

A name is the end of a digest of the block before it, the tokens, and whatever else is part of it;
before the first block stands a seed. Of a first block with nothing but tokens, all of it is known
but for the seed, so the usual ones are tried. Source: vLLM `v1/core/kv_cache_utils.py`
(`hash_block_tokens`, `init_none_hash`) and `utils/hashing.py`.
"""

import pickle
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from xxhash import xxh3_128_digest

from controller.events import Stored, Tier
from controller.index import Index
from controller.tree import BITS

#: What engines begin with where `PYTHONHASHSEED` is not set: sha256 since 0.30; others something
#: random.
DEFAULT_SEED = "vllm-none-hash"
#: Seeds that are tried.
SEEDS = (DEFAULT_SEED, "0", "1", "42")
#: Tokens of the longest block that is looked at.
LONGEST = 1024

_Parts = tuple[bytes, tuple[int, ...], None]


class First(NamedTuple):
    """The first block of a sequence, in whose name there is nothing but tokens."""

    name: int
    tokens: bytes
    """32 bits each, in the machine's order."""


def first_of(event: Stored) -> First | None:
    """Return the first block of an event, if it is one of these."""
    plain = event.parent is None and not event.extras and not event.adapter and event.hashes
    if not plain or not 0 < event.size <= LONGEST or event.tier is not Tier.GPU:
        return None
    return First(event.hashes[0], event.tokens[: 4 * event.size])


def way(first: First, seeds: Iterable[str] = SEEDS) -> str:
    """Say by which algorithm and seed an engine comes by this name; empty if it is none of the
    known ones."""
    tokens = tuple(memoryview(first.tokens).cast("I"))
    for seed in seeds:
        for algorithm, digest in _ALGORITHMS.items():
            named = digest((digest(seed), tokens, None))
            if int.from_bytes(named[-8:], "big") == first.name:
                told = "the default seed" if seed == DEFAULT_SEED else f"PYTHONHASHSEED={seed}"
                return f"{algorithm}, {told}"
    return ""


class Compared(NamedTuple):
    """One engine's names beside those of others."""

    common: int
    """Blocks that others have named, too; of each run the first."""
    others: frozenset[str]
    """Engines that call any of these otherwise."""


def compared(index: Index, engines: Sequence[str]) -> dict[str, Compared]:
    """Compare what engines call the blocks on their GPUs that several of them hold."""
    named: dict[int, dict[int, list[str]]] = {}
    for engine in engines:
        place = index.place(engine, Tier.GPU)
        for name, reference in place.names if place is not None else ():
            if not reference & ((1 << BITS) - 1) and reference in index.holdings.tree:
                named.setdefault(reference, {}).setdefault(name, []).append(engine)
    common = dict.fromkeys(engines, 0)
    others: dict[str, set[str]] = {engine: set() for engine in engines}
    for names in named.values():
        everyone = {engine for some in names.values() for engine in some}
        if len(everyone) > 1:
            for some in names.values():
                for engine in some:
                    common[engine] += 1
                    others[engine] |= everyone.difference(some)
    return {engine: Compared(common[engine], frozenset(others[engine])) for engine in engines}


def _pickled(parts: str | _Parts) -> bytes:
    return pickle.dumps(parts, protocol=5)


def _cbor(parts: str | _Parts) -> bytes:
    """Encode as RFC 8949 has it, shortest form (section 4.2.1); there is no more than these."""
    if isinstance(parts, str):
        return _head(3, len(parts.encode())) + parts.encode()
    parent, tokens, _ = parts
    ids = b"".join(_head(0, one) for one in tokens)
    return b"\x83" + _head(2, len(parent)) + parent + _head(4, len(tokens)) + ids + b"\xf6"


def _head(kind: int, number: int) -> bytes:
    for more, (size, below) in enumerate(((1, 1 << 8), (2, 1 << 16), (4, 1 << 32))):
        if number < below:
            if number < 24:
                return bytes((kind << 5 | number,))
            return bytes((kind << 5 | 24 + more,)) + number.to_bytes(size, "big")
    raise ValueError(number)


_ALGORITHMS: dict[str, Callable[[str | _Parts], bytes]] = {
    "sha256": lambda parts: sha256(_pickled(parts)).digest(),
    "sha256_cbor": lambda parts: sha256(_cbor(parts)).digest(),
    "xxhash": lambda parts: xxh3_128_digest(_pickled(parts)),
    "xxhash_cbor": lambda parts: xxh3_128_digest(_cbor(parts)),
}
