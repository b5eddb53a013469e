"""Stored blocks whose parent is not known yet: kept for a while, for it may still come.

Offload tiers announce a prompt's blocks in any order, and who joins late has missed beginnings.
"""

from collections import OrderedDict, deque

from controller.events import Stored, Tier

#: Bytes of an orphaned block beside its tokens: its names here and there.
BLOCK_BYTES = 400


class Orphan:
    """One event that waits, and which of its blocks have been removed meanwhile."""

    __slots__ = ("event", "gone", "kept")

    def __init__(self, event: Stored) -> None:
        self.event = event
        self.gone: list[int] = []
        self.kept = True

    @property
    def bytes(self) -> int:
        """Estimated size in memory."""
        return len(self.event.tokens) + BLOCK_BYTES * len(self.event.hashes)


class Orphans:
    """The orphans of one engine, at most so many bytes of them: the oldest go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: OrderedDict[int, list[Orphan]] = OrderedDict()
        """By the name of the parent."""
        self._named: dict[tuple[Tier, bool, int], deque[Orphan]] = {}
        self.bytes = 0
        self.dropped = 0
        """Blocks given up for room."""

    def __len__(self) -> int:
        """Parents that are waited for."""
        return len(self._waiting)

    def keep(self, event: Stored) -> None:
        """Keep an event whose parent is unknown."""
        assert event.parent is not None  # noqa: S101 - else it is no orphan
        orphan = Orphan(event)
        if orphan.bytes > self._limit:
            self.dropped += len(event.hashes)
            return
        self._waiting.setdefault(event.parent, []).append(orphan)
        for name in event.hashes:
            self._named.setdefault((event.tier, event.shared, name), deque()).append(orphan)
        self.bytes += orphan.bytes
        while self.bytes > self._limit:
            _, oldest = self._waiting.popitem(last=False)
            for one in oldest:
                self.dropped += len(one.event.hashes)
                self._let_go(one)

    def of(self, parent: int) -> list[Orphan]:
        """Hand out those that waited for a block of that name."""
        found = self._waiting.pop(parent, [])
        for orphan in found:
            self._let_go(orphan)
        return found

    def remove(self, tier: Tier, shared: bool, name: int) -> bool:
        """A block was removed before its parent was known; return whether it waits here."""
        orphans = self._named.get((tier, shared, name))
        if not orphans:
            return False
        orphans[0].gone.append(name)
        orphans.rotate(-1)  # a second removal is of the second copy
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
                del self._waiting[parent]

    def _let_go(self, orphan: Orphan) -> None:
        event = orphan.event
        self.bytes -= orphan.bytes
        for name in event.hashes:
            where = (event.tier, event.shared, name)
            others = self._named.get(where)
            if others is not None and orphan in others:
                others.remove(orphan)
                if not others:
                    del self._named[where]
