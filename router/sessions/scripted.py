"""Run scripts in Redis over kept connections, at the lowest cost per call.

redis-py creates the connections and speaks the protocol. Its client and pool are not used: the
metrics and checks they run after every command add half as much time again.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from hashlib import sha1
from typing import TYPE_CHECKING

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
                said = await _ask(connection, "EVALSHA", *named)
            except self._unknown:
                await _ask(connection, "SCRIPT", "LOAD", script)
                said = await _ask(connection, "EVALSHA", *named)
        except BaseException:
            await connection.disconnect(nowait=True)  # the answer may still arrive
            raise
        self._free.append(connection)
        return said

    async def close(self) -> None:
        """Close all idle connections."""
        free, self._free = self._free, []
        for connection in free:
            await connection.disconnect(nowait=True)


async def _ask(connection: "AbstractConnection", *command: Word) -> Said:
    await connection.send_command(*command)
    said: Said = await connection.read_response()
    return said


@cache
def _digest(script: str) -> str:
    """Return the digest by which Redis knows a script."""
    return sha1(script.encode(), usedforsecurity=False).hexdigest()
