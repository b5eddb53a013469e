"""Stored blocks whose parent is not known yet: kept for a while, for it may still come.

Offload tiers announce a prompt's blocks in any order, and who joins late has missed beginnings.
"""

import sys
from collections import Counter, OrderedDict

from controller.events import Stored, Tier

#: Bytes of an orphan, and of each of its blocks beside the tokens: its names here and there.
#: Measured, with room to grow.
ORPHAN_BYTES, BLOCK_BYTES = 600, 270
#: Why blocks that waited were given up.
DROPPED = "orphans dropped for room"


class Orphan:
    """One event that waits, and which of its blocks have been removed meanwhile."""

    __slots__ = ("bytes", "event", "gone")

    def __init__(self, event: Stored) -> None:
        self.event = event
        self.gone: list[int] = []
        self.bytes = ORPHAN_BYTES + len(event.tokens) + BLOCK_BYTES * len(event.hashes)
        """Estimated size in memory."""
        self.bytes += len(event.adapter) + _size(event.extras)


class Room:
    """What the orphans of all engines take together, and in which order they came."""

    def __init__(self, limit_bytes: int, counts: Counter[str]) -> None:
        """`counts` is told of blocks that are given up."""
        self.limit = limit_bytes
        self.bytes = 0
        self.order: OrderedDict[tuple[Orphans, int], None] = OrderedDict()
        """Whose, and the parent's name; the oldest first."""
        self.counts = counts


class Orphans:
    """The orphans of one engine; when there is no room for all engines', the oldest go first."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._waiting: dict[int, list[Orphan]] = {}
        """By the name of the parent."""
        self._named: dict[tuple[Tier, bool, int], list[Orphan]] = {}

    def __len__(self) -> int:
        """Parents that are waited for."""
        return len(self._waiting)

    def keep(self, event: Stored) -> None:
        """Keep an event whose parent is unknown."""
        assert event.parent is not None  # noqa: S101 - else it is no orphan
        orphan, room = Orphan(event), self._room
        if orphan.bytes > room.limit:
            room.counts[DROPPED] += len(event.hashes)
            return
        self._waiting.setdefault(event.parent, []).append(orphan)
        for name in event.hashes:
            self._named.setdefault((event.tier, event.shared, name), []).append(orphan)
        room.order.setdefault((self, event.parent))
        room.bytes += orphan.bytes
        while room.bytes > room.limit:
            whose, parent = next(iter(room.order))
            for one in whose.of(parent):
                room.counts[DROPPED] += len(one.event.hashes)

    def of(self, parent: int) -> list[Orphan]:
        """Hand out those that waited for a block of that name."""
        found = self._waiting.pop(parent, None)
        if found is None:
            return []
        del self._room.order[self, parent]
        for orphan in found:
            self._let_go(orphan)
        return found

    def forget(self) -> None:
        """Drop all of them: the engine is gone."""
        for parent in list(self._waiting):
            self.of(parent)

    def remove(self, tier: Tier, shared: bool, name: int) -> bool:
        """A block was removed before its parent was known; return whether it waits here."""
        orphans = self._named.get((tier, shared, name))
        if not orphans:
            return False
        if len(orphans[0].gone) < len(orphans[0].event.hashes):  # else it says so again and again
            orphans[0].gone.append(name)
        orphans.append(orphans.pop(0))  # a second removal is of the second copy
        return True

    def clear(self, tier: Tier) -> None:
        """Drop those of one tier, which was cleared."""
        for parent, waiting in list(self._waiting.items()):
            staying = [one for one in waiting if one.event.tier is not tier or one.event.shared]
            for orphan in waiting:
                if orphan not in staying:
                    self._let_go(orphan)
            if staying:
                self._waiting[parent] = staying
            else:
                del self._waiting[parent], self._room.order[self, parent]

    def _let_go(self, orphan: Orphan) -> None:
        event = orphan.event
        self._room.bytes -= orphan.bytes
        for name in event.hashes:
            where = (event.tier, event.shared, name)
            others = self._named.get(where)
            if others is not None and orphan in others:
                others.remove(orphan)
                if not others:
                    del self._named[where]


def _size(extras: object) -> int:
    """Bytes of what was decoded, with all that is in it; however deep, for it comes by wire."""
    size, todo = 0, [extras]
    while todo:
        one = todo.pop()
        size += sys.getsizeof(one)
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            todo += [*one, *one.values()]
    return size
