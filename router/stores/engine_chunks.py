"""The names that LMCache in the engine's own process gives to chunks of a prompt (0.3 to 0.5).

`lmcache/v1/token_database.py` and `lmcache/utils.py`, `CacheEngineKey.to_string`: a key is
`<model>@<GPUs>@<GPU>@<hash>@<dtype>`, the hash that of `(hash before, tokens, ())` by vLLM's
function, cut to eight bytes, highest first; before the first stands vLLM's `NONE_HASH`, the hash of
the seed (`vllm/v1/core/kv_cache_utils.py`). Only full chunks have one. Redis has two keys of each,
that and `metadata` or `kv_bytes` after it; LMCache's own client of Redis (`resp://`) has it bare.
Held against what LMCache 0.5.6 itself computes, in a test.
"""

import os
import pickle
import subprocess
import sys
from array import array
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any, Literal, NamedTuple

Hash = Literal["builtin", "sha256", "sha256_cbor"]
#: What vLLM hashes first where PYTHONHASHSEED is not set.
UNSEEDED = "vllm-none-hash"
_BYTES = 8


class EngineChunking(NamedTuple):
    """How chunks are cut and named."""

    tokens: int = 256
    """Tokens of a chunk."""
    gpus: int = 1
    """GPUs of a worker."""
    model: str | None = None
    """The model as the engine was given it; None for the name that is asked for."""
    hash: Hash = "builtin"
    """LMCache's `pre_caching_hash_algorithm`."""
    seed: str | None = None
    """The engines' PYTHONHASHSEED."""
    dtype: str = "bfloat16"
    """Of the KV cache, as LMCache calls it."""

    def names(self, model: str, ids: bytes, salt: str, most: int) -> list[str]:
        """Name the first full chunks, of the first GPU's part; `ids` are 32 bits each.

        None with a salt: of those nothing is known.
        """
        if salt:
            return []
        words = array("I", ids).tolist()
        hashed, last = _FUNCTIONS[self.hash], first(self.hash, self.seed)
        prefix, names = self.prefix(model), []
        for start in range(0, min(len(words) - self.tokens + 1, most * self.tokens), self.tokens):
            last = hashed((last, tuple(words[start : start + self.tokens]), ()))
            names.append(f"{prefix}{last:x}@{self.dtype}")
        return names

    def keys(self, name: str) -> tuple[str, ...]:
        """Keys of which one is there if the chunk is."""
        return f"{name}metadata", name

    def prefix(self, model: str) -> str:
        """What comes before the hash, of the first GPU's part."""
        return f"{self.model or model}@{self.gpus}@0@"


@cache
def first(function: Hash, seed: str | None) -> int:
    """What the first chunk's hash follows: `NONE_HASH`.

    Python's own hash of a text hangs on its seed from the start of the process: another one is
    asked. (It is that of CPython 3.11 and later on 64 bits.)
    """
    if function != "builtin":
        return _FUNCTIONS[function](UNSEEDED if seed is None else seed)
    if seed is None:
        raise ValueError("the seed is not known")
    done = subprocess.run(  # noqa: S603 - ourselves, and a number from the settings
        [sys.executable, "-c", "import sys; print(hash(sys.argv[1]))", seed],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    return int(done.stdout)


def _sha256(value: object) -> int:
    digest = sha256(pickle.dumps(value, protocol=5)).digest()
    return int.from_bytes(digest[:_BYTES], "big")


def _sha256_cbor(value: object) -> int:
    return int.from_bytes(sha256(_cbor(value)).digest()[:_BYTES], "big")


def _cbor(value: Any) -> bytes:  # noqa: ANN401 - numbers, texts and tuples of them
    """As RFC 8949 writes whole numbers, texts and arrays in its core deterministic form."""
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    return _head(4, len(value)) + b"".join(map(_cbor, value))


def _head(kind: int, number: int) -> bytes:
    """Type and number, in as few bytes as can be."""
    if number < 24:
        return bytes([kind << 5 | number])
    for place, width in enumerate((1, 2, 4, 8)):
        if number < 1 << 8 * width:
            return bytes([kind << 5 | 24 + place]) + number.to_bytes(width, "big")
    raise ValueError("a number of more than 64 bits")


_FUNCTIONS: dict[Hash, Callable[[Any], int]] = {
    "builtin": hash,
    "sha256": _sha256,
    "sha256_cbor": _sha256_cbor,
}
