"""The interface of a KV block store that all workers share (L2), and an in-process one.

Every worker finds what any of them wrote. The least recently used block is evicted first, and no
event announces that, as with external stores.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Store(Protocol[K_contra]):
    """The interface of a store. Keys are chained: a key identifies its block and all before it."""

    def held(self, keys: Sequence[K_contra]) -> int:
        """Return how many of `keys` are stored, from the first without a gap, and touch those."""

    def write(self, keys: Sequence[K_contra]) -> list[bool]:
        """Store these blocks; return for each whether it is new here."""

    def close(self) -> None:
        """Release the store's resources. Blocks stay."""


class Lru(Generic[K]):
    """An LRU set of at most `room` keys."""

    __slots__ = ("_held", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        self._held: OrderedDict[K, None] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def touch(self, key: K) -> bool:
        """Mark a key as just used; return whether it is here."""
        if key not in self._held:
            return False
        self._held.move_to_end(key)
        return True

    def keep(self, key: K) -> K | None:
        """Add a new key; return the key evicted for it, or `key` itself if `room` is 0."""
        if not self.room:
            return key
        self._held[key] = None
        return self._held.popitem(last=False)[0] if len(self._held) > self.room else None

    def clear(self) -> None:
        """Drop all keys."""
        self._held.clear()


class SharedStore(Generic[K]):
    """A store in this process, with room for `blocks` blocks."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError("a store needs room for at least one block")
        self._lru: Lru[K] = Lru(blocks)

    def __len__(self) -> int:
        return len(self._lru)

    def peek(self, keys: Sequence[K]) -> int:
        """Like `held`, but without touching any block."""
        found = 0
        for key in keys:
            if key not in self._lru:
                break
            found += 1
        return found

    def held(self, keys: Sequence[K]) -> int:
        """See `Store.held`."""
        found = self.peek(keys)
        for key in reversed(keys[:found]):  # so that leaves are evicted before their parents
            self._lru.touch(key)
        return found

    def write(self, keys: Sequence[K]) -> list[bool]:
        """See `Store.write`."""
        new = []
        for key in keys:
            new.append(not self._lru.touch(key))
            if new[-1]:
                self._lru.keep(key)
        return new

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
