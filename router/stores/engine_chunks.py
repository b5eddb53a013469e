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
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Literal, NamedTuple

from router.stores import cbor
from router.stores.kinds import Kind

Hash = Literal["builtin", "sha256", "sha256_cbor"]
#: What vLLM hashes first where PYTHONHASHSEED is not set.
UNSEEDED = "vllm-none-hash"
#: Of PYTHONHASHSEED: Python starts with none beyond.
LARGEST_SEED = 2**32 - 1
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

    def names(self, ids: bytes, salt: str) -> Iterator[str]:
        """Name the full chunks of a prompt, one by one as they are wanted; `ids` are 32 bits each.

        None with a salt: of those nothing is known.
        """
        if salt:
            return
        follow, last = _FOLLOW[self.hash], first(self.hash, self.seed)
        width = 4 * self.tokens
        for start in range(0, len(ids) - width + 1, width):
            last = follow(last, ids[start : start + width])
            yield f"{last:x}@{self.dtype}"

    def keys(self, model: str, name: str) -> Sequence[Sequence[str]]:
        """Sets of keys, of one of which all are there if the chunk is: each GPU writes its part."""
        parts = [self.prefix(model, gpu) + name for gpu in range(self.gpus)]
        return [f"{part}metadata" for part in parts], parts

    def prefix(self, model: str, gpu: int = 0) -> str:
        """What comes before the hash, of one GPU's part."""
        return f"{self.model or model}@{self.gpus}@{gpu}@"

    def kind(self, model: str) -> Kind:
        """What is told from its keys."""
        return Kind(self.model or model, self.gpus, self.dtype)

    def said(self, model: str) -> str:
        """What names are made of, for people."""
        seed = "not set" if self.seed is None else self.seed
        return (
            f"chunk {self.tokens}, model {self.model or model}, gpus {self.gpus},"
            f" hash {self.hash}, PYTHONHASHSEED {seed}, dtype {self.dtype}"
        )


@cache
def first(function: Hash, seed: str | None) -> int:
    """What the first chunk's hash follows: `NONE_HASH`.

    Python's own hash of a text hangs on its seed from the start of the process: another one is
    asked. (It is that of CPython 3.11 and later on 64 bits.)
    """
    if function != "builtin":
        root = UNSEEDED if seed is None else seed
        return _short(cbor.text(root) if function == "sha256_cbor" else _pickled(root))
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


def _short(data: bytes) -> int:
    return int.from_bytes(sha256(data).digest()[:_BYTES], "big")


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _triple(last: int, ids: bytes) -> tuple[int, tuple[int, ...], tuple[()]]:
    return last, tuple(array("I", ids)), ()


def _cbor(last: int, ids: bytes) -> bytes:
    triple, nothing = cbor.head(cbor.ARRAY, 3), cbor.head(cbor.ARRAY, 0)
    return triple + cbor.head(cbor.NUMBER, last) + cbor.array(ids) + nothing


#: What comes after a hash, by the token ids of the chunk.
_FOLLOW: dict[Hash, Callable[[int, bytes], int]] = {
    "builtin": lambda last, ids: hash(_triple(last, ids)),
    "sha256": lambda last, ids: _short(_pickled(_triple(last, ids))),
    "sha256_cbor": lambda last, ids: _short(_cbor(last, ids)),
}
