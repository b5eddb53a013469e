"""Sessions in Redis, for several routers together.

Every step is one script, so that of several routers one decides. Redis keeps the time (its own,
the same for all) and ends sessions itself; two sorted sets beside them, by last use and by end, say
how many there are and who makes room.
"""

from typing import TYPE_CHECKING, Any

from router.sessions.store import Kept, StoreDown
from router.sessions.table import Lease, Session

if TYPE_CHECKING:
    from router.settings_session import RedisSettings

#: Connections to Redis; whoever finds all of them busy waits for one.
CONNECTIONS = 32
#: Expired ids that one new session clears out of the sorted sets.
CLEARED = 100

_BEGIN = """
local at = redis.call('TIME')
local now = tonumber(at[1]) + tonumber(at[2]) / 1000000
local key, used, ends, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, ttl, sliding, longest = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local worker, created, expires, own = unpack(
  redis.call('HMGET', key, 'worker', 'created', 'expires', 'own'))
if worker and now >= tonumber(expires) then
  redis.call('DEL', key)
  worker = false
end
local function told()
  return {worker, created, expires, own, string.format('%.6f', now)}
end
local function ending(when)
  expires = string.format('%.3f', when)
  redis.call('HSET', key, 'expires', expires)
  redis.call('PEXPIREAT', key, math.ceil(when * 1000))
  redis.call('ZADD', ends, expires, id)
end
"""
_USE = (
    _BEGIN
    + """
if not worker then return nil end
local moved = math.min(now + ttl, tonumber(created) + longest)
if sliding and moved > tonumber(expires) then ending(moved) end
redis.call('ZADD', used, now, id)
return told()
"""
)
_BIND = (
    _BEGIN
    + """
local to, expected, most, clear = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local stem = string.sub(key, 1, -string.len(id) - 1)
if (worker or '') ~= expected then
  if worker then return told() end
  return nil
end
if worker then
  redis.call('HSET', key, 'worker', to, 'own', ARGV[9])
  worker, own = to, ARGV[9]
  return told()
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, clear)) do
  redis.call('ZREM', ends, gone)
  redis.call('ZREM', used, gone)
  redis.call('HINCRBY', counts, 'expired', 1)
end
while redis.call('ZCARD', ends) >= most do
  local oldest = redis.call('ZRANGE', used, 0, 0)[1] or redis.call('ZRANGE', ends, 0, 0)[1]
  redis.call('DEL', stem .. oldest)
  redis.call('ZREM', ends, oldest)
  redis.call('ZREM', used, oldest)
  redis.call('HINCRBY', counts, 'evicted', 1)
end
worker, own, created = to, ARGV[9], string.format('%.3f', now)
redis.call('HSET', key, 'worker', worker, 'own', own, 'created', created)
if ARGV[10] ~= '' then ending(tonumber(ARGV[10])) else ending(now + math.min(ttl, longest)) end
redis.call('ZADD', used, now, id)
return told()
"""
)
_CLOSE = (
    _BEGIN
    + """
if not worker then return nil end
redis.call('DEL', key)
redis.call('ZREM', ends, id)
redis.call('ZREM', used, id)
return told()
"""
)
_LOOK = (
    _BEGIN
    + """
local function counted(word) return tonumber(redis.call('HGET', counts, word) or '0') end
local over = redis.call('ZCOUNT', ends, '-inf', now)
return {redis.call('ZCARD', ends) - over, counted('expired') + over, counted('evicted')}
"""
)
_LIST = (
    _BEGIN
    + """
local found = {}
for _, one in ipairs(redis.call('ZRANGE', used, 0, tonumber(ARGV[5]) - 1)) do
  local said = redis.call('HMGET', key .. one, 'worker', 'created', 'expires', 'own')
  local last = redis.call('ZSCORE', used, one)
  if said[1] and now < tonumber(said[3]) then
    found[#found + 1] = {one, said[1], said[2], said[3], said[4], last}
  end
end
return found
"""
)
#: More seconds than any session lasts.
_FOREVER = 1e9


class RedisStore:
    """Sessions of one pool. Raises StoreDown when Redis cannot be reached in time."""

    def __init__(self, settings: "RedisSettings", pool: str, lease: Lease) -> None:
        """Connects when it is first asked."""
        from redis import asyncio as client  # noqa: PLC0415 - only for those who want it
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415

        self.lease = lease
        self._errors = (RedisError, OSError, TimeoutError)
        password = settings.password
        pool_of = client.BlockingConnectionPool.from_url(
            settings.url,
            username=settings.username,
            password=password.get_secret_value() if password else None,
            decode_responses=True,
            max_connections=CONNECTIONS,
            timeout=settings.timeout,
            socket_timeout=settings.timeout,
            socket_connect_timeout=settings.timeout,
            retry=Retry(NoBackoff(), 0),  # a second try would double the wait of every request
        )
        self._redis = client.Redis.from_pool(pool_of)
        self._stem = f"warmroute:{{{pool}}}:"  # in braces: one slot of a cluster
        self._beside = [self._stem + name for name in ("used", "ends", "counts")]
        make = self._redis.register_script
        self._scripts = {name: make(text) for name, text in _SCRIPTS.items()}

    async def use(self, key: str) -> Session | None:
        """As the seam has it."""
        return _session(await self._do("use", key))

    async def bind(
        self,
        key: str,
        worker: str,
        expected: str | None,
        *,
        own: str = "",
        expires: float | None = None,
    ) -> Session | None:
        """As the seam has it."""
        end = "" if expires is None else repr(expires)
        more = (worker, expected or "", self.lease.most, CLEARED, own, end)
        return _session(await self._do("bind", key, *more))

    async def close(self, key: str) -> Session | None:
        """As the seam has it."""
        return _session(await self._do("close", key))

    async def listed(self, most: int) -> list[tuple[str, Session]]:
        """As the seam has it."""
        found = await self._do("list", "", most)
        return [
            (key, Session(worker, float(created), float(expires), float(used or 0), own))
            for key, worker, created, expires, own, used in found
        ]

    async def look(self) -> Kept:
        """As the seam has it."""
        return Kept(*await self._do("look", ""))

    async def stop(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _do(self, what: str, key: str, *more: str | float) -> Any:  # noqa: ANN401 - scripts answer as they like
        lease = self.lease
        longest = min(lease.longest, _FOREVER)
        arguments = (key, lease.ttl, int(lease.sliding), longest, *more)
        try:
            return await self._scripts[what](
                keys=[f"{self._stem}s:{key}", *self._beside], args=arguments
            )
        except self._errors as error:
            raise StoreDown(f"{type(error).__name__}: {error}") from None


_SCRIPTS = {"use": _USE, "bind": _BIND, "close": _CLOSE, "look": _LOOK, "list": _LIST}


def _session(told: list[str] | None) -> Session | None:
    if told is None:
        return None
    worker, created, expires, own, now = told
    return Session(worker, float(created), float(expires), float(now), own)
