"""The names that LMCache's server gives to chunks of a prompt (0.5; `lmcache/v1/distributed`).

Only full chunks have one. Each digest is the blake3 of the one before it and of the chunk's token
ids, 32 bits each, highest byte first; the first follows the digest of eight zero bytes and a zero
id. A key is `<model>@<rank>@<group>@<digest>`, and with a salt `@<salt>` more; the rank, eight hex
digits, packs GPUs in all, which of them, GPUs of the node and which of those
(`ObjectKey.ComputeKVRank`). Held against a real server's keys and events in tests.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from sys import byteorder
from typing import NamedTuple

from router.stores.kinds import Kind

_DIGEST = 32
#: Chunks that are named at once.
TOGETHER = 16
#: A salt that LMCache takes; another one is an error there, and nothing lies under it.
_SALT = re.compile(r"[^@/\\\0\ud800-\udfff]{1,128}")


class Chunking(NamedTuple):
    """How chunks are cut and named."""

    tokens: int = 256
    """Tokens of a chunk."""
    gpus: int = 1
    """GPUs of a worker."""
    model: str | None = None
    """The model as the engine was given it; None for the name that is asked for."""

    def names(self, ids: bytes, salt: str) -> Iterator[str]:
        """Name the full chunks of a prompt, a few at a time as they are wanted; `ids` are 32 bits
        each."""
        suffix, width = ending(salt), 4 * self.tokens * TOGETHER
        some: list[bytes] = []
        for start in range(0, len(ids) if suffix is not None else 0, width):
            some = digests(ids[start : start + width], self.tokens, TOGETHER, *some[-1:])
            for digest in some:
                yield f"{digest.hex()}{suffix}"

    def keys(self, model: str, name: str) -> Sequence[Sequence[str]]:
        """Sets of keys, of one of which all are there if the chunk is: each GPU writes its part.

        LMCache itself loads a chunk only if it finds all parts (`_lookup_kv_ranks`).
        """
        return ([self.prefix(model, gpu) + name for gpu in range(self.gpus)],)

    def prefix(self, model: str, gpu: int = 0) -> str:
        """What comes before the digest, of one GPU's part."""
        return f"{self.model or model}@{2 * f'{self.gpus:02x}{gpu:02x}'}@0@"

    def kind(self, model: str) -> Kind:
        """What is told from its keys."""
        return Kind(self.model or model, self.gpus)

    def said(self, model: str) -> str:
        """What names are made of, for people."""
        return f"chunk {self.tokens}, model {self.model or model}, gpus {self.gpus}"


def ending(salt: str) -> str | None:
    """Return what comes after the digest; None for a salt that LMCache does not take."""
    if not salt:
        return ""
    return f"@{salt}" if _SALT.fullmatch(salt) else None


@cache
def _root() -> bytes:
    return _blake3(bytes(8 + 4))


def _blake3(data: bytes) -> bytes:
    # Only for those who want it: it is in the extra `lmcache`.
    from blake3 import blake3  # noqa: PLC0415

    return blake3(data).digest(_DIGEST)


def digests(ids: bytes, tokens: int, most: int, last: bytes | None = None) -> list[bytes]:
    """Name the first full chunks of a prompt, `most` of them at most; `ids` are 32 bits each.
    `last` is the digest before them, if they are not the very first."""
    words = array("I", ids)
    if byteorder == "little":
        words.byteswap()
    data, width = words.tobytes(), 4 * tokens
    named, last = [], last or _root()
    for start in range(0, min(len(data) - width + 1, most * width), width):
        last = _blake3(last + data[start : start + width])
        named.append(last)
    return named
