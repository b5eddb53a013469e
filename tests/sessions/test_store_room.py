"""A store keeps so many sessions: which go to make room, and how many at a time."""

import asyncio
import time
import uuid
from typing import Any

import pytest

from router.sessions import redis as redis_store
from router.sessions.lua import CLEARED
from router.sessions.redis import RedisStore
from router.sessions.table import Binding, SessionLease
from router.settings.sessions import RedisSettings
from tests.sessions.playing import Make, Play
from tests.sessions.redis_server import RedisServer


def test_counts_and_room(play: Play) -> None:
    """If there are too many, the least recently used session is evicted."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100, most=3))
        for key in "abc":
            await store.bind(key, Binding("w"), None)
            await asyncio.sleep(0.002)
        await store.use("a")
        await store.bind("d", Binding("w"), None)
        assert await store.use("b") is None
        kept = await store.look()
        assert (kept.open, kept.evicted) == (3, 1)
        assert {key for key, _ in await store.listed(10)} == {"a", "c", "d"}
        assert len(await store.listed(2)) == 2
        await store.close("a")
        assert (await store.look()).open == 2

    play(test)


def test_who_has_most_makes_room(play: Play) -> None:
    """Whoever opens most loses the session that was unused for longest; others lose none."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100, most=6))

        async def opens(owner: str, *keys: str) -> None:
            for key in keys:
                await store.bind(key, Binding("w", owner=owner), None)
                await asyncio.sleep(0.002)

        async def there() -> set[str]:
            return {key for key, _ in await store.listed(10)}

        await opens("ann", "a1", "a2")
        await opens("bob", *"bcdefghi")
        assert await there() == {"a1", "a2", *"fghi"}
        await store.use("f")
        await opens("bob", "j")
        assert await there() == {"a1", "a2", *"hifj"}
        await opens("ann", "a3", "a4")  # the second is more than half
        assert await there() == {"a2", "a3", "a4", *"ifj"}
        await store.close("a3")
        await opens("", "x", "y")  # without a key
        assert await there() == {"a2", "a4", *"fjxy"}
        assert (await store.look()).evicted == 8

    play(test)


def test_one_alone_may_have_all(play: Play) -> None:
    """As long as nobody else has any; those that have ended do not count."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=0.2, most=3))
        await store.bind("a", Binding("w", owner="ann"), None)
        await store.bind("b", Binding("w", owner="ann"), None)
        await store.bind("c", Binding("w", owner="bob"), None)
        await asyncio.sleep(0.25)
        store.lease = SessionLease(ttl=100, most=3)
        for key in "defg":
            await store.bind(key, Binding("w", owner="bob"), None)
        assert {key for key, _ in await store.listed(10)} == set("efg")
        await store.bind("h", Binding("w", owner="ann"), None)
        assert {key for key, _ in await store.listed(10)} == set("fgh")
        assert (await store.look()).evicted == 2

    play(test)


def test_expired_ones_make_room_and_are_counted(play: Play) -> None:
    """Expired sessions make room first, so no live one is evicted."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=0.1, most=2))
        await store.bind("a", Binding("w"), None)
        await store.bind("b", Binding("w"), None)
        await asyncio.sleep(0.15)
        store.lease = SessionLease(ttl=100, most=2)
        for key in "cd":
            await store.bind(key, Binding("w"), None)
        kept = await store.look()
        assert (kept.open, kept.expired, kept.evicted) == (2, 2, 0)

    play(test)


def test_much_less_room_is_made_by_and_by(redis: RedisServer) -> None:
    """Evicting thousands takes several calls, so that Redis can answer others in between."""

    async def test() -> None:
        settings = RedisSettings(url=redis.url, timeout="5s")
        store = RedisStore(settings, uuid.uuid4().hex, SessionLease())
        for number in range(2 * CLEARED + 50):
            await store.bind(str(number), Binding("w"), None)
        store.lease = SessionLease(most=10)
        left = []
        for key in "abcd":
            await store.bind(key, Binding("w"), None)
            left.append((await store.look()).open)
        assert left == [CLEARED + 51, 52, 10, 10]
        assert await store.use("d") is not None
        await store.stop()

    asyncio.run(test())


def test_many_that_have_expired_are_cleared_away_by_and_by(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expired sessions are cleared in several calls before the open ones are listed completely."""
    monkeypatch.setattr(redis_store, "SWEPT", 20)

    async def test() -> None:
        store = RedisStore(
            RedisSettings(url=redis.url, timeout="5s"), uuid.uuid4().hex, SessionLease()
        )
        end = time.time() + 3
        for number in range(50):
            await store.bind(str(number), Binding("w", expires=end), None)
        await store.bind("open", Binding("w"), None)
        await asyncio.sleep(end - time.time() + 0.05)
        steps, run = list[str](), store._redis.run

        async def counted(script: str, *more: Any) -> Any:
            steps.append(script)
            return await run(script, *more)

        monkeypatch.setattr(store._redis, "run", counted)
        assert [key for key, _ in await store.listed(10)] == ["open"]
        assert len(steps) == 3
        assert (await store.look()).expired == 50
        await store.stop()

    asyncio.run(test())
