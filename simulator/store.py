"""A place for KV blocks that all workers of a cluster share (L2), and the simplest one.

Whoever writes, everyone finds. What was used longest ago goes first, and nobody is told, as with
stores of their own.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Store(Protocol[K_contra]):
    """The seam. Keys are chained: one names its block and all before it."""

    def held(self, keys: Sequence[K_contra]) -> int:
        """How many of these are there, from the first on without a gap; they are used now."""

    def write(self, keys: Sequence[K_contra]) -> list[bool]:
        """Keep these blocks; say of each whether it is new here."""

    def close(self) -> None:
        """Let go of what it needs. Blocks stay."""


class Lru(Generic[K]):
    """Keys, of which those used last stay: `room` of them."""

    __slots__ = ("_held", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        self._held: OrderedDict[K, None] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def touch(self, key: K) -> bool:
        """It is used now, if it is here; return whether it is."""
        if key not in self._held:
            return False
        self._held.move_to_end(key)
        return True

    def keep(self, key: K) -> K | None:
        """Put in a new one; return the one that went for it, which is itself without room."""
        if not self.room:
            return key
        self._held[key] = None
        return self._held.popitem(last=False)[0] if len(self._held) > self.room else None

    def clear(self) -> None:
        """Drop all."""
        self._held.clear()


class SharedStore(Generic[K]):
    """In this process: for `blocks` blocks."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError("a store needs room for at least one block")
        self._lru: Lru[K] = Lru(blocks)

    def __len__(self) -> int:
        return len(self._lru)

    def peek(self, keys: Sequence[K]) -> int:
        """As `held`, and nothing is used by it."""
        found = 0
        for key in keys:
            if key not in self._lru:
                break
            found += 1
        return found

    def held(self, keys: Sequence[K]) -> int:
        """As the seam has it."""
        found = self.peek(keys)
        for key in reversed(keys[:found]):  # leaves go before what they hang on
            self._lru.touch(key)
        return found

    def write(self, keys: Sequence[K]) -> list[bool]:
        """As the seam has it."""
        new = []
        for key in keys:
            new.append(not self._lru.touch(key))
            if new[-1]:
                self._lru.keep(key)
        return new

    def close(self) -> None:
        """Nothing to let go of."""
