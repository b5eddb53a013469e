"""Names that LMCache gives to chunks of a prompt, and what keys in a Redis tell of them.

Only full chunks have one. LMCache's server (0.5; `lmcache/v1/distributed`): each digest is the
blake3 of the previous digest and the chunk's token ids, 32 bits each, big-endian; the digest before
the first chunk is that of eight zero bytes and a zero id. A key is
`<model>@<rank>@<group>@<digest>`, plus `@<salt>` if there is a salt. The rank, eight hex digits,
packs the number of GPUs, the GPU's index, the number of GPUs on the node and the GPU's index there
(`ObjectKey.ComputeKVRank`). Tests compare with a real server's keys and events.

LMCache in the engine's own process (0.3 to 0.5; `lmcache/v1/token_database.py`, and
`CacheEngineKey.to_string` in `lmcache/utils.py`): a key is `<model>@<GPUs>@<GPU>@<hash>@<dtype>`.
The hash is that of `(previous hash, tokens, ())` by vLLM's function, cut to eight bytes,
big-endian. The first chunk follows vLLM's `NONE_HASH`, the hash of the seed
(`vllm/v1/core/kv_cache_utils.py`). Redis has two keys for each, with `metadata` or `kv_bytes`
appended; LMCache's own client of Redis (`resp://`) stores the bare key. A test compares with what
LMCache 0.5.6 itself computes.
"""

import os
import pickle
import re
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from sys import byteorder
from typing import TYPE_CHECKING, NamedTuple

from controller.index.agreement import DEFAULT_SEED, cbor_head
from router.settings.fleet import Hash, LmcacheSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes of a digest by LMCache's server, and of a hash in the engine's process.
_DIGEST_BYTES, _HASH_BYTES = 32, 8
#: Chunks named at once.
BATCH_CHUNKS = 16
#: Salts that LMCache accepts; others are an error there, so nothing is stored under them.
_SALT = re.compile(r"[^@/\\\0\ud800-\udfff]{1,128}")
#: Keys of LMCache's server, and of LMCache in the engine's own process.
_SERVER_KEY = re.compile(
    rb"(?P<model>.+)@(?P<gpus>[0-9a-f]{2})[0-9a-f]{6}@[0-9a-f]+@[0-9a-f]{64}(@[^@]+)?"
)
_ENGINE_KEY = re.compile(
    rb"(?P<model>.+)@(?P<gpus>\d{1,4})@\d+@-?[0-9a-f]+"
    rb"@(?P<dtype>[a-z0-9_]+?)(metadata|kv_bytes|)(@.*)?"
)


class Kind(NamedTuple):
    """A kind of chunks: those that share a naming scheme."""

    model: str
    gpus: int
    """GPUs per worker."""
    dtype: str = ""
    """The KV cache's dtype, as in the engine's keys; empty for the server's keys."""

    def __str__(self) -> str:
        """Describe it, for messages."""
        model = re.sub(r"[^ -~]", "?", self.model)[:100]
        how = f"{self.dtype}, named in the engine" if self.dtype else "named by the server"
        return f"{model} with {self.gpus} GPUs, {how}"


def kind_of(key: bytes) -> Kind | None:
    """Return the kind of chunk that a key is of; None if it is not one of LMCache's."""
    match = _SERVER_KEY.fullmatch(key)
    if match is not None:
        return Kind(match["model"].decode(errors="replace"), int(match["gpus"], 16))
    match = _ENGINE_KEY.fullmatch(key)
    if match is None:
        return None
    model, dtype = (match[name].decode(errors="replace") for name in ("model", "dtype"))
    return Kind(model, int(match["gpus"]), dtype)


@dataclass(frozen=True)
class Chunking:
    """How prompts are cut into chunks, and how LMCache's server names these."""

    tokens: int = 256
    """Tokens per chunk."""
    gpus: int = 1
    """GPUs per worker."""
    model: str | None = None
    """The model as given to the engine; None for the name in the request."""

    def names(self, ids: bytes, salt: str) -> Iterator[str]:
        """Yield the names of a prompt's full chunks, computed a few at a time.

        `ids` are 32 bits each. A salt that LMCache does not accept gives none.
        """
        if salt and not _SALT.fullmatch(salt):
            return
        suffix, width = f"@{salt}" if salt else "", 4 * self.tokens * BATCH_CHUNKS
        batch: list[bytes] = []
        for start in range(0, len(ids), width):
            batch = digests(ids[start : start + width], self.tokens, BATCH_CHUNKS, *batch[-1:])
            for digest in batch:
                yield f"{digest.hex()}{suffix}"

    def keys(self, model: str, name: str) -> Sequence[Sequence[str]]:
        """Return sets of keys; a chunk is stored if all keys of one set exist, one per GPU.

        LMCache itself loads a chunk only if it finds all parts (`_lookup_kv_ranks`).
        """
        return ([self.prefix(model, gpu) + name for gpu in range(self.gpus)],)

    def prefix(self, model: str, gpu: int = 0) -> str:
        """Return the part of a key before the digest, for one GPU."""
        return f"{self.model or model}@{2 * f'{self.gpus:02x}{gpu:02x}'}@0@"

    def kind(self, model: str) -> Kind:
        """Return the kind of chunks that its keys tell of."""
        return Kind(self.model or model, self.gpus)

    def described(self, model: str) -> str:
        """Describe what names are made of, for messages."""
        return f"chunk {self.tokens}, model {self.model or model}, gpus {self.gpus}"


@dataclass(frozen=True)
class EngineChunking(Chunking):
    """The same for LMCache in the engine's own process."""

    hash: Hash = "builtin"
    """LMCache's `pre_caching_hash_algorithm`."""
    seed: str | None = None
    """The engines' PYTHONHASHSEED."""
    dtype: str = "bfloat16"
    """The KV cache's dtype, as LMCache calls it."""

    def names(self, ids: bytes, salt: str) -> Iterator[str]:
        """Yield the names of a prompt's full chunks, computed one by one.

        None with a salt: how those chunks are named is not known.
        """
        if salt:
            return
        follow, last = _FOLLOW[self.hash], none_hash(self.hash, self.seed)
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

    def described(self, model: str) -> str:
        """Describe what names are made of, for messages."""
        seed = "not set" if self.seed is None else self.seed
        return (
            f"{super().described(model)}, hash {self.hash}, PYTHONHASHSEED {seed},"
            f" dtype {self.dtype}"
        )


def chunking(settings: LmcacheSettings) -> Chunking:
    """Return how LMCache's server cuts and names chunks."""
    return Chunking(settings.chunk, settings.gpus, settings.model)


def naming(settings: LmcacheSettings) -> Chunking:
    """Return how chunks in Redis are cut and named, by LMCache's server or in the engine."""
    if settings.names == "server":
        return chunking(settings)
    return EngineChunking(
        *(settings.chunk, settings.gpus, settings.model),
        *(settings.hash, settings.seed, settings.dtype),
    )


# The server's digests.


def digests(ids: bytes, tokens: int, most: int, last: bytes | None = None) -> list[bytes]:
    """Return the digests of the first full chunks, at most `most`; `ids` are 32 bits each.

    `last` is the digest before them, unless they are the first of the prompt.
    """
    words = array("I", ids)
    if byteorder == "little":
        words.byteswap()
    data, width = words.tobytes(), 4 * tokens
    named, last = [], last or _root()
    for start in range(0, min(len(data) - width + 1, most * width), width):
        last = _blake3(last + data[start : start + width])
        named.append(last)
    return named


@cache
def _root() -> bytes:
    return _blake3(bytes(8 + 4))


def _blake3(data: bytes) -> bytes:
    from blake3 import blake3  # noqa: PLC0415 - of the extra `lmcache`

    return blake3(data).digest(_DIGEST_BYTES)


# The engine's hashes.

#: CBOR's major types.
NUMBER, TEXT, ARRAY = 0, 3, 4
#: Numbers from which CBOR needs more bytes.
_BOUNDS = (24, 1 << 8, 1 << 16)


@cache
def none_hash(function: Hash, seed: str | None) -> int:
    """Return `NONE_HASH`, which the first chunk's hash follows.

    Python's own hash of a text depends on a seed that is fixed when a process starts, so another
    process is asked. (The result is that of CPython 3.11 and later on 64 bits.)
    """
    if function != "builtin":
        root = DEFAULT_SEED if seed is None else seed
        if function == "sha256":
            return _short(_pickled(root))
        return _short(cbor_head(TEXT, len(root.encode())) + root.encode())
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
    return int.from_bytes(sha256(data).digest()[:_HASH_BYTES], "big")


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _triple(last: int, ids: bytes) -> tuple[int, tuple[int, ...], tuple[()]]:
    return last, tuple(array("I", ids)), ()


def _cbor(last: int, ids: bytes) -> bytes:
    """Encode the triple in the core deterministic form of RFC 8949."""
    return cbor_head(ARRAY, 3) + cbor_head(NUMBER, last) + cbor_array(ids) + cbor_head(ARRAY, 0)


def cbor_array(ids: bytes) -> bytes:
    """Encode an array of numbers, given as 32 bits each in the machine's byte order.

    With numpy, as one by one the ids of a prompt would take tens of milliseconds.
    """
    import numpy as np  # noqa: PLC0415 - takes 17 MB, and only strategies with a memory need it

    words = np.frombuffer(ids, np.uint32)
    wide = np.empty((len(words), 5), np.uint8)
    wide[:, 1:] = words.astype(">u4").view(np.uint8).reshape(-1, 4)
    # Which of four widths a number has: the count of bounds that it reaches. The first byte gives
    # the width, or is the number itself.
    width = np.zeros(len(words), np.uint8)
    for bound in _BOUNDS:
        width += words >= bound
    wide[:, 0] = words
    np.copyto(wide[:, 0], width + 0x17, where=width > 0)
    return cbor_head(ARRAY, len(words)) + wide[_written_bytes()[width]].tobytes()


@cache
def _written_bytes() -> "NDArray[np.bool_]":
    """Return which of the five bytes are written, for each width."""
    import numpy as np  # noqa: PLC0415

    return np.array([[1, 0, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], bool)


#: Functions from a hash and the chunk's token ids to the next hash.
_FOLLOW: dict[Hash, Callable[[int, bytes], int]] = {
    "builtin": lambda last, ids: hash(_triple(last, ids)),
    "sha256": lambda last, ids: _short(_pickled(_triple(last, ids))),
    "sha256_cbor": lambda last, ids: _short(_cbor(last, ids)),
}
