"""KV block stores that all workers share (L2): one in this process, one in a real Redis.

Every worker finds what any of them wrote. The least recently used block is evicted first, and no
event announces that, as with external stores.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

log = logging.getLogger("simulator")

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class BlockStore(Protocol[K_contra]):
    """The interface of a store. Keys are chained: a key identifies its block and all before it."""

    def held(self, keys: Sequence[K_contra]) -> int:
        """Return how many of `keys` are stored, from the first without a gap, and touch those."""

    def write(self, keys: Sequence[K_contra]) -> list[bool]:
        """Store these blocks; return for each whether it is new here."""

    def close(self) -> None:
        """Release the store's resources. Blocks stay."""


class LruSet(Generic[K]):
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


class MemoryBlockStore(Generic[K]):
    """A store in this process, with room for `blocks` blocks."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError("a store needs room for at least one block")
        self._lru: LruSet[K] = LruSet(blocks)

    def __len__(self) -> int:
        return len(self._lru)

    def peek(self, keys: Sequence[K]) -> int:
        """Return what `held` returns, without touching any block."""
        for index, key in enumerate(keys):
            if key not in self._lru:
                return index
        return len(keys)

    def held(self, keys: Sequence[K]) -> int:
        """See `BlockStore.held`."""
        count = self.peek(keys)
        for key in reversed(keys[:count]):  # so that leaves are evicted before their parents
            self._lru.touch(key)
        return count

    def write(self, keys: Sequence[K]) -> list[bool]:
        """See `BlockStore.write`."""
        new = []
        for key in keys:
            new.append(not self._lru.touch(key))
            if new[-1]:
                self._lru.keep(key)
        return new

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


#: Timeout of a call to Redis, and the time between two tries while it is down.
REDIS_TIMEOUT_S = 0.5
REDIS_RETRY_INTERVAL_S = 1.0
MAX_KEYS_PER_CALL = 512
#: The value stored in place of a block.
BLOCK_VALUE = b"kv"

_HELD = """
local used, stem, found = KEYS[1], ARGV[1], 0
for i = 2, #ARGV do
  if redis.call('EXISTS', stem .. ARGV[i]) == 0 then break end
  found = i - 1
end
local clock = redis.call('INCRBY', used .. ':clock', found)
for i = 1, found do redis.call('ZADD', used, clock - i + 1, ARGV[i + 1]) end
return found
"""
_WRITE = """
local used, stem, room, value = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local new = {}
for i = 4, #ARGV do
  local clock = redis.call('INCR', used .. ':clock')
  new[#new + 1] = redis.call('SET', stem .. ARGV[i], value, 'NX') and 1 or 0
  redis.call('ZADD', used, clock, ARGV[i])
end
while redis.call('ZCARD', used) > room do
  redis.call('DEL', stem .. redis.call('ZPOPMIN', used)[1])
end
return new
"""


class RedisBlockStore:
    """A store in Redis, with real keys and real LRU order but small values in place of blocks.

    Keys are `<stem><64 hex>`; all who use the same stem share them. Calls block, with a timeout: a
    simulated step waits for Redis as a worker's step would. While Redis is down, nothing is found
    and nothing is stored, as in engines (LMCache `v1/storage_backend`). The store evicts by last
    use itself, so that its capacity is a number of blocks; a Redis in production has `maxmemory`
    and a policy.
    """

    def __init__(self, url: str, blocks: int, stem: str = "simulator:kv:") -> None:
        """Create a store; raise ValueError if the URL is not valid. Connects when first used."""
        import redis  # noqa: PLC0415 - an optional dependency

        if blocks < 1:
            raise ValueError("a store needs room for at least one block")
        self._redis = redis.Redis.from_url(
            url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
        )
        self._errors = (redis.RedisError, OSError)
        self._stem, self._used, self._room = stem, stem + "used", blocks
        self._held = self._redis.register_script(_HELD)
        self._write = self._redis.register_script(_WRITE)
        self._away_until = 0.0
        self.failures = 0
        """Calls that Redis did not answer."""

    def check(self) -> None:
        """Raise ConnectionError, with a readable message, unless Redis answers."""
        try:
            self._redis.ping()
        except self._errors as error:
            raise ConnectionError(f"no Redis answers: {error}") from None

    def held(self, keys: Sequence[bytes]) -> int:
        """See `BlockStore.held`."""
        count = 0
        for start in range(0, len(keys), MAX_KEYS_PER_CALL):
            names = [key.hex() for key in keys[start : start + MAX_KEYS_PER_CALL]]
            stored = self._call(self._held, [self._stem, *names], 0)
            count += stored
            if stored < len(names):
                break
        return count

    def write(self, keys: Sequence[bytes]) -> list[bool]:
        """See `BlockStore.write`."""
        new: list[bool] = []
        for start in range(0, len(keys), MAX_KEYS_PER_CALL):
            names = [key.hex() for key in keys[start : start + MAX_KEYS_PER_CALL]]
            arguments = [self._stem, self._room, BLOCK_VALUE, *names]
            new += map(bool, self._call(self._write, arguments, [0] * len(names)))
        return new

    def close(self) -> None:
        """See `BlockStore.close`."""
        self._redis.close()

    def _call(self, script: Callable[..., Any], arguments: list[Any], otherwise: Any) -> Any:  # noqa: ANN401 - the script decides
        if monotonic() < self._away_until:
            return otherwise
        try:
            return script(keys=[self._used], args=arguments)
        except self._errors as error:
            self.failures += 1
            self._away_until = monotonic() + REDIS_RETRY_INTERVAL_S
            log.warning("the store is away: %s", error)
            return otherwise
