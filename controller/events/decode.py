"""Decodes KV events, in every form that engines have used.

A payload is the msgpack array `[timestamp, events, data_parallel_rank]`. An event is a map with a
`type` (vLLM since 0.24), or an array that begins with the type (before). Missing fields have their
defaults; unknown fields and events are ignored. The worst that a payload can do is to be refused:
as a whole with `Refused`, or event by event with a reason in `ignored`.

Source: vLLM `distributed/kv_events.py`, releases 0.9.2 to 0.33. SGLang's hashes are signed.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from math import isfinite
from typing import Any, NamedTuple

import msgspec

#: Largest payload in bytes; one step of an engine produces about 100 KiB.
LARGEST = 16 << 20
#: Most events in a payload, and most blocks in an event.
MOST = 1 << 17
#: Largest block size in tokens.
WIDEST = 1 << 16
#: Longest name of an adapter, in characters (vLLM takes 128).
LONGEST_NAME = 1024

_MASK = (1 << 64) - 1
_decode = msgspec.msgpack.Decoder().decode


class Tier(IntEnum):
    """Where a block is, fastest first."""

    GPU = 0
    L1 = 1
    """Host memory."""
    L2 = 2
    """A disk, or a store on the network."""


#: Names that engines use for tiers, in lower case.
TIERS = {
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
WHOLE = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class Refused(Exception):
    """The payload or event cannot be used; the argument is one of a few fixed reasons."""


class Stored(NamedTuple):
    """Consecutive blocks of one sequence that are on a tier from now on."""

    hashes: Sequence[int]
    """The engine's names of the blocks, as unsigned 64-bit integers."""
    parent: int | None
    """Name of the block before the first; None if the sequence begins here."""
    tokens: bytes
    """Token ids of all blocks, 32 bits each in native byte order; empty if not in the event."""
    size: int
    """Tokens per block; 0 if `tokens` is empty."""
    tier: Tier
    shared: bool
    """In a store on the network, from which every worker can load."""
    adapter: str
    extras: Sequence[Any] | None
    """What the names cover besides tokens: a list or None for each block."""
    group: int | None
    whole: bool | None
    """Whether the group's attention needs every block from the first on; None if unknown."""


class Removed(NamedTuple):
    """Blocks that left a tier."""

    hashes: Sequence[int]
    tier: Tier
    shared: bool
    group: int | None


class Cleared(NamedTuple):
    """Everything left the GPU; other tiers are unaffected."""


Event = Stored | Removed | Cleared


class Batch(NamedTuple):
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


def decode(payload: bytes) -> Batch:
    """Decode a payload. Raises Refused, and nothing else, whatever the bytes are."""
    if len(payload) > LARGEST:
        raise Refused("too large")
    try:
        batch = _decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        raise Refused("not msgpack") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise Refused("not a batch")
    if len(batch[1]) > MOST:
        raise Refused("too many events")
    time, rank = batch[0], batch[2] if len(batch) > 2 else None
    ignored: Counter[str] = Counter()
    events: list[Event] = []
    for given in batch[1]:
        try:
            events.append(_event(given))
        except Refused as refused:
            ignored[str(refused)] += 1
    return Batch(
        float(time) if type(time) in (int, float) and isfinite(time) else 0.0,
        events,
        rank if type(rank) is int else None,
        ignored,
    )


def _event(given: object) -> Event:
    """Decode one event. Raises Refused."""
    if isinstance(given, dict):
        kind, fields = given.get("type"), given
    elif isinstance(given, list) and given:
        kind = given[0]
        names = _FIELDS.get(kind, ()) if isinstance(kind, str) else ()
        fields = dict(zip(names, given[1:], strict=False))
    else:
        raise Refused("not an event")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise Refused("unknown kind")
    return read(fields)


def _stored(fields: dict[str, Any]) -> Stored:
    hashes = _hashes(fields.get("block_hashes"))
    parent = fields.get("parent_block_hash")
    ids, size = fields.get("token_ids"), fields.get("block_size")
    if type(size) is not int or not 0 <= size <= WIDEST:
        raise Refused("odd block size")
    if ids is not None and not isinstance(ids, list):  # `array` would accept bytes as raw content
        raise Refused("odd tokens")
    try:
        tokens = array("I", ids or ()).tobytes()
    except (TypeError, OverflowError):
        raise Refused("odd tokens") from None
    extras = fields.get("extra_keys")
    if extras is not None and not isinstance(extras, list):
        raise Refused("odd extra keys")
    kind = fields.get("kv_cache_spec_kind")
    return Stored(
        hashes,
        None if parent is None else _hashes([parent])[0],
        tokens,
        size if tokens else 0,
        _tier(fields),
        _shared(fields),
        _adapter(fields),
        extras if extras and any(extras) else None,
        _group(fields),
        kind in WHOLE if isinstance(kind, str) else None,
    )


def _removed(fields: dict[str, Any]) -> Removed:
    hashes = _hashes(fields.get("block_hashes"))
    return Removed(hashes, _tier(fields), _shared(fields), _group(fields))


def _cleared(_: dict[str, Any]) -> Cleared:
    return Cleared()


_READERS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": _cleared,
}


def _hashes(given: object) -> Sequence[int]:
    """Read hashes as unsigned 64-bit integers; of bytes, the last eight count, as in vLLM."""
    if not isinstance(given, list):
        raise Refused("odd hashes")
    if len(given) > MOST:
        raise Refused("too many blocks")
    kinds = set(map(type, given))
    if kinds <= {int}:
        return given if not given or min(given) >= 0 else [one & _MASK for one in given]
    if kinds == {bytes}:
        return [int.from_bytes(one[-8:], "big") for one in given]
    raise Refused("odd hashes")


def _tier(fields: dict[str, Any]) -> Tier:
    medium = fields.get("medium")
    if medium is None:
        return Tier.GPU
    tier = TIERS.get(medium.lower()) if isinstance(medium, str) else None
    if tier is None:
        raise Refused("unknown medium")
    return tier


def _shared(fields: dict[str, Any]) -> bool:
    locality = fields.get("locality")
    return isinstance(locality, str) and locality.upper() == "REMOTE"


def _adapter(fields: dict[str, Any]) -> str:
    """Return the adapter's name; vLLM before 0.16 only gave its number."""
    name, number = fields.get("lora_name"), fields.get("lora_id")
    if name is None:
        return "" if number is None else f"\0{number}"[:LONGEST_NAME]
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise Refused("odd adapter")
    return name


def _group(fields: dict[str, Any]) -> int | None:
    group = fields.get("group_idx")
    if group is not None and type(group) is not int:
        raise Refused("odd group")
    return group
