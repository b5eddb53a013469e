"""Chained block keys: a key names a block and everything before it.

Each key is the xxh3 hash of the block's bytes, seeded with the key before it. So one key stands
for the whole path from the root, and a flat map of keys is a radix tree. A collision could only
send a request to a worker that knows less than believed; it can never mix up answers.

Blocks of text grow with their depth: what matters is how much of a prompt is held, to a few parts
in a hundred. 16 KiB are 64 keys, 256 KiB 192 instead of 1,024.
"""

from bisect import bisect_right
from collections.abc import Sequence
from struct import iter_unpack

from xxhash import xxh3_64_intdigest

#: Bytes of the first blocks of text when prompts are not tokenized: about 64 tokens of English.
TEXT_BLOCK = 256
#: A block is at most this part of what lies before it, or `TEXT_BLOCK`.
FINENESS = 32
#: Deeper than this, text has no keys.
DEEPEST = 1 << 30


def _text_ends() -> tuple[int, ...]:
    ends, size = [0], TEXT_BLOCK
    while ends[-1] < DEEPEST:
        if ends[-1] >= 2 * size * FINENESS:
            size *= 2
        ends.append(ends[-1] + size)
    return tuple(ends)


#: Where blocks of text end, in bytes.
TEXT_ENDS = _text_ends()


def root_key(*identity: str) -> int:
    """Key that precedes the first block: model, adapter, salt. Parts cannot run together."""
    root = 0
    for part in identity:
        root = xxh3_64_intdigest(part.encode(), root)
    return root


def chain(root: int, data: bytes, ends: Sequence[int] = TEXT_ENDS) -> list[int]:
    """Return the key of every full block of `data`; a partial tail has none.

    Block n reaches from `ends[n]` to `ends[n + 1]`, in bytes.
    """
    keys = []
    key, start, digest = root, 0, xxh3_64_intdigest
    for end in ends[1 : bisect_right(ends, len(data))]:
        key = digest(data[start:end], key)  # copying a block takes less than making a view of it
        keys.append(key)
        start = end
    return keys


#: Keys of even blocks have 60 bits, the highest of them set: two digits of Python's integers, which
#: take 32 bytes instead of 48, and never zero.
_LOW, _HIGH = (1 << 59) - 1, 1 << 59
#: The key before those of neither adapter nor salt.
_PLAIN = root_key("even", "", "") & _LOW | _HIGH
#: Bytes of a token id.
ID_BYTES = 4


def even_root(adapter: str, salt: str) -> int:
    """Key before the first even block: engines name blocks by tokens, adapter and salt."""
    if not adapter and not salt:
        return _PLAIN
    return root_key("even", adapter, salt) & _LOW | _HIGH  # not kept: a salt may be megabytes


def even_chain(root: int, ids: bytes, size: int) -> list[int]:
    """Return the key of every full block of `size` tokens; a partial tail has none.

    `ids` are token ids, 32 bits each. Going on from the last key of one call with the ids that
    follow gives the same keys as one call would.
    """
    key, width, low, high, digest = root, size * ID_BYTES, _LOW, _HIGH, xxh3_64_intdigest
    whole = ids[: len(ids) - len(ids) % width]
    return [key := digest(block, key) & low | high for (block,) in iter_unpack(f"{width}s", whole)]


def extra_key(key: int, extra: bytes) -> int:
    """Key of the block whose tokens give `key`, and whose name has more in it than tokens."""
    return xxh3_64_intdigest(extra, key) & _LOW | _HIGH
