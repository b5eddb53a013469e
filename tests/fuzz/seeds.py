"""Messages as engines send them, to start fuzzing with: random bytes fail at the first field."""

import msgspec

#: Two blocks, with every field that is read; `parent_block_hash` may refer to one of these.
STORED: dict[str, object] = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": None,
    "token_ids": list(range(8)),
    "block_size": 4,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "a",
    "extra_keys": [["a", "salt"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "locality": "LOCAL",
}
_EVENTS: list[object] = [
    STORED,
    STORED | {"block_hashes": [13, 14], "parent_block_hash": 12, "extra_keys": None},
    STORED | {"block_hashes": [15, 16], "parent_block_hash": 99},
    STORED | {"token_ids": [], "block_size": 0, "medium": "CPU"},
    ["BlockStored", [b"\x01" * 32], None, [1, 2, 3, 4], 4, None, "STORAGE"],
    {"type": "BlockRemoved", "block_hashes": [12, 13], "medium": "GPU"},
    ["BlockRemoved", [11], "CPU"],
    {"type": "AllBlocksCleared"},
]
#: Each event alone, and all together.
PAYLOADS = [
    msgspec.msgpack.encode([1.5, events, 0]) for events in (*([e] for e in _EVENTS), _EVENTS)
]
