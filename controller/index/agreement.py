"""Whether engines give the same names to the same blocks, and how they compute the names.

Routing does not depend on it, since it identifies blocks by their tokens. But engines that share a
store do: one finds what another wrote there only under the same name.

A name is the end of a digest of the previous block's digest, the tokens, and whatever else the
engine includes. Before the first block there is a seed. For a first block with nothing but tokens,
only the seed is unknown, so the usual seeds are tried. Source: vLLM `v1/core/kv_cache_utils.py`
(`hash_block_tokens`, `init_none_hash`) and `utils/hashing.py`.
"""

import pickle
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from xxhash import xxh3_128_digest

from controller.index.block_events import FirstBlock, Tier
from controller.index.index import Index
from controller.index.tree import OFFSET_BITS

#: The seed of vLLM with sha256 since 0.30, if `PYTHONHASHSEED` is not set; others use a random one.
DEFAULT_SEED = "vllm-none-hash"
#: Seeds that are tried.
SEEDS = (DEFAULT_SEED, "0", "1", "42")

_Parts = tuple[bytes, tuple[int, ...], None]


def hash_algorithm(first: FirstBlock, seeds: Iterable[str] = SEEDS) -> str:
    """Return the algorithm and seed that give this name, in words; empty if none of them does."""
    tokens = tuple(memoryview(first.tokens).cast("I"))
    for seed in seeds:
        for algorithm, digest in _ALGORITHMS.items():
            named = digest((digest(seed), tokens, None))
            if int.from_bytes(named[-8:], "big") == first.name:
                origin = "the default seed" if seed == DEFAULT_SEED else f"PYTHONHASHSEED={seed}"
                return f"{algorithm}, {origin}"
    return ""


class HashAgreement(NamedTuple):
    """One engine's names compared with those of others."""

    common: int
    """Number of blocks that others also have; only the first block of each run is compared."""
    others: frozenset[str]
    """Engines that have another name for any of these."""


def compare_hashes(index: Index, engines: Sequence[str]) -> dict[str, HashAgreement]:
    """Compare the engines' names of blocks that several of them have on their GPUs."""
    named: dict[int, dict[int, list[str]]] = {}
    for engine in engines:
        cache = index.cache(engine, Tier.GPU)
        for name, reference in cache.names if cache is not None else ():
            if not reference & ((1 << OFFSET_BITS) - 1) and reference in index.holdings.tree:
                named.setdefault(reference, {}).setdefault(name, []).append(engine)
    common = dict.fromkeys(engines, 0)
    others: dict[str, set[str]] = {engine: set() for engine in engines}
    for names in named.values():
        everyone = {engine for engines in names.values() for engine in engines}
        if len(everyone) > 1:
            for agreeing in names.values():
                for engine in agreeing:
                    common[engine] += 1
                    others[engine] |= everyone.difference(agreeing)
    return {engine: HashAgreement(common[engine], frozenset(others[engine])) for engine in engines}


def _pickled(parts: str | _Parts) -> bytes:
    return pickle.dumps(parts, protocol=5)


def _cbor(parts: str | _Parts) -> bytes:
    """Encode as in RFC 8949, shortest form (section 4.2.1); only the types needed here."""
    if isinstance(parts, str):
        return cbor_head(3, len(parts.encode())) + parts.encode()
    parent, tokens, _ = parts
    ids = b"".join(cbor_head(0, token) for token in tokens)
    return b"\x83" + cbor_head(2, len(parent)) + parent + cbor_head(4, len(tokens)) + ids + b"\xf6"


def cbor_head(kind: int, number: int) -> bytes:
    """Encode a major type of CBOR, and a number of up to 64 bits in as few bytes as possible.

    Raises ValueError.
    """
    if number < 24:
        return bytes((kind << 5 | number,))
    for place, width in enumerate((1, 2, 4, 8)):
        if number < 1 << 8 * width:
            return bytes((kind << 5 | 24 + place,)) + number.to_bytes(width, "big")
    raise ValueError("a number of more than 64 bits")


_ALGORITHMS: dict[str, Callable[[str | _Parts], bytes]] = {
    "sha256": lambda parts: sha256(_pickled(parts)).digest(),
    "sha256_cbor": lambda parts: sha256(_cbor(parts)).digest(),
    "xxhash": lambda parts: xxh3_128_digest(_pickled(parts)),
    "xxhash_cbor": lambda parts: xxh3_128_digest(_cbor(parts)),
}
