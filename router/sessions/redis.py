"""Sessions in Redis, for several routers together.

Every step is one script (`scripts.py`), so that of several routers one decides.
"""

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from router.sessions.scripts import BESIDE, CLEARED, SCRIPTS, SWEPT
from router.sessions.store import PERHAPS, Kept, StoreDown
from router.sessions.table import Binding, Bound, Lease, Session

if TYPE_CHECKING:
    from router.settings_session import RedisSettings

#: Connections to Redis; whoever finds all of them busy waits for one.
CONNECTIONS = 32
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
        self._beside = [self._stem + name for name in BESIDE]
        self._patience = settings.timeout
        self._era, self._name, self._asked = "", uuid4().hex, count()
        make = self._redis.register_script
        self._scripts = {name: make(text) for name, text in SCRIPTS.items()}

    async def use(self, key: str) -> Session | None:
        """As the seam has it."""
        return _found(await self._do("use", key))

    async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
        """As the seam has it."""
        end = "" if to.expires is None else repr(to.expires)
        used = "" if to.used is None else repr(to.used)
        noted = (to.own, to.call, end, int(to.fixed))
        more = (to.worker, expected or "", used, CLEARED, *noted)
        done, *told = await self._do("bind", key, *more)
        return Bound(_found(told), done=done == 1)

    async def close(self, key: str, *, begun: float | None = None) -> Session | None:
        """As the seam has it."""
        return _found(await self._do("close", key, "" if begun is None else repr(begun)))

    async def doubt(self, seconds: float) -> None:
        """As the seam has it."""
        await self._do("doubt", "", seconds)

    async def listed(self, most: int) -> list[tuple[str, Session]]:
        """As the seam has it."""
        found = await self._do("list", "", most)
        return [(key, _session(told)) for key, *told in found]

    async def look(self) -> Kept:
        """As the seam has it."""
        return Kept(*await self._do("look", "", SWEPT))

    async def stop(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _do(self, what: str, key: str, *more: str | float) -> list[Any]:
        lease = self.lease
        longest = min(lease.longest, _FOREVER)
        rules = (lease.ttl, int(lease.sliding), longest, lease.most)
        fresh = f"{self._name}-{next(self._asked)}"  # an era is told apart from all before
        arguments = (key, *rules, self._era, fresh, *more)
        try:
            async with asyncio.timeout(self._patience):  # waiting for a connection included
                told: list[Any] = await self._scripts[what](
                    keys=[f"{self._stem}s:{key}", *self._beside], args=arguments
                )
        except self._errors as error:
            raise StoreDown(f"{type(error).__name__}: {error}") from None
        self._era = told[0]
        return told[1:]


def _found(told: list[str]) -> Session | None:
    if not told:
        return None
    return PERHAPS if told == [""] else _session(told)


def _session(told: list[str]) -> Session:
    worker, created, expires, used, own, call, fixed = told
    times = float(created), float(expires), float(used)
    return Session(worker, *times, own, call, fixed == "1")
