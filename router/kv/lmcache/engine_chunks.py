"""Names that LMCache in the engine's own process gives to chunks of a prompt (0.3 to 0.5).

See `lmcache/v1/token_database.py` and `lmcache/utils.py`, `CacheEngineKey.to_string`. A key is
`<model>@<GPUs>@<GPU>@<hash>@<dtype>`. The hash is that of `(previous hash, tokens, ())` by vLLM's
function, cut to eight bytes, big-endian. The first chunk follows vLLM's `NONE_HASH`, the hash of
the seed (`vllm/v1/core/kv_cache_utils.py`). Only full chunks have a name. Redis has two keys for
each, with `metadata` or `kv_bytes` appended; LMCache's own client of Redis (`resp://`) stores the
bare key. A test compares with what LMCache 0.5.6 itself computes.
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

from router.kv.lmcache import cbor
from router.kv.lmcache.kinds import Kind

Hash = Literal["builtin", "sha256", "sha256_cbor"]
#: What vLLM hashes first if PYTHONHASHSEED is not set.
UNSEEDED = "vllm-none-hash"
#: Largest PYTHONHASHSEED: Python does not start with a larger one.
LARGEST_SEED = 2**32 - 1
_BYTES = 8


class EngineChunking(NamedTuple):
    """How prompts are cut into chunks, and how these are named."""

    tokens: int = 256
    """Tokens per chunk."""
    gpus: int = 1
    """GPUs per worker."""
    model: str | None = None
    """The model as given to the engine; None for the name in the request."""
    hash: Hash = "builtin"
    """LMCache's `pre_caching_hash_algorithm`."""
    seed: str | None = None
    """The engines' PYTHONHASHSEED."""
    dtype: str = "bfloat16"
    """The KV cache's dtype, as LMCache calls it."""

    def names(self, ids: bytes, salt: str) -> Iterator[str]:
        """Yield the names of a prompt's full chunks, computed one by one; `ids` are 32 bits each.

        None with a salt: how those chunks are named is not known.
        """
        if salt:
            return
        follow, last = _FOLLOW[self.hash], first(self.hash, self.seed)
        width = 4 * self.tokens
        for start in range(0, len(ids) - width + 1, width):
            last = follow(last, ids[start : start + width])
            yield f"{last:x}@{self.dtype}"

    def keys(self, model: str, name: str) -> Sequence[Sequence[str]]:
        """Return sets of keys; a chunk is stored if all keys of one set exist, one per GPU."""
        parts = [self.prefix(model, gpu) + name for gpu in range(self.gpus)]
        return [f"{part}metadata" for part in parts], parts

    def prefix(self, model: str, gpu: int = 0) -> str:
        """Return the part of a key before the hash, for one GPU."""
        return f"{self.model or model}@{self.gpus}@{gpu}@"

    def kind(self, model: str) -> Kind:
        """Return the kind of chunks that its keys tell of."""
        return Kind(self.model or model, self.gpus, self.dtype)

    def said(self, model: str) -> str:
        """Describe what names are made of, for messages."""
        seed = "not set" if self.seed is None else self.seed
        return (
            f"chunk {self.tokens}, model {self.model or model}, gpus {self.gpus},"
            f" hash {self.hash}, PYTHONHASHSEED {seed}, dtype {self.dtype}"
        )


@cache
def first(function: Hash, seed: str | None) -> int:
    """Return `NONE_HASH`, which the first chunk's hash follows.

    Python's own hash of a text depends on a seed that is fixed when a process starts, so another
    process is asked. (The result is that of CPython 3.11 and later on 64 bits.)
    """
    if function != "builtin":
        root = UNSEEDED if seed is None else seed
        return _short(cbor.text(root) if function == "sha256_cbor" else _pickled(root))
    if seed is None:
        raise ValueError("the seed is not known")
    done = subprocess.run(  # noqa: S603 - this Python, a number from the settings
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


#: Functions from a hash and the chunk's token ids to the next hash.
_FOLLOW: dict[Hash, Callable[[int, bytes], int]] = {
    "builtin": lambda last, ids: hash(_triple(last, ids)),
    "sha256": lambda last, ids: _short(_pickled(_triple(last, ids))),
    "sha256_cbor": lambda last, ids: _short(_cbor(last, ids)),
}
