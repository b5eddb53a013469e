"""Names that LMCache's server gives to chunks of a prompt (0.5; `lmcache/v1/distributed`).

Only full chunks have one. Each digest is the blake3 of the previous digest and the chunk's token
ids, 32 bits each, big-endian; the digest before the first chunk is that of eight zero bytes and a
zero id. A key is `<model>@<rank>@<group>@<digest>`, plus `@<salt>` if there is a salt. The rank,
eight hex digits, packs the number of GPUs, the GPU's index, the number of GPUs on the node and the
GPU's index there (`ObjectKey.ComputeKVRank`). Tests compare with a real server's keys and events.

What kinds of chunks a Redis holds, according to its keys.

CBOR in the core deterministic form of RFC 8949: numbers, texts, and arrays of token ids.

Arrays are encoded with numpy, as one by one the ids of a prompt would take tens of milliseconds.

Names that LMCache in the engine's own process gives to chunks of a prompt (0.3 to 0.5).

See `lmcache/v1/token_database.py` and `lmcache/utils.py`, `CacheEngineKey.to_string`. A key is
`<model>@<GPUs>@<GPU>@<hash>@<dtype>`. The hash is that of `(previous hash, tokens, ())` by vLLM's
function, cut to eight bytes, big-endian. The first chunk follows vLLM's `NONE_HASH`, the hash of
the seed (`vllm/v1/core/kv_cache_utils.py`). Only full chunks have a name. Redis has two keys for
each, with `metadata` or `kv_bytes` appended; LMCache's own client of Redis (`resp://`) stores the
bare key. A test compares with what LMCache 0.5.6 itself computes.
"""

import os
import pickle
import re
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from sys import byteorder
from typing import TYPE_CHECKING, NamedTuple

from router.settings.fleet import Hash, LmcacheSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Patterns of the keys of LMCache's server (`chunks`), and of LMCache in the engine's own process
#: (`engine_chunks`).
SERVERS = re.compile(
    rb"(?P<model>.+)@(?P<gpus>[0-9a-f]{2})[0-9a-f]{6}@(?P<group>[0-9a-f]+)@(?P<digest>[0-9a-f]{64})"
    rb"(@[^@]+)?"
)
ENGINES = re.compile(
    rb"(?P<model>.+)@(?P<gpus>\d{1,4})@(?P<gpu>\d+)@(?P<hash>-?[0-9a-f]+)"
    rb"@(?P<dtype>[a-z0-9_]+?)(?P<part>metadata|kv_bytes|)(@.*)?"
)


class Kind(NamedTuple):
    """A kind of chunks: those that share a naming scheme."""

    model: str
    gpus: int
    """GPUs per worker."""
    dtype: str = ""
    """The KV cache's dtype, as in the keys of LMCache in the engine; empty for its server's
    keys."""

    def __str__(self) -> str:
        """Describe it, for messages."""
        model = re.sub(r"[^ -~]", "?", self.model)[:100]
        how = f"{self.dtype}, named in the engine" if self.dtype else "named by the server"
        return f"{model} with {self.gpus} GPUs, {how}"


def kind_of(key: bytes) -> Kind | None:
    """Return the kind of chunk that a key is of; None if it is not one of LMCache's."""
    found = SERVERS.fullmatch(key)
    if found is not None:
        return Kind(_text(found["model"]), int(found["gpus"], 16))
    found = ENGINES.fullmatch(key)
    if found is None:
        return None
    return Kind(_text(found["model"]), int(found["gpus"]), _text(found["dtype"]))


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


_DIGEST = 32
#: Chunks named at once.
TOGETHER = 16
#: Salts that LMCache accepts; others are an error there, so nothing is stored under them.
_SALT = re.compile(r"[^@/\\\0\ud800-\udfff]{1,128}")


class Chunking(NamedTuple):
    """How prompts are cut into chunks, and how these are named."""

    tokens: int = 256
    """Tokens per chunk."""
    gpus: int = 1
    """GPUs per worker."""
    model: str | None = None
    """The model as given to the engine; None for the name in the request."""

    def names(self, ids: bytes, salt: str) -> Iterator[str]:
        """Yield the names of a prompt's full chunks, computed a few at a time; `ids` are 32 bits
        each."""
        suffix, width = ending(salt), 4 * self.tokens * TOGETHER
        some: list[bytes] = []
        for start in range(0, len(ids) if suffix is not None else 0, width):
            some = digests(ids[start : start + width], self.tokens, TOGETHER, *some[-1:])
            for digest in some:
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

    def said(self, model: str) -> str:
        """Describe what names are made of, for messages."""
        return f"chunk {self.tokens}, model {self.model or model}, gpus {self.gpus}"


def chunking(settings: LmcacheSettings) -> Chunking:
    """Return how LMCache's server cuts and names chunks."""
    return Chunking(settings.chunk, settings.gpus, settings.model)


def ending(salt: str) -> str | None:
    """Return the part of a key after the digest; None for a salt that LMCache does not accept."""
    if not salt:
        return ""
    return f"@{salt}" if _SALT.fullmatch(salt) else None


@cache
def _root() -> bytes:
    return _blake3(bytes(8 + 4))


def _blake3(data: bytes) -> bytes:
    # Imported here because it is in the extra `lmcache`.
    from blake3 import blake3  # noqa: PLC0415

    return blake3(data).digest(_DIGEST)


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


# Loading numpy takes 17 MB, and only strategies with a memory need it.

#: CBOR's major types.
NUMBER, TEXT, ARRAY = 0, 3, 4


def head(kind: int, number: int) -> bytes:
    """Encode a type and a number of up to 64 bits in as few bytes as possible. Raises
    ValueError."""
    if number < 24:
        return bytes([kind << 5 | number])
    for place, width in enumerate((1, 2, 4, 8)):
        if number < 1 << 8 * width:
            return bytes([kind << 5 | 24 + place]) + number.to_bytes(width, "big")
    raise ValueError("a number of more than 64 bits")


def text(value: str) -> bytes:
    """Encode a text."""
    return head(TEXT, len(value.encode())) + value.encode()


def cbor_array(ids: bytes) -> bytes:
    """Encode an array of numbers, given as 32 bits each in the machine's byte order."""
    import numpy as np  # noqa: PLC0415

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
    return head(ARRAY, len(words)) + wide[_written()[width]].tobytes()


#: Numbers from which more bytes are needed.
_BOUNDS = (24, 1 << 8, 1 << 16)


@cache
def _written() -> "NDArray[np.bool_]":
    """Return which of the five bytes are written, for each width."""
    import numpy as np  # noqa: PLC0415

    return np.array([[1, 0, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], bool)


#: What vLLM hashes first if PYTHONHASHSEED is not set.
UNSEEDED = "vllm-none-hash"
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


def naming(settings: LmcacheSettings) -> Chunking | EngineChunking:
    """Return how chunks in Redis are cut and named, by LMCache's server or in the engine."""
    if settings.names == "server":
        return chunking(settings)
    return EngineChunking(
        *(settings.chunk, settings.gpus, settings.model),
        *(settings.hash, settings.seed, settings.dtype),
    )


@cache
def first(function: Hash, seed: str | None) -> int:
    """Return `NONE_HASH`, which the first chunk's hash follows.

    Python's own hash of a text depends on a seed that is fixed when a process starts, so another
    process is asked. (The result is that of CPython 3.11 and later on 64 bits.)
    """
    if function != "builtin":
        root = UNSEEDED if seed is None else seed
        return _short(text(root) if function == "sha256_cbor" else _pickled(root))
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
    triple, nothing = head(ARRAY, 3), head(ARRAY, 0)
    return triple + head(NUMBER, last) + cbor_array(ids) + nothing


#: Functions from a hash and the chunk's token ids to the next hash.
_FOLLOW: dict[Hash, Callable[[int, bytes], int]] = {
    "builtin": lambda last, ids: hash(_triple(last, ids)),
    "sha256": lambda last, ids: _short(_pickled(_triple(last, ids))),
    "sha256_cbor": lambda last, ids: _short(_cbor(last, ids)),
}
