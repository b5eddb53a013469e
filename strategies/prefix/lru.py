"""A model of one worker's cache: what it was sent, in the order in which it will evict it.

When a request ends, engines free its blocks starting with the last one, and evict what was freed
longest ago (vLLM `v1/core/block_pool.py`, `free_blocks`). So a path is touched from its leaf up to
the root: a child is never younger than its parent, and the oldest entry is always a leaf.

Since eviction follows the order of use, a worker that has lost a prefix has also lost everything
used before it.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from strategies.constants import MAX_LOST_SHARE

UNBOUNDED = float("inf")
#: Bytes of an entry with its share of a node (measured: 700), and of one key.
ENTRY_BYTES, KEY_BYTES = 760, 8
#: One `shrink` gives up once so many entries in use were passed over.
MAX_PASSED_OVER = 8


class CacheEntry:
    """The part of one node's run of blocks that one worker holds."""

    __slots__ = ("born", "extra", "held", "node", "older", "stamp", "users", "younger")

    def __init__(self, node: "Node", born: int) -> None:
        self.node = node
        self.born = born
        """The shadow's clock when it was created: earlier placements do not count in `users`."""
        self.held = 0
        """Number of blocks, from the start of the run."""
        self.extra = 0.0
        """Tokens cached after the last block: a prompt's partial last block, an answer."""
        self.users = 0
        """Running requests on the worker with this prefix."""
        self.stamp = 0
        """The shadow's clock when it was last used."""
        self.older: CacheEntry = self
        self.younger: CacheEntry = self


class Node:
    """A node of the prefix tree: a run of blocks up to where prompts diverge.

    A worker that holds any of it holds everything before it as well.
    """

    __slots__ = ("at", "children", "ends", "entries", "keys", "mask", "parent", "unit", "users")

    def __init__(
        self, parent: "Node | None", keys: "array[int]", at: int, ends: Sequence[int], unit: float
    ) -> None:
        self.parent = parent
        self.keys = keys
        self.at = at
        """Number of blocks before it."""
        self.ends = ends
        self.unit = unit
        """Tokens per unit of `ends`."""
        self.children: dict[int, Node] = {}
        """Child nodes by their first key."""
        self.entries: dict[int, CacheEntry] = {}
        """What each worker holds of it, by the worker's bit."""
        self.mask = 0
        """The bits of all workers in `entries`."""
        self.users = 0
        """Requests with these blocks that run on any worker or are held in the router; at the root,
        all of them."""

    def tokens(self, first: int, last: int) -> float:
        """Return tokens in its blocks from `first` up to `last`; negative if `last` is smaller."""
        return (self.ends[self.at + last] - self.ends[self.at + first]) * self.unit

    def kept(self, held: int, tokens: float) -> int:
        """Return how many of its first `held` blocks are left if at least one, and `tokens`, go."""
        ends, at = self.ends, self.at
        target = ends[at + held] - tokens / self.unit
        kept = bisect_left(ends, target, at, at + held)
        while kept > at and ends[kept] > target:
            kept -= 1
        return min(held - 1, kept - at)

    def leave(self) -> None:
        """Remove it from its parent if no worker holds it any more."""
        if self.parent is not None and not self.mask:
            self.parent.children.pop(self.keys[0], None)


def count(node: Node, requests: int) -> None:
    """Add to the number of requests with the blocks of `node` and of all before it."""
    at: Node | None = node
    while at is not None:
        at.users += requests
        at = at.parent


class Shadow:
    """One worker's entries in the order of their last use."""

    def __init__(self, worker: str, bit: int) -> None:
        self.worker = worker
        self.bit = bit
        self.leaving = False
        """The worker has been forgotten, but some of its entries still have to be dropped."""
        self.limit = 0.0
        """Tokens it holds at most where only the size of its GPU is known: no more than that until
        it has reported cached tokens, then what was left when it had lost something."""
        self.bytes = 0
        self.blocks = 0
        self.size = 0.0
        """Tokens held."""
        self.shared = 0.0
        """Tokens that running requests have in common, counted once for each request after the
        first: what a sum over requests counts too much."""
        self.clock = 0
        """Number of placements and ends of requests so far."""
        self.lost_at = -1
        """What was last used by then turned out to be gone and is to be dropped; -1: nothing is."""
        self.least = 0.0
        """As many tokens stay even so."""
        self.first = CacheEntry(None, 0)  # type: ignore[arg-type]  # a ring: `younger` is the oldest

    def touch(self, entry: CacheEntry, next_: CacheEntry | None = None) -> None:
        """Make an entry the youngest, or the next older than `next_`: it was used just now."""
        older, younger, next_ = entry.older, entry.younger, next_ or self.first
        older.younger, younger.older = younger, older
        last = next_.older
        entry.older, entry.younger = last, next_
        last.younger = next_.older = entry
        entry.stamp = self.clock

    def enter(self, node: Node) -> CacheEntry:
        """Create an empty entry, which the caller has to touch."""
        entry = node.entries[self.bit] = CacheEntry(node, self.clock)
        node.mask |= self.bit
        self.bytes += ENTRY_BYTES
        return entry

    def split(self, lower: CacheEntry, node: Node, held: int) -> CacheEntry:
        """Create the entry for the upper part of a split run, used when the lower one was."""
        upper = self.enter(node)
        self.touch(upper, lower.younger)
        upper.born, upper.stamp = lower.born, lower.stamp
        upper.held, upper.users = held, lower.users
        return upper

    def __iter__(self) -> Iterator[CacheEntry]:
        """Iterate over all entries, oldest first."""
        entry = self.first.younger
        while entry is not self.first:
            yield entry
            entry = entry.younger

    def hold(self, entry: CacheEntry, held: int) -> None:
        """Set how many blocks of its run an entry holds."""
        change = entry.node.tokens(entry.held, held)
        self.size += change
        self.bytes += KEY_BYTES * (held - entry.held)
        self.blocks += held - entry.held
        if entry.users > 1:
            self.shared += (entry.users - 1) * change
        entry.held = held

    def use(self, entry: CacheEntry, more: int) -> None:
        """Count one running request more, or one less, that uses an entry."""
        if entry.users + max(0, more) > 1:
            self.shared += more * entry.node.tokens(0, entry.held)
        entry.users += more

    def add(self, entry: CacheEntry, tokens: float) -> None:
        """Add `tokens` to what is cached after the entry's last block."""
        entry.extra += tokens
        self.size += tokens

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry, and its node if it was the last entry there."""
        self.add(entry, -entry.extra)
        self.hold(entry, 0)
        entry.older.younger, entry.younger.older = entry.younger, entry.older
        self.bytes -= ENTRY_BYTES
        node = entry.node
        del node.entries[self.bit]
        node.mask &= ~self.bit
        node.leave()
        if self.first.younger is self.first:
            self.size = self.shared = 0.0  # no drift from adding and taking away floats

    def shrink(self, bytes_: float, tokens: float = UNBOUNDED, *, most: int) -> int:
        """Forget the oldest entries until both bounds hold; return how many entries that took.

        At most `most` are looked at. Those that running requests use are passed over, as the worker
        cannot evict them, except when memory (`bytes_`) is short.
        """
        ring, passed = self.first, 0
        for done in range(most):
            if (over := self.size - tokens) <= 0 and self.bytes <= bytes_:
                return done
            entry = ring.younger
            if entry is ring:
                return done
            if self.bytes > bytes_:
                self.keep(entry, entry.held - -(-(self.bytes - int(bytes_)) // KEY_BYTES))
            elif entry.users:
                if passed >= MAX_PASSED_OVER or entry.stamp == self.clock:
                    return done  # running requests take more than its stated capacity
                passed += self._pass(entry)
            elif over < entry.extra:
                self.add(entry, -over)
            else:
                self.keep(entry, entry.node.kept(entry.held, over - entry.extra))
        return most

    def _pass(self, entry: CacheEntry) -> int:
        """Put an entry in use among the youngest, with all before it; return how many that moved.

        Alone it would become younger than its parent, which would then be cut first.
        """
        node, path = entry.node, list[CacheEntry]()
        while node.parent is not None and (used := node.entries[self.bit]).stamp != self.clock:
            path.append(used)
            node = node.parent
        next_ = node.entries.get(self.bit)
        for used in reversed(path):
            self.touch(used, next_)
            next_ = used
        return len(path)

    def keep(self, entry: CacheEntry, blocks: int) -> None:
        """Forget all but the first `blocks` of an entry's blocks, and what is cached after them."""
        if blocks <= 0:
            self.drop(entry)
        elif blocks < entry.held:
            self.add(entry, -entry.extra)
            self.hold(entry, blocks)

    def lost(self, stamp: int) -> None:
        """Note that a prefix last used at `stamp` is gone.

        At most `MAX_LOST_SHARE` of all tokens go.
        """
        self.least = self.size * (1.0 - MAX_LOST_SHARE)
        self.lost_at = max(self.lost_at, stamp)

    def drop_lost(self, most: int) -> int:
        """Forget what was last used as early as what is gone; return how many entries that took.

        At most `most` are looked at. Entries in use stay. What is left is all that it holds.
        """
        ring, done = self.first, 0
        while self.lost_at >= 0 and done < most:
            entry = ring.younger
            if entry is ring or entry.stamp > self.lost_at or self.size <= self.least:
                self.lost_at, self.limit = -1, self.size
            elif entry.users:
                done += self._pass(entry)
            else:
                self.drop(entry)
                done += 1
        return min(done, most)
