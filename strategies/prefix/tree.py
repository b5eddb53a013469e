"""A bounded prefix tree of which prompts were sent to which worker.

Each node is a run of blocks within which no two prompts diverge. A chained key identifies the whole
path from the root, so two prompts with the same key at the end of a run agree in all of it: one
comparison per run, whatever its length. A prompt is a few runs, one per turn of its conversation,
so lookup and insertion cost next to nothing. Each worker's order of use is kept in its `Shadow`.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from sys import maxsize
from typing import NamedTuple

from strategies.prefix.lru import UNBOUNDED, Node, Shadow, count

#: Ends of blocks of one unit each.
BLOCKS = range(1 << 32)
#: Most entries dropped along with one placement (each takes 2 us). A placement adds one or two, so
#: a tree that is too large shrinks, and no request waits while a worker that left is forgotten.
MAX_DROPPED = 64
#: An answer counts as at most this many tokens, however many are reported.
MAX_ANSWER_TOKENS = 32_768


class WantedCopies(NamedTuple):
    """The start of a prompt of which one more copy is wanted on the workers."""

    blocks: int = 0
    """How many of the prompt's first blocks are wanted."""
    tokens: float = 0.0
    """Their tokens, each weighted by how much of a copy is missing (at most one)."""


NOT_WANTED = WantedCopies()


class Match:
    """One prompt's path in the tree: who holds it, who uses it, how much of it is wanted.

    Valid until the tree changes.
    """

    __slots__ = ("_at", "_by_bit", "_path", "_shadows")

    def __init__(
        self,
        path: Sequence[Node],
        at: int,
        shadows: Mapping[str, Shadow],
        by_bit: Mapping[int, Shadow],
    ) -> None:
        """Take the root and the nodes with the prompt's first `at` blocks, all that are known."""
        self._path = path
        self._at = at
        self._shadows = shadows
        self._by_bit = by_bit

    def held(self) -> dict[str, int]:
        """Return, for each worker that holds any, how many of the first blocks it holds."""
        depths: dict[str, int] = {}
        below = 0
        for node in reversed(self._path):
            mask = node.mask & ~below
            while mask:
                bit = mask & -mask
                mask ^= bit
                shadow = self._by_bit[bit]
                if not shadow.leaving:
                    depths[shadow.worker] = min(node.at + node.entries[bit].held, self._at)
            below = node.mask
        return depths

    def in_use(self, worker: str) -> float:
        """Return how many of the prompt's tokens running requests on `worker` already use."""
        shadow, tokens = self._shadows.get(worker), 0.0
        if shadow is None:
            return tokens
        for node in self._path[1:]:
            entry = node.entries.get(shadow.bit)
            if entry is None or not entry.users:
                break
            tokens += node.tokens(0, min(entry.held, self._at - node.at))
        return tokens

    def wanted(self, workers: int) -> WantedCopies:
        """Return the start of the prompt of which another copy is wanted, among `workers` workers.

        A prefix should lie on as large a share of the workers as it has of the running requests.
        The first request with the prefix does not count, as a single request shares nothing.
        """
        blocks, tokens, under_way = 0, 0.0, self._path[0].users
        for node in self._path[1:]:
            others = node.users - 1
            lacking = others * workers / under_way - node.mask.bit_count() if others > 0 else 0.0
            if lacking <= 0.0:
                break
            blocks = min(node.at + len(node.keys), self._at)
            tokens += min(1.0, lacking) * node.tokens(0, blocks - node.at)
        return WantedCopies(blocks, tokens)


class Placement:
    """What one `insert` did. Pass it to `close` or `leave` once; `take_back` may follow."""

    __slots__ = ("leaf", "new", "number", "shadow", "stamp")

    def __init__(self, leaf: Node, shadow: Shadow) -> None:
        self.leaf = leaf
        self.shadow = shadow
        self.number = shadow.clock
        """The worker's clock at this placement."""
        self.new = 0
        """Number of blocks, at the end of the prompt, that the worker did not hold before."""
        self.stamp = -1
        """Time of last use of the deepest node it already held; -1 if it held none."""


class PrefixTree:
    """Which worker was sent which prefix, in `limit_bytes` that workers share equally."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.root = Node(None, array("Q"), 0, BLOCKS, 1.0)
        """The empty node that all prompts start from."""
        self._shadows: dict[str, Shadow] = {}
        self._by_bit: dict[int, Shadow] = {}
        """The shadow of each worker by its bit, including workers that are being forgotten."""
        self._untidy: dict[Shadow, None] = {}
        """Shadows that may be over their share of memory, or have lost what they were sent."""

    def insert(
        self,
        keys: Sequence[int],
        worker: str,
        capacity: float | None = None,
        ends: Sequence[int] = BLOCKS,
        unit: float = 1.0,
        *,
        tail: float = 0.0,
        gpu_only: bool = False,
    ) -> Placement:
        """Record that `worker` was sent the prompt with these chained keys.

        `capacity` is how many tokens the worker's cache holds, if known; more are forgotten. With
        `gpu_only` it is that of its GPU, behind which there may be more. `unit` is tokens per unit
        of `ends`, and `tail` is the number of tokens after the last full block.
        """
        shadow = self._shadows.get(worker) or self.join(worker)
        shadow.clock += 1
        leaf = node = self._path(keys, ends, unit)
        placement = Placement(leaf, shadow)
        bit, touch = shadow.bit, shadow.touch
        while node.parent is not None:
            node.users += 1
            entry = node.entries.get(bit)
            length = len(node.keys)
            if entry is None:
                entry = shadow.enter(node)
            elif placement.stamp < 0:
                placement.stamp = entry.stamp
            if entry.held < length:
                placement.new += length - entry.held
                shadow.hold(entry, length)
            shadow.use(entry, 1)
            touch(entry)
            if tail:  # the first node of this loop is the leaf
                shadow.add(entry, max(0.0, tail - entry.extra))
                tail = 0.0
            node = node.parent
        node.users += 1
        tokens = UNBOUNDED if capacity is None else capacity
        if gpu_only:
            tokens = max(tokens, shadow.limit)
        share = self._share()
        if shadow.size > tokens or shadow.bytes > share:
            shadow.shrink(share, tokens, most=MAX_DROPPED)
        if self._untidy:
            self._tidy()
        return placement

    def match(self, keys: Sequence[int]) -> Match:
        """Return what is known of a prompt with these keys; valid until the tree changes."""
        return Match(*self._along(keys), self._shadows, self._by_bit)

    def wait(self, keys: Sequence[int]) -> Callable[[], None]:
        """Count a request that is held in the router, until the returned function is called."""
        node = self._along(keys)[0][-1]
        count(node, 1)
        return partial(count, node, -1)

    def held(self, keys: Sequence[int]) -> dict[str, int]:
        """Return, for each worker that holds any, how many of the first blocks it holds."""
        return self.match(keys).held()

    def shared(self, worker: str) -> float:
        """Return the worker's `Shadow.shared`: tokens that its running requests have in common."""
        shadow = self._shadows.get(worker)
        return shadow.shared if shadow is not None else 0.0

    def close(self, placement: Placement, answer: float = 0.0) -> None:
        """End a request: its blocks, and `answer` tokens, become evictable, as the youngest."""
        shadow = placement.shadow
        count(placement.leaf, -1)
        if not self._knows(shadow):
            return
        shadow.clock += 1
        answer = min(answer, MAX_ANSWER_TOKENS)
        bit, node = shadow.bit, placement.leaf
        while node.parent is not None:
            entry = node.entries.get(bit)
            if entry is not None:
                if entry.born <= placement.number:  # not forgotten since, and placed again
                    shadow.use(entry, -1)
                shadow.touch(entry)
                if answer:
                    shadow.add(entry, answer)
                    answer = 0.0
            node = node.parent

    def leave(self, placement: Placement) -> None:
        """End a request like `close`, and drop its blocks that no running request there uses."""
        self.close(placement)
        shadow, node = placement.shadow, placement.leaf
        if not self._knows(shadow):
            return
        while (parent := node.parent) is not None:
            entry = node.entries.get(shadow.bit)
            if entry is not None and not entry.users:
                shadow.drop(entry)
            node = parent

    def take_back(self, placement: Placement) -> None:
        """Drop the blocks that the placement added: the worker did not accept the prompt.

        Call it after `close`. If anything was placed or ended there since, they are left to age:
        others may have computed them.
        """
        if placement.shadow.clock == placement.number + 1:
            self.keep(placement, 0)

    def keep(self, placement: Placement, blocks: int) -> None:
        """Drop what the placement added beyond its first `blocks`: the worker has not computed it.

        Call it after `close`. What other placements there use, or have added to, stays.
        """
        shadow, node = placement.shadow, placement.leaf
        if not self._knows(shadow):
            return
        first = max(blocks, node.at + len(node.keys) - placement.new)
        while (parent := node.parent) is not None and first < node.at + len(node.keys):
            entry = node.entries.get(shadow.bit)
            if entry is not None:
                if entry.users or any(child.mask & shadow.bit for child in node.children.values()):
                    return
                shadow.keep(entry, first - node.at)
            node = parent

    def correct(self, placement: Placement, *, fewer: bool) -> None:
        """Learn that the worker reported its cached tokens, `fewer` than predicted or not."""
        shadow = placement.shadow
        if not self._knows(shadow):
            return
        shadow.limit = shadow.limit or UNBOUNDED
        if fewer and placement.stamp >= 0:
            shadow.lost(placement.stamp)
            self._untidy[shadow] = None
            self._tidy()

    def forget(self, worker: str) -> None:
        """Drop everything `worker` held; much memory is freed bit by bit, with later placements."""
        shadow = self._shadows.pop(worker, None)
        if shadow is not None:
            shadow.leaving = True
            shadow.lost_at = -1
            self._untidy[shadow] = None
            self._tidy()

    def _knows(self, shadow: Shadow) -> bool:
        """Return true if the worker has not been forgotten since."""
        return self._shadows.get(shadow.worker) is shadow

    def _along(self, keys: Sequence[int]) -> tuple[list[Node], int]:
        """Return the root and nodes with any of `keys`; and how many of these are in the tree."""
        path, node, at, count = [self.root], self.root, 0, len(keys)
        while at < count:
            child = node.children.get(keys[at])
            if child is None:
                break
            path.append(child)
            run = child.keys
            end = at + len(run)
            if end > count or keys[end - 1] != run[-1]:
                at += _common(run, keys, at)
                break
            node, at = child, end
        return path, at

    def _path(self, keys: Sequence[int], ends: Sequence[int], unit: float) -> Node:
        """Return the node that ends where `keys` end, splitting and adding runs as needed."""
        path, at = self._along(keys)
        node = path[-1]
        if at < node.at + len(node.keys):
            node = self._part(node, at - node.at)
        if at < len(keys):
            parent, node = node, Node(node, array("Q", keys[at:]), at, ends, unit)
            parent.children[keys[at]] = node
        return node

    def _part(self, lower: Node, length: int) -> Node:
        """Split a run; return the upper part, `length` blocks long.

        The lower part stays the same object, because placements refer to it.
        """
        parent, keys = lower.parent, lower.keys
        upper = Node(parent, keys[:length], lower.at, lower.ends, lower.unit)
        assert parent is not None  # noqa: S101  # the root is never parted
        parent.children[keys[0]] = upper
        upper.children[keys[length]] = lower
        lower.parent, lower.keys, lower.at = upper, keys[length:], lower.at + length
        upper.mask, upper.users = lower.mask, lower.users
        for bit, entry in list(lower.entries.items()):
            shadow = self._by_bit[bit]
            if entry.held <= length:
                entry.node = upper
                upper.entries[bit] = lower.entries.pop(bit)
                lower.mask &= ~bit
            else:
                entry.held -= length
                upper.entries[bit] = shadow.split(entry, upper, length)
                self._untidy[shadow] = None  # one more entry for the same blocks
        lower.leave()
        return upper

    def join(self, worker: str) -> Shadow:
        """Create the shadow of a worker that has none."""
        taken = sum(self._by_bit)
        self._untidy.update(dict.fromkeys(self._shadows.values()))  # their share becomes smaller
        bit = ~taken & (taken + 1)  # the lowest that is free
        shadow = self._shadows[worker] = Shadow(worker, bit)
        self._by_bit[bit] = shadow
        return shadow

    def _tidy(self) -> None:
        """Shrink shadows that are too large, or have lost something, by at most `MAX_DROPPED`."""
        share, left = self._share(), MAX_DROPPED
        while left and self._untidy:
            shadow = next(iter(self._untidy))
            left -= shadow.drop_lost(left)
            left -= shadow.shrink(-1.0 if shadow.leaving else share, most=left)
            if left:
                del self._untidy[shadow]
                if shadow.leaving:
                    del self._by_bit[shadow.bit]

    def shadows(self) -> Iterable[Shadow]:
        """Return every worker's shadow."""
        return self._shadows.values()

    def shrink(self) -> None:
        """Shrink every shadow to its share of memory, at once."""
        for shadow in self._shadows.values():
            shadow.shrink(self._share(), most=maxsize)

    def clear(self) -> None:
        """Forget everything."""
        for known in (self._shadows, self._by_bit, self._untidy, self.root.children):
            known.clear()

    def _share(self) -> float:
        return self._limit / max(1, len(self._shadows))

    def __len__(self) -> int:
        """Return the number of blocks in the tree, counted once for each holder."""
        return sum(shadow.blocks for shadow in self._by_bit.values())

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        return sum(shadow.bytes for shadow in self._by_bit.values())


def _common(run: "array[int]", keys: Sequence[int], at: int) -> int:
    """Return how many keys of a run match `keys` from `at` on; the first is known to match."""
    low, high = 1, min(len(run), len(keys) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if run[middle - 1] == keys[at + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
