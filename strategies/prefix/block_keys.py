"""Chained block keys: a key identifies a block and everything before it.

Each key is the xxh3 hash of the block's bytes, seeded with the previous key. One key therefore
stands for the whole path from the root, and a flat map of keys is a radix tree. A hash collision
could only send a request to a worker that holds less than predicted; it cannot mix up answers.

Text blocks get larger further into the prompt, since only the share of a prompt that is held
matters, to within a few percent. 16 KiB of text have 64 keys, and 256 KiB have 192 instead of
1,024.
"""

from bisect import bisect_right
from collections.abc import Sequence
from struct import iter_unpack

from xxhash import xxh3_64_intdigest

#: Size of the first text blocks in bytes, if prompts are not tokenized: about 64 English tokens.
TEXT_BLOCK = 256
#: A larger block is at most 1 / `FINENESS` of the text before it.
FINENESS = 32
#: Text beyond this many bytes has no keys.
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
    """Return the key before the first block, from model, adapter and salt, hashed part by part."""
    root = 0
    for part in identity:
        root = xxh3_64_intdigest(part.encode(), root)
    return root


def chain(root: int, data: bytes, ends: Sequence[int] = TEXT_ENDS) -> list[int]:
    """Return the key of every full block of `data`; a partial last block has none.

    Block n covers the bytes from `ends[n]` to `ends[n + 1]`.
    """
    keys = []
    key, start, digest = root, 0, xxh3_64_intdigest
    for end in ends[1 : bisect_right(ends, len(data))]:
        key = digest(data[start:end], key)  # copying a block is faster than creating a memoryview
        keys.append(key)
        start = end
    return keys


#: Keys of equal-sized blocks have 60 bits with the highest set, so they are never zero. They fit
#: two digits of a Python integer, which then takes 32 bytes of memory; a third digit makes it 48.
_LOW, _HIGH = (1 << 59) - 1, 1 << 59
#: Root key of prompts with neither adapter nor salt.
_PLAIN = root_key("even", "", "") & _LOW | _HIGH
#: Bytes per token id.
ID_BYTES = 4


def even_root(adapter: str, salt: str) -> int:
    """Return the key before the first equal-sized block, from adapter and salt.

    Engines, too, identify blocks by tokens, adapter and salt.
    """
    if not adapter and not salt:
        return _PLAIN
    return root_key("even", adapter, salt) & _LOW | _HIGH  # not cached: a salt may be megabytes


def even_chain(root: int, ids: bytes, size: int) -> list[int]:
    """Return the key of every full block of `size` tokens; a partial last block has none.

    `ids` are token ids, 32 bits each. A call with the last key of an earlier call as `root`
    continues its chain: the keys are the same as those of one call with all ids.
    """
    key, width, low, high, digest = root, size * ID_BYTES, _LOW, _HIGH, xxh3_64_intdigest
    whole = ids[: len(ids) - len(ids) % width]
    return [key := digest(block, key) & low | high for (block,) in iter_unpack(f"{width}s", whole)]


def extra_key(key: int, extra: bytes) -> int:
    """Return the key of a block whose tokens give `key` and whose hash covers `extra` as well."""
    return xxh3_64_intdigest(extra, key) & _LOW | _HIGH
