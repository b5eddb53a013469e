"""Sessions in Redis, shared by several routers.

Every step is one script (`lua.py`), so it is atomic: if several routers try at once, one
succeeds.

Run scripts in Redis over kept connections, at the lowest cost per call.

redis-py creates the connections and speaks the protocol. Its client and pool are not used: the
metrics and checks they run after every command add half as much time again.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from hashlib import sha1
from typing import TYPE_CHECKING

from router.sessions.lua import APART, BESIDE, MAX_CLEARED, MAX_SWEPT, SCRIPTS
from router.sessions.store import PERHAPS, Kept, StoreDown
from router.sessions.table import Binding, Bound, OpenSession, SessionLease

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from router.settings.sessions import RedisSettings

#: Most connections to Redis; a caller that finds all of them busy waits for one.
CONNECTIONS = 32

Word = str | float
#: What the scripts return.
Said = str | list[str]


class Scripted:
    """One Redis server. Raises what redis-py raises: RedisError, OSError."""

    def __init__(self, settings: "RedisSettings") -> None:
        """Set up the connections; the first is opened by the first call."""
        from redis import asyncio as client  # noqa: PLC0415 - an extra
        from redis import exceptions  # noqa: PLC0415
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        password = settings.password
        self._make: Callable[[], AbstractConnection] = client.ConnectionPool.from_url(
            settings.url,
            username=settings.username,
            password=password.get_secret_value() if password else None,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),  # a second try would double the wait of every request
        ).make_connection
        self.errors = (exceptions.RedisError, OSError)
        self._gone = (exceptions.ConnectionError, OSError)
        self._unknown = exceptions.NoScriptError
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._free: list[AbstractConnection] = []

    async def run(self, script: str, keys: list[str], arguments: list[Word]) -> Said:
        """Run a script and return its result."""
        named = [_digest(script), len(keys), *keys, *arguments]
        async with self._room:
            kept = self._free.pop() if self._free else None
            try:
                return await self._on(kept or self._make(), script, named)
            except self._gone:
                if kept is None:
                    raise
            # Redis has closed this idle connection, and most likely all the others too.
            await self.close()
            return await self._on(self._make(), script, named)

    async def _on(self, connection: "AbstractConnection", script: str, named: list[Word]) -> Said:
        try:
            try:
                reply = await _ask(connection, "EVALSHA", *named)
            except self._unknown:
                await _ask(connection, "SCRIPT", "LOAD", script)
                reply = await _ask(connection, "EVALSHA", *named)
        except BaseException:
            await connection.disconnect(nowait=True)  # the answer may still arrive
            raise
        self._free.append(connection)
        return reply

    async def close(self) -> None:
        """Close all idle connections."""
        free, self._free = self._free, []
        for connection in free:
            await connection.disconnect(nowait=True)


async def _ask(connection: "AbstractConnection", *command: Word) -> Said:
    await connection.send_command(*command)
    reply: Said = await connection.read_response()
    return reply


@cache
def _digest(script: str) -> str:
    """Return the digest by which Redis knows a script."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


#: Longer than any session lasts, in seconds; stands for infinity.
_FOREVER = 1e9


class RedisStore:
    """The sessions of one pool in Redis. Raises StoreDown if Redis does not answer in time."""

    def __init__(self, settings: "RedisSettings", pool: str, lease: SessionLease) -> None:
        """Set up the client; it connects at the first request."""
        self.lease = lease
        self._redis = Scripted(settings)
        self._errors = (*self._redis.errors, TimeoutError)
        self._stem = f"warmroute:{{{pool}}}:"  # the braces: one cluster slot for all of its keys
        self._beside = [self._stem + name for name in BESIDE]
        self._patience = settings.timeout
        self._url, self._has_password = settings.url, settings.password is not None
        self._era = ""

    def ahead(self) -> float:
        """See `Store`. Nothing: clients are told the times of Redis's clock."""
        return 0.0

    async def use(self, key: str) -> OpenSession | None:
        """See `Store`."""
        return _found(await self._do("use", key))

    async def find(self, key: str) -> OpenSession | None:
        """See `Store`."""
        return _found(await self._do("find", key))

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """See `Store`."""
        end = "" if to.expires is None else repr(to.expires)
        used = "" if to.used is None else repr(to.used)
        noted = (to.own, to.call, end, int(to.fixed), to.owner)
        more = (to.worker, expected or "", used, MAX_CLEARED, *noted)
        done, *fields = await self._do("bind", key, *more)
        return Bound(_found(fields), done=done == "1")

    async def close(self, key: str, *, begun: float | None = None) -> OpenSession | None:
        """See `Store`."""
        return _found(await self._do("close", key, "" if begun is None else repr(begun)))

    async def doubt(self, seconds: float) -> None:
        """See `Store`."""
        await self._do("doubt", "", seconds)

    async def listed(self, most: int) -> list[tuple[str, OpenSession]]:
        """See `Store`."""
        left, *rows = await self._do("list", "", most, MAX_SWEPT)
        while left != "0":  # clear away expired sessions in steps, so that no script runs long
            left, *rows = await self._do("list", "", most, MAX_SWEPT)
        return [(key, _session(fields)) for key, *fields in (row.split(APART) for row in rows)]

    async def look(self) -> Kept:
        """See `Store`."""
        return Kept(*map(int, await self._do("look", "", MAX_SWEPT)))

    async def stop(self) -> None:
        """Close all connections."""
        await self._redis.close()

    async def _do(self, what: str, key: str, *more: str | float) -> list[str]:
        lease = self.lease
        longest = min(lease.longest, _FOREVER)
        rules = (lease.ttl, int(lease.sliding), longest, lease.most)
        keys = [f"{self._stem}s:{key}", *self._beside]
        arguments: list[Word] = [key, *rules, self._era, *more]
        try:
            async with asyncio.timeout(self._patience):  # includes waiting for a connection
                reply = await self._redis.run(SCRIPTS[what], keys, arguments)
        except self._errors as error:
            # Something in between, such as a firewall, may have silently dropped the other
            # connections too.
            await self._redis.close()
            raise StoreDown(self._down(error)) from None
        words: list[str] = reply.split(APART) if isinstance(reply, str) else reply
        self._era = words[0]
        return words[1:]

    def _down(self, error: Exception) -> str:
        from router.runtime.redis import sentence  # noqa: PLC0415 - imports redis, an extra

        return sentence(self._url, error, "session.redis.password", password=self._has_password)


def _found(fields: list[str]) -> OpenSession | None:
    if not fields:
        return None
    return PERHAPS if fields == [""] else _session(fields)


def _session(fields: list[str]) -> OpenSession:
    worker, created, expires, used, own, call, fixed = fields
    times = float(created), float(expires), float(used)
    return OpenSession(worker, *times, own, call, fixed == "1")
