"""Tests of stores play in an event loop, with as many stores as they make."""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from router.sessions.redis import RedisStore
from router.sessions.store import MemoryStore, Store
from router.sessions.table import SessionLease
from router.settings.sessions import RedisSettings
from tests.sessions.redis_server import RedisServer

Make = Callable[[SessionLease], Store]
Play = Callable[[Callable[[Make], Coroutine[Any, Any, None]]], None]


def playing(redis: RedisServer | None) -> Play:
    """Return what runs a test in an event loop, with stores in that Redis or else in memory.

    The test gets a function that makes stores with shared sessions.
    """

    def run(test: Callable[[Make], Coroutine[Any, Any, None]]) -> None:
        made: list[Store] = []
        name = uuid.uuid4().hex

        def make(lease: SessionLease) -> Store:
            if redis:
                store: Store = RedisStore(RedisSettings(url=redis.url, timeout="5s"), name, lease)
            else:
                store = made[0] if made else MemoryStore(lease, time.time)
                store.lease = lease
            made.append(store)
            return store

        async def all_of_it() -> None:
            try:
                await test(make)
            finally:
                for store in made:
                    await store.stop()

        asyncio.run(all_of_it())

    return run
