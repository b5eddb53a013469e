"""Stored blocks whose parent is not known yet. They are kept for a while, as it may still come.

Offload tiers announce a prompt's blocks in any order, and a router that starts late has missed the
first blocks.
"""

import sys
from collections import Counter, OrderedDict

from controller.index.block_events import BlockStored, Tier

#: Bytes per orphan, and per block of it in addition to the tokens, for its name in several places.
#: Measured, with room to grow.
ORPHAN_BYTES, BLOCK_BYTES = 600, 270
#: Reason for dropping blocks that waited.
DROPPED = "orphans dropped for room"


class Orphan:
    """One waiting event, and which of its blocks have been removed meanwhile."""

    __slots__ = ("bytes", "event", "gone", "waits")

    def __init__(self, event: BlockStored) -> None:
        self.event = event
        self.gone: list[int] = []
        self.waits = True
        self.bytes = ORPHAN_BYTES + len(event.tokens) + BLOCK_BYTES * len(event.hashes)
        """Estimated size in memory."""
        self.bytes += len(event.adapter) + _size(event.extras)


class OrphanBudget:
    """The memory that the orphans of all engines share, and the order in which they came."""

    def __init__(self, limit_bytes: int, counts: Counter[str]) -> None:
        """Count dropped blocks in `counts`."""
        self.limit = limit_bytes
        self.bytes = 0
        self.order: OrderedDict[tuple[Orphans, int], None] = OrderedDict()
        """The engine's orphans and the parent's name, oldest first."""
        self.counts = counts


class Orphans:
    """The orphans of one engine. If all engines' together get too large, the oldest are dropped."""

    def __init__(self, budget: OrphanBudget) -> None:
        self._budget = budget
        self._waiting: dict[int, list[Orphan]] = {}
        """Orphans by the name of their parent."""
        self._named: dict[tuple[Tier, bool, int], list[Orphan]] = {}

    def __len__(self) -> int:
        """Return the number of parents that orphans wait for."""
        return len(self._waiting)

    def keep(self, event: BlockStored) -> None:
        """Keep an event whose parent is unknown."""
        assert event.parent is not None  # noqa: S101 - otherwise it is no orphan
        orphan, budget = Orphan(event), self._budget
        if orphan.bytes > budget.limit:
            budget.counts[DROPPED] += len(event.hashes)
            return
        self._waiting.setdefault(event.parent, []).append(orphan)
        for name in event.hashes:
            self._named.setdefault((event.tier, event.shared, name), []).append(orphan)
        budget.order.setdefault((self, event.parent))
        budget.bytes += orphan.bytes
        while budget.bytes > budget.limit:
            whose, parent = next(iter(budget.order))
            for orphan in whose.of(parent):
                budget.counts[DROPPED] += len(orphan.event.hashes)

    def of(self, parent: int) -> list[Orphan]:
        """Take out and return those that waited for a block with that name."""
        orphans = self._waiting.pop(parent, None)
        if orphans is None:
            return []
        del self._budget.order[self, parent]
        self._drop_names(orphans)
        return orphans

    def forget(self) -> None:
        """Drop all orphans: the engine is gone."""
        for parent in self._waiting:
            del self._budget.order[self, parent]
        leaving = [orphan for waiting in self._waiting.values() for orphan in waiting]
        self._waiting.clear()
        self._drop_names(leaving)

    def remove(self, tier: Tier, shared: bool, name: int) -> bool:
        """Note that a block was removed; return whether it is one that waits here."""
        orphans = self._named.get((tier, shared, name))
        if not orphans:
            return False
        if len(orphans[0].gone) < len(orphans[0].event.hashes):  # bounds repeated removals
            orphans[0].gone.append(name)
        orphans.append(orphans.pop(0))  # a second removal is for the second copy
        return True

    def clear(self, tier: Tier) -> None:
        """Drop the orphans of one tier, which was cleared."""
        leaving: list[Orphan] = []
        for parent, waiting in list(self._waiting.items()):
            staying: list[Orphan] = []
            for orphan in waiting:
                leaves = orphan.event.tier is tier and not orphan.event.shared
                (leaving if leaves else staying).append(orphan)
            if staying:
                self._waiting[parent] = staying
            else:
                del self._waiting[parent], self._budget.order[self, parent]
        self._drop_names(leaving)

    def _drop_names(self, orphans: list[Orphan]) -> None:
        """Forget the names of orphans: of all at once, as many of them may have the same name."""
        places: set[tuple[Tier, bool, int]] = set()
        for orphan in orphans:
            orphan.waits = False
            self._budget.bytes -= orphan.bytes
            event = orphan.event
            places.update((event.tier, event.shared, name) for name in event.hashes)
        for where in places:
            staying = [orphan for orphan in self._named[where] if orphan.waits]
            if staying:
                self._named[where] = staying
            else:
                del self._named[where]


def _size(extras: object) -> int:
    """Return the size of decoded data in bytes; not recursive, as it may be nested deeply."""
    size, todo = 0, [extras]
    while todo:
        part = todo.pop()
        size += sys.getsizeof(part)
        if isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            todo += [*part, *part.values()]
    return size
