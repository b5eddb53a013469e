"""The block cache of the engine that runs whole traces (`strides.py`)."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice


class StrideCache:
    """A block cache by key: at most `room` blocks in use, `capacity` in all, LRU eviction.

    Keys in use have a reference count; the others are kept in order of last use. Blocks are
    released last block first, so leaves are evicted before their parents and every cached path is
    complete from the root. Blocks without a key yet (`nameless`) are only counted.
    """

    def __init__(self, room: int, capacity: int) -> None:
        if not 0 < room <= capacity:
            raise ValueError(f"room must be from 1 to the capacity of {capacity}, not {room}")
        self.room = room
        self.capacity = capacity
        self.nameless = 0
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks in use; a block shared by several requests counts once."""
        return len(self._users) + self.nameless

    def held(self, keys: Sequence[int], limit: int | None = None) -> int:
        """Return how many of `keys`, from the first without a gap, are cached."""
        users, idle = self._users, self._idle
        low, high = 0, len(keys) if limit is None else min(limit, len(keys))
        while low < high:  # cached paths are complete from the root, so binary search works
            middle = (low + high + 1) // 2
            key = keys[middle - 1]
            if key in users or key in idle:
                low = middle
            else:
                high = middle - 1
        return low

    def admit(self, keys: Sequence[int], blocks: int) -> bool:
        """Reference the cached `keys`, take `blocks - len(keys)` new blocks; False if no room."""
        users, idle = self._users, self._idle
        fresh = blocks - len(keys)
        free = self.room - self.used - fresh
        if free < 0 or (free < len(keys) and sum(key not in users for key in keys) > free):
            return False
        self._use(keys)
        self.nameless += fresh
        for _ in range(self.used + len(idle) - self.capacity):
            idle.popitem(last=False)
        return True

    def leaving(self, blocks: int) -> list[int]:
        """Return the keys that would be evicted to make room for so many new blocks."""
        over = self.used + len(self._idle) + blocks - self.capacity
        return list(islice(self._idle, max(0, over)))

    def name(self, keys: Sequence[int]) -> None:
        """Register computed blocks, taken as nameless by `admit`, under their keys."""
        self._use(keys)
        self.nameless -= len(keys)

    def _use(self, keys: Sequence[int]) -> None:
        users, idle = self._users, self._idle
        for key in keys:
            count = users.get(key)
            if count is None:
                idle.pop(key, None)
                users[key] = 1
            else:
                users[key] = count + 1

    def release(self, keys: Sequence[int], nameless: int) -> None:
        """Drop a request's references; blocks with a key stay cached until evicted."""
        users, idle = self._users, self._idle
        self.nameless -= nameless
        for key in reversed(keys):
            count = users[key] - 1
            if count:
                users[key] = count
            else:
                del users[key]
                idle[key] = None
