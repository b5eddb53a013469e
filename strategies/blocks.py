"""Chained block keys: a key names a block and everything before it.

Each key is the xxh3 hash of the block's bytes, seeded with the key before it. So one key stands
for the whole path from the root, and a flat map of keys is a radix tree. A collision could only
send a request to a worker that knows less than believed; it can never mix up answers.
"""

from xxhash import xxh3_64_intdigest

#: Bytes of canonical text a block when prompts are not tokenized: about 64 tokens of English.
TEXT_BLOCK = 256


def root_key(*identity: str) -> int:
    """Key that precedes the first block: model, adapter, salt. Parts cannot run together."""
    root = 0
    for part in identity:
        root = xxh3_64_intdigest(part.encode(), root)
    return root


def chain(root: int, data: bytes, size: int = TEXT_BLOCK) -> list[int]:
    """Return the key of every full block of `size` bytes of `data`; a partial tail has none."""
    keys = []
    key = root
    view = memoryview(data)
    for start in range(0, len(data) - size + 1, size):
        key = xxh3_64_intdigest(view[start : start + size], key)
        keys.append(key)
    return keys
