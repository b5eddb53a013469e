"""Decodes KV events, in every form that engines have used.

A payload is the msgpack array `[timestamp, events, data_parallel_rank]`. An event is a map with a
`type` (vLLM since 0.24), or an array that begins with the type (before). Missing fields have their
defaults; unknown fields and events are ignored. The worst that a payload can do is to be refused:
as a whole with `BadEvent`, or event by event with a reason in `ignored`.

Source: vLLM `distributed/kv_events.py`, releases 0.9.2 to 0.33. SGLang's hashes are signed.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple

import msgspec

from controller.index.block_events import (
    MAX_BLOCK_TOKENS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    Tier,
)

#: Largest payload in bytes; one step of an engine produces about 100 KiB.
MAX_PAYLOAD_BYTES = 16 << 20
#: Most events in a payload, and most blocks in an event.
MAX_EVENTS = 1 << 17
#: Longest name of an adapter, in characters (vLLM takes 128).
MAX_ADAPTER_NAME = 1024

_MASK = (1 << 64) - 1
_decode = msgspec.msgpack.Decoder().decode

#: Names that engines use for tiers, in lower case.
TIER_OF_MEDIUM = {
    "gpu": Tier.GPU,
    "hbm": Tier.GPU,
    "cpu": Tier.L1,
    "cpu_pinned": Tier.L1,
    "dram": Tier.L1,
    "storage": Tier.L2,
    "fs": Tier.L2,
    "obj": Tier.L2,
    "disk": Tier.L2,
    "ssd": Tier.L2,
}

#: Kinds of attention that need all blocks from the first on (vLLM `KVCacheSpecKind`).
FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class BadEvent(Exception):
    """The payload or event cannot be used; the argument is one of a few fixed reasons."""


class EventBatch(NamedTuple):
    """What one step of an engine changed."""

    time: float
    """Seconds since the epoch, by the engine's clock; 0 if it does not say."""
    events: list[Event]
    rank: int | None
    ignored: Counter[str]
    """Events that could not be used, by reason."""


_FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
        "ownership",
        "session_id",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality", "ownership"),
    "AllBlocksCleared": (),
}


def decode(payload: bytes) -> EventBatch:
    """Decode a payload. Raises BadEvent, and nothing else, whatever the bytes are."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise BadEvent("too large")
    try:
        batch = _decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        raise BadEvent("not msgpack") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise BadEvent("not a batch")
    if len(batch[1]) > MAX_EVENTS:
        raise BadEvent("too many events")
    time, rank = batch[0], batch[2] if len(batch) > 2 else None
    ignored: Counter[str] = Counter()
    events: list[Event] = []
    for event in batch[1]:
        try:
            events.append(_event(event))
        except BadEvent as refused:
            ignored[str(refused)] += 1
    return EventBatch(
        float(time) if type(time) in (int, float) and isfinite(time) else 0.0,
        events,
        rank if type(rank) is int else None,
        ignored,
    )


def _event(event: object) -> Event:
    """Decode one event. Raises BadEvent."""
    if isinstance(event, dict):
        kind, fields = event.get("type"), event
    elif isinstance(event, list) and event:
        kind = event[0]
        names = _FIELDS.get(kind, ()) if isinstance(kind, str) else ()
        fields = dict(zip(names, event[1:], strict=False))
    else:
        raise BadEvent("not an event")
    read = _DECODERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise BadEvent("unknown kind")
    return read(fields)


def _stored(fields: dict[str, Any]) -> BlockStored:
    hashes = _hashes(fields.get("block_hashes"))
    parent = fields.get("parent_block_hash")
    ids, size = fields.get("token_ids"), fields.get("block_size")
    if type(size) is not int or not 0 <= size <= MAX_BLOCK_TOKENS:
        raise BadEvent("odd block size")
    if ids is not None and not isinstance(ids, list):  # `array` would accept bytes as raw content
        raise BadEvent("odd tokens")
    try:
        tokens = array("I", ids or ()).tobytes()
    except (TypeError, OverflowError):
        raise BadEvent("odd tokens") from None
    extras = fields.get("extra_keys")
    if extras is not None and not isinstance(extras, list):
        raise BadEvent("odd extra keys")
    kind = fields.get("kv_cache_spec_kind")
    return BlockStored(
        hashes,
        None if parent is None else _hashes([parent])[0],
        tokens,
        size if tokens else 0,
        _tier(fields),
        _shared(fields),
        _adapter(fields),
        extras if extras and any(extras) else None,
        _group(fields),
        kind in FULL_ATTENTION_KINDS if isinstance(kind, str) else None,
    )


def _removed(fields: dict[str, Any]) -> BlockRemoved:
    hashes = _hashes(fields.get("block_hashes"))
    return BlockRemoved(hashes, _tier(fields), _shared(fields), _group(fields))


def _cleared(_: dict[str, Any]) -> AllBlocksCleared:
    return AllBlocksCleared()


_DECODERS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": _cleared,
}


def _hashes(hashes: object) -> Sequence[int]:
    """Read hashes as unsigned 64-bit integers; of bytes, the last eight count, as in vLLM."""
    if not isinstance(hashes, list):
        raise BadEvent("odd hashes")
    if len(hashes) > MAX_EVENTS:
        raise BadEvent("too many blocks")
    kinds = set(map(type, hashes))
    if kinds <= {int}:
        return hashes if not hashes or min(hashes) >= 0 else [number & _MASK for number in hashes]
    if kinds == {bytes}:
        return [int.from_bytes(digest[-8:], "big") for digest in hashes]
    raise BadEvent("odd hashes")


def _tier(fields: dict[str, Any]) -> Tier:
    medium = fields.get("medium")
    if medium is None:
        return Tier.GPU
    tier = TIER_OF_MEDIUM.get(medium.lower()) if isinstance(medium, str) else None
    if tier is None:
        raise BadEvent("unknown medium")
    return tier


def _shared(fields: dict[str, Any]) -> bool:
    locality = fields.get("locality")
    return isinstance(locality, str) and locality.upper() == "REMOTE"


def _adapter(fields: dict[str, Any]) -> str:
    """Return the adapter's name; vLLM before 0.16 only gave its number."""
    name, number = fields.get("lora_name"), fields.get("lora_id")
    if name is None:
        return "" if number is None else f"\0{number}"[:MAX_ADAPTER_NAME]
    if not isinstance(name, str) or len(name) > MAX_ADAPTER_NAME:
        raise BadEvent("odd adapter")
    return name


def _group(fields: dict[str, Any]) -> int | None:
    group = fields.get("group_idx")
    if group is not None and type(group) is not int:
        raise BadEvent("odd group")
    return group
