"""Names that LMCache's server gives to chunks of a prompt (0.5; `lmcache/v1/distributed`).

Only full chunks have one. Each digest is the blake3 of the previous digest and the chunk's token
ids, 32 bits each, big-endian; the digest before the first chunk is that of eight zero bytes and a
zero id. A key is `<model>@<rank>@<group>@<digest>`, plus `@<salt>` if there is a salt. The rank,
eight hex digits, packs the number of GPUs, the GPU's index, the number of GPUs on the node and the
GPU's index there (`ObjectKey.ComputeKVRank`). Tests compare with a real server's keys and events.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from sys import byteorder
from typing import NamedTuple

from router.kv.lmcache.kinds import Kind

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
