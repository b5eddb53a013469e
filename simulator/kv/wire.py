"""KV events as bytes, in both encodings that vLLM has used (`vllm/distributed/kv_events.py`).

A batch is the msgpack array `[timestamp, events, data_parallel_rank]`. Since vLLM 0.24 an event
is a map with a `type`, without optional fields that have their default value. Up to 0.23 it was
an array that begins with the type, with every field at a fixed position.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from simulator.kv.changes import Change, Removed, Stored

Encoding = Literal["map", "array"]

_GROUP = 0
_KIND = "full_attention"

_encode = msgspec.msgpack.Encoder().encode


def encode_batch(changes: Sequence[Change], timestamp: float, encoding: Encoding) -> bytes:
    """Encode one batch; `timestamp` is in seconds since the epoch, the rank is always 0."""
    event = _as_map if encoding == "map" else _as_array
    return _encode([timestamp, [event(change) for change in changes], 0])


def _as_map(change: Change) -> dict[str, Any]:
    if isinstance(change, Stored):
        return {
            "type": "BlockStored",
            "block_hashes": change.hashes,
            "parent_block_hash": change.parent,
            "token_ids": change.token_ids.tolist(),
            "block_size": change.block_size,
            "lora_id": None,
            "medium": change.medium,
            "lora_name": change.lora_name,
            "extra_keys": change.extra_keys,
            "group_idx": _GROUP,
            "kv_cache_spec_kind": _KIND,
            **({"locality": "REMOTE"} if change.remote else {}),
        }
    if isinstance(change, Removed):
        return {
            "type": "BlockRemoved",
            "block_hashes": [change.hash],
            "medium": change.medium,
            "group_idx": _GROUP,
        }
    return {"type": "AllBlocksCleared"}


def _as_array(change: Change) -> list[Any]:
    if isinstance(change, Stored):
        return [
            "BlockStored",
            change.hashes,
            change.parent,
            change.token_ids.tolist(),
            change.block_size,
            None,
            change.medium,
            change.lora_name,
            change.extra_keys,
            _GROUP,
            _KIND,
            None,
        ]
    if isinstance(change, Removed):
        return ["BlockRemoved", [change.hash], change.medium, _GROUP]
    return ["AllBlocksCleared"]
