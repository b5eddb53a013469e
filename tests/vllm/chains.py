"""The names vLLM gives to blocks, computed from tokens (0.32, `v1/core/kv_cache_utils.py`).

Each is the SHA-256 of the previous name, the block's tokens and nothing else; the first follows the
hash of `PYTHONHASHSEED`'s value. The input is either pickled or written as canonical CBOR. Events
contain the last eight bytes.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any

Write = Callable[[Any], bytes]


def vllm_pickle(tokens: list[int], size: int, seed: str = "0") -> list[bytes]:
    """Return the names of full blocks with `--prefix-caching-hash-algo sha256`."""
    return list(_chain(tokens, size, seed, lambda value: pickle.dumps(value, protocol=5)))


def vllm_cbor(tokens: list[int], size: int, seed: str = "0") -> list[bytes]:
    """Return the names of full blocks with `--prefix-caching-hash-algo sha256_cbor`."""
    return list(_chain(tokens, size, seed, cbor))


def _chain(tokens: list[int], size: int, seed: str, write: Write) -> Iterator[bytes]:
    last = sha256(write(seed)).digest()
    for start in range(0, len(tokens) - size + 1, size):
        last = sha256(write((last, tuple(tokens[start : start + size]), None))).digest()
        yield last


def cbor(value: object) -> bytes:
    """Return canonical CBOR (RFC 8949, section 4.2) of the types needed here. Raises TypeError."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return _head(4, len(value)) + b"".join(_all(value))
    raise TypeError(f"{type(value).__name__} is in no name")


def _all(values: Iterable[object]) -> Iterator[bytes]:
    return (cbor(value) for value in values)


def _head(kind: int, number: int) -> bytes:
    """Return a type with a length or value, in as few bytes as possible."""
    if number < 24:
        return bytes([kind << 5 | number])
    length = next(length for length in range(4) if number < 1 << (8 << length))
    return bytes([kind << 5 | 24 + length]) + number.to_bytes(1 << length, "big")
