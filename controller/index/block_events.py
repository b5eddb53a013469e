"""What the index is told: blocks that came to a tier of an engine, and blocks that left it.

The events have the names that vLLM gives them (`distributed/kv_events.py`).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

#: Largest block size in tokens.
MAX_BLOCK_TOKENS = 1 << 16
#: Larger blocks, in tokens, are not examined for how their names are computed.
MAX_BLOCK_TOKENS_EXAMINED = 1024
#: Where a stream of events stands: number and digest of the message applied last, how many restarts
#: were noticed, and the group of layers whose blocks count.
Mark = tuple[int, int, int, int | None]


class Tier(IntEnum):
    """Where a block is, fastest first."""

    GPU = 0
    L1 = 1
    """Host memory."""
    L2 = 2
    """A disk, or a store on the network."""


class BlockStored(NamedTuple):
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


class BlockRemoved(NamedTuple):
    """Blocks that left a tier."""

    hashes: Sequence[int]
    tier: Tier
    shared: bool
    group: int | None


class AllBlocksCleared(NamedTuple):
    """Everything left the GPU; other tiers are unaffected."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class FirstBlock(NamedTuple):
    """The first block of a sequence, whose name covers only tokens."""

    name: int
    tokens: bytes
    """Token ids, 32 bits each, in native byte order."""


def first_block(event: BlockStored) -> FirstBlock | None:
    """Return the first block of an event, if it is such a block; otherwise None."""
    plain = event.parent is None and not event.extras and not event.adapter and event.hashes
    if not plain or not 0 < event.size <= MAX_BLOCK_TOKENS_EXAMINED or event.tier is not Tier.GPU:
        return None
    return FirstBlock(event.hashes[0], event.tokens[: 4 * event.size])
