"""A store in a real Redis, with real keys and real LRU order but small values in place of blocks.

Calls block, with a deadline: a simulated step waits for Redis as a worker's step would. While
Redis is down, nothing is found and nothing is stored, as in engines (LMCache
`v1/storage_backend`); it is tried again a second later. The store evicts by last use itself, so
that its capacity is a number of blocks; a Redis in production has `maxmemory` and a policy.
"""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

log = logging.getLogger("simulator")

#: Timeout of a call in seconds, and seconds between two tries while Redis is down.
DEADLINE_S = 0.5
PAUSE_S = 1.0
#: Most keys in one call.
BATCH = 512
#: The value stored in place of a block.
VALUE = b"kv"

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


class RedisStore:
    """Up to `blocks` blocks, with keys `<stem><64 hex>`, shared by all who use the same stem."""

    def __init__(self, url: str, blocks: int, stem: str = "simulator:kv:") -> None:
        """Create a store; ValueError if the URL is not valid. Connects when first used."""
        import redis  # noqa: PLC0415 - an optional dependency

        if blocks < 1:
            raise ValueError("a store needs room for at least one block")
        self._redis = redis.Redis.from_url(
            url, socket_timeout=DEADLINE_S, socket_connect_timeout=DEADLINE_S
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
        """See `Store.held`."""
        found = 0
        for start in range(0, len(keys), BATCH):
            names = [key.hex() for key in keys[start : start + BATCH]]
            here = self._ask(self._held, [self._stem, *names], 0)
            found += here
            if here < len(names):
                break
        return found

    def write(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store.write`."""
        new: list[bool] = []
        for start in range(0, len(keys), BATCH):
            names = [key.hex() for key in keys[start : start + BATCH]]
            said = self._ask(self._write, [self._stem, self._room, VALUE, *names], [0] * len(names))
            new += map(bool, said)
        return new

    def close(self) -> None:
        """See `Store.close`."""
        self._redis.close()

    def _ask(self, script: Callable[..., Any], arguments: list[Any], otherwise: Any) -> Any:  # noqa: ANN401 - the script decides
        if monotonic() < self._away_until:
            return otherwise
        try:
            return script(keys=[self._used], args=arguments)
        except self._errors as error:
            self.failures += 1
            self._away_until = monotonic() + PAUSE_S
            log.warning("the store is away: %s", error)
            return otherwise
