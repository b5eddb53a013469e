"""The mirror of one worker's cache: what it was sent, in the order in which it forgets.

Engines free a request's blocks last block first when it ends, and evict what was freed longest
ago (vLLM `v1/core/block_pool.py`, `free_blocks`). So a path is touched from its leaf up to the
root: a child is never younger than its parent, and the oldest entry is always a leaf.

A worker may hold less than it is said to, since others use it too, or more, since it has a host
tier. What it reports as cached tells: by the order of use, one that has lost a prefix has also
lost all that was used before it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strategies.node import Node

UNBOUNDED = float("inf")
#: Bytes of an entry and of its part of a node (measured 700), and of one key.
ENTRY_BYTES, KEY_BYTES = 760, 8
#: One report may take no more than this part of what is believed to be held: it may be wrong.
MOST_LOST = 0.5
#: A learned capacity never falls below this part of what the worker is said to hold, nor rises
#: above so many times it.
LEAST, MOST = 0.25, 16.0
#: How many times what its GPU holds a worker that reports is believed to hold where nobody has said
#: what lies behind it, the host's memory say. Too much is noticed by the first reports, and too
#: little only prompt by prompt.
BEHIND = 5.0
#: How many entries in use are passed over at a time.
MOST_PASSED = 8
#: What one report may do to a learned capacity: fewer tokens than believed, more, just as many.
LOWER, RISE, RETURN = 0.5, 1.3, 0.001


class Entry:
    """What one worker holds of one node's run of blocks."""

    __slots__ = ("extra", "held", "node", "older", "stamp", "users", "younger")

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.held = 0
        """Blocks, from the run's first on."""
        self.extra = 0.0
        """Tokens that follow the last block and are kept too: a prompt's tail, an answer."""
        self.users = 0
        """Requests under way there with this prefix."""
        self.stamp = 0
        """When it was used last, in placements."""
        self.older: Entry = self
        self.younger: Entry = self


class Shadow:
    """One worker's entries in the order of their use."""

    __slots__ = (
        "bit",
        "blocks",
        "bytes",
        "clock",
        "first",
        "leaving",
        "reports",
        "scale",
        "shared",
        "size",
        "told",
        "worker",
    )

    def __init__(self, worker: str, bit: int) -> None:
        self.worker = worker
        self.bit = bit
        self.leaving = False
        """Its worker has been forgotten, and not all of its entries are gone."""
        self.bytes = 0
        self.blocks = 0
        self.size = 0.0
        """Tokens."""
        self.shared = 0.0
        """Tokens that requests under way have in common: each is counted once too often for each
        request but the first."""
        self.clock = 0
        """Placements so far."""
        self.scale = 1.0
        """Its capacity as learned, in parts of what it is said to hold."""
        self.reports = False
        """It has told how much of a prompt was cached."""
        self.told = True
        """How much it holds was told, all of it."""
        self.first = Entry(None)  # type: ignore[arg-type]  # a ring: `younger` is the oldest

    def touch(self, entry: Entry) -> None:
        """Used just now: it is the youngest."""
        older, younger, ring = entry.older, entry.younger, self.first
        older.younger, younger.older = younger, older
        last = ring.older
        entry.older, entry.younger = last, ring
        last.younger = ring.older = entry
        entry.stamp = self.clock

    def enter(self, node: "Node") -> Entry:
        """A new, empty entry; the caller touches it."""
        entry = node.entries[self.bit] = Entry(node)
        node.mask |= self.bit
        self.bytes += ENTRY_BYTES
        return entry

    def split(self, lower: Entry, node: "Node", held: int) -> Entry:
        """Its run was cut in two: an entry for the upper part, used when the lower one was."""
        upper = node.entries[self.bit] = Entry(node)
        upper.held, upper.users, upper.stamp = held, lower.users, lower.stamp
        upper.older, upper.younger = lower, lower.younger
        lower.younger.older = upper
        lower.younger = upper
        self.bytes += ENTRY_BYTES
        return upper

    def __iter__(self) -> Iterator[Entry]:
        """All entries, the oldest first."""
        entry = self.first.younger
        while entry is not self.first:
            yield entry
            entry = entry.younger

    def hold(self, entry: Entry, held: int) -> None:
        """It holds so many blocks of the run by now."""
        change = entry.node.tokens(entry.held, held)
        self.size += change
        self.bytes += KEY_BYTES * (held - entry.held)
        self.blocks += held - entry.held
        if entry.users > 1:
            self.shared += (entry.users - 1) * change
        entry.held = held

    def use(self, entry: Entry, users: int) -> None:
        """So many requests under way have it."""
        more = max(0, users - 1) - max(0, entry.users - 1)
        if more:
            self.shared += more * entry.node.tokens(0, entry.held)
        entry.users = users

    def add(self, entry: Entry, tokens: float) -> None:
        """So many tokens follow it."""
        entry.extra += tokens
        self.size += tokens

    def drop(self, entry: Entry) -> None:
        """It is gone; the node goes with its last entry."""
        self.add(entry, -entry.extra)
        self.hold(entry, 0)
        entry.older.younger, entry.younger.older = entry.younger, entry.older
        self.bytes -= ENTRY_BYTES
        node = entry.node
        del node.entries[self.bit]
        node.mask &= ~self.bit
        if not node.mask:
            node.leave()
        if self.first.younger is self.first:
            self.size = self.shared = 0.0  # no drift from adding and taking away floats

    def shrink(self, bytes_: float, tokens: float = UNBOUNDED, *, most: int) -> int:
        """Forget the oldest until it is no larger than that; return how many it was.

        `most` entries are looked at. What requests under way use, the worker cannot evict: it is
        passed over, but for memory.
        """
        ring, passed = self.first, 0
        for done in range(most):
            if (over := self.size - tokens) <= 0 and self.bytes <= bytes_:
                return done
            entry = ring.younger
            if entry is ring:
                return done
            if self.bytes > bytes_:
                self._cut(entry, -(-(self.bytes - int(bytes_)) // KEY_BYTES))
            elif entry.users:
                if passed == MOST_PASSED:  # it has more under way than it is said to hold
                    return done
                self.touch(entry)
                passed += 1
            elif over < entry.extra:
                self.add(entry, -over)
            else:
                self._cut(entry, entry.node.blocks(entry.held, over - entry.extra))
        return most

    def _cut(self, entry: Entry, blocks: int) -> None:
        """Forget the last blocks of an entry, and what follows them."""
        if blocks >= entry.held:
            self.drop(entry)
        else:
            self.add(entry, -entry.extra)
            self.hold(entry, entry.held - blocks)

    def take(self, entry: Entry, blocks: int) -> int:
        """Forget up to so many of the entry's last blocks; return how many are left to forget."""
        left = max(0, blocks - entry.held)
        self._cut(entry, blocks)
        return left

    def hear(self, *, told: bool) -> None:
        """It tells how much of a prompt was cached; what it holds in all was `told`, or was not."""
        if not (self.reports or told):
            self.scale = BEHIND
        self.reports, self.told = True, told

    def lost(self, stamp: int, capacity: float | None) -> None:
        """What was used last at `stamp` is not there any more: nor is anything older."""
        ring, least = self.first, self.size * (1.0 - MOST_LOST)
        entry = ring.younger
        while entry is not ring and entry.stamp <= stamp and self.size > least:
            gone, entry = entry, entry.younger
            if not gone.users:
                self.drop(gone)
        if capacity:
            self.scale = max(LEAST, self.scale * LOWER, min(self.scale, self.size / capacity))

    def more(self) -> None:
        """It holds what was believed forgotten: it can hold more than believed."""
        self.scale = min(MOST, self.scale * RISE)

    def right(self) -> None:
        """It holds just what was believed: what was told, and was wrong before, may be right."""
        if self.told:
            self.scale += RETURN * (1.0 - self.scale)
