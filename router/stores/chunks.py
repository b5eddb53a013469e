"""The names that LMCache's server gives to chunks of a prompt (0.5; `lmcache/v1/distributed`).

Only full chunks have one. Each digest is the blake3 of the one before it and of the chunk's token
ids, 32 bits each, highest byte first; the first follows the digest of eight zero bytes and a zero
id. A key is `<model>@<rank>@<group>@<digest>`, and with a salt `@<salt>` more; the rank, eight hex
digits, packs GPUs in all, which of them, GPUs of the node and which of those
(`ObjectKey.ComputeKVRank`). Held against a real server's keys and events in tests.
"""

import re
from array import array
from functools import cache
from sys import byteorder
from typing import NamedTuple

#: A key of LMCache's server, and one that LMCache in the engine's own process makes
#: (`engine_chunks`).
SERVERS = re.compile(
    rb"(?P<model>.+)@(?P<rank>[0-9a-f]{8})@(?P<group>[0-9a-f]+)@(?P<digest>[0-9a-f]{64})"
    rb"(@[^@]+)?"
)
ENGINES = re.compile(
    rb"(?P<model>.+)@(?P<gpus>\d+)@(?P<gpu>\d+)@(?P<hash>-?[0-9a-f]+)"
    rb"@(?P<dtype>[a-z0-9_]+?)(?P<part>metadata|kv_bytes|)(@.*)?"
)
_DIGEST = 32
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

    def names(self, model: str, ids: bytes, salt: str, most: int) -> list[str]:
        """Name the first full chunks, of the first GPU's part; `ids` are 32 bits each."""
        prefix, suffix = self.prefix(model), ending(salt)
        if suffix is None:
            return []
        return [prefix + digest.hex() + suffix for digest in digests(ids, self.tokens, most)]

    def keys(self, name: str) -> tuple[str, ...]:
        """Keys of which one is there if the chunk is."""
        return (name,)

    def prefix(self, model: str) -> str:
        """What comes before the digest, of the first GPU's part."""
        return f"{self.model or model}@{self.gpus:02x}00{self.gpus:02x}00@0@"


def ending(salt: str) -> str | None:
    """What comes after the digest; None for a salt that LMCache does not take."""
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


def digests(ids: bytes, tokens: int, most: int) -> list[bytes]:
    """Name the first full chunks of a prompt, `most` of them at most; `ids` are 32 bits each."""
    words = array("I", ids)
    if byteorder == "little":
        words.byteswap()
    data, width = words.tobytes(), 4 * tokens
    named, last = [], _root()
    for start in range(0, min(len(data) - width + 1, most * width), width):
        last = _blake3(last + data[start : start + width])
        named.append(last)
    return named
