"""Chained block keys: a key names a block and everything before it.

Each key is the xxh3 hash of the block's bytes, seeded with the key before it. So one key stands
for the whole path from the root, and a flat map of keys is a radix tree. A collision could only
send a request to a worker that knows less than believed; it can never mix up answers.

Blocks of text grow with their depth: what matters is how much of a prompt is held, to a few parts
in a hundred. 16 KiB are 64 keys, 256 KiB 192 instead of 1,024.
"""

from bisect import bisect_right
from collections.abc import Sequence

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
    key = root
    start = 0
    view = memoryview(data)
    for end in ends[1 : bisect_right(ends, len(data))]:
        key = xxh3_64_intdigest(view[start:end], key)
        keys.append(key)
        start = end
    return keys
