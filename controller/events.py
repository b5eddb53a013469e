"""KV events from bytes, in every form that engines have given them.

A payload is the msgpack array `[timestamp, events, data_parallel_rank]`. An event is a map with a
`type` (vLLM since 0.24) or an array that begins with it (before); fields that are missing have
their defaults, fields and events that nobody here knows are passed over. Nothing in a payload can
do more than be refused: with `Refused` as a whole, or event by event with a reason in `ignored`.

Source: vLLM `distributed/kv_events.py`, releases 0.9.2 to 0.33; SGLang signs its hashes.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

#: Bytes of a payload; one step of an engine makes some 100 KiB.
LARGEST = 16 << 20
#: Events of a payload, and blocks of an event.
MOST = 1 << 17
#: Tokens of a block.
WIDEST = 1 << 16
#: Bytes of a name within a key: an adapter, a salt (vLLM takes 128 characters).
LONGEST_NAME = 1024

_MASK = (1 << 64) - 1
_decode = msgspec.msgpack.Decoder().decode


class Tier(IntEnum):
    """Where a block lies, the fastest first."""

    GPU = 0
    L1 = 1
    """The host's memory."""
    L2 = 2
    """A disk, or a store behind the network."""


#: The names that engines give to tiers, in lower case.
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

#: Kinds of attention whose blocks are all needed, from the first on (vLLM `KVCacheSpecKind`).
WHOLE = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class Refused(Exception):
    """The payload cannot be used; the argument is one of our own fixed words."""


class Stored(NamedTuple):
    """Consecutive blocks of one sequence that lie on a tier from now on."""

    hashes: Sequence[int]
    """The engine's own names of the blocks, unsigned, 64 bits each."""
    parent: int | None
    """The block before the first; None where the sequence begins."""
    tokens: bytes
    """Of all blocks, 32 bits each in the machine's order; empty where the engine left them out."""
    size: int
    """Tokens a block; 0 where `tokens` is empty."""
    tier: Tier
    shared: bool
    """It lies behind the network: every worker can load it."""
    adapter: str
    extras: Sequence[Any] | None
    """What besides tokens is part of the names, a list or None for each block."""
    group: int | None
    whole: bool | None
    """The group's attention needs every block from the first on; None if not told."""


class Removed(NamedTuple):
    """Blocks that left a tier."""

    hashes: Sequence[int]
    tier: Tier
    shared: bool
    group: int | None


class Cleared(NamedTuple):
    """Everything left the GPU, and nothing else did."""


Event = Stored | Removed | Cleared


class Batch(NamedTuple):
    """What one step of an engine changed."""

    time: float
    """Seconds since the epoch, by the engine's clock."""
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
    """Read a payload. Raises Refused, and nothing else whatever the bytes are."""
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
        float(time) if type(time) in (int, float) else 0.0,
        events,
        rank if type(rank) is int else None,
        ignored,
    )


def _event(given: object) -> Event:
    """Read one event. Raises Refused."""
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
    if ids is not None and not isinstance(ids, list):  # bytes would be taken for whole numbers
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
    """Read hashes as unsigned 64 bits: of bytes the last eight, as vLLM cuts its digests."""
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
    """Return the adapter's name; engines before 0.16 told its number alone."""
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
