"""A Redis that is not there or says nothing, and connections to it that are lost."""

import asyncio
import uuid
from typing import Any

import pytest
from pydantic import SecretStr

from router.sessions.redis import CONNECTIONS, RedisStore
from router.sessions.store import StoreDown
from router.sessions.table import Binding, SessionLease
from router.settings.sessions import RedisSettings
from tests.sessions.redis_server import RedisServer


def store_of(redis: RedisServer) -> RedisStore:
    """A store of a pool that no other test uses."""
    settings = RedisSettings(url=redis.url, timeout="5s")
    return RedisStore(settings, uuid.uuid4().hex, SessionLease())


def test_a_store_that_is_not_there(dead_url: str) -> None:
    """Every call raises StoreDown, with the reason."""

    async def test() -> None:
        url = dead_url.replace("http", "redis")
        store = RedisStore(RedisSettings(url=url, timeout="1s"), "p", SessionLease())
        for asked in (
            store.use("a"),
            store.bind("a", Binding("w"), None),
            store.close("a"),
            store.look(),
        ):
            with pytest.raises(StoreDown, match=f"no Redis answers at {url}: Connection refused"):
                await asked
        await store.stop()

    asyncio.run(test())


def test_a_store_that_says_nothing(redis: RedisServer) -> None:
    """The error names the Redis and, for a wrong password, the setting."""

    async def ask(**more: Any) -> str:
        settings = RedisSettings(url=redis.url, timeout="1s", **more)
        store = RedisStore(settings, uuid.uuid4().hex, SessionLease())
        with pytest.raises(StoreDown) as down:
            await store.use("a")
        await store.stop()
        return str(down.value)

    with redis.hanging():
        assert asyncio.run(ask()) == f"no Redis answers in time at {redis.url}"
    refused = f"the Redis at {redis.url} does not take the password of session.redis.password"
    assert asyncio.run(ask(username="nobody", password=SecretStr("wrong"))) == refused


def test_kept_connections_that_redis_has_closed(redis: RedisServer) -> None:
    """Lost connections and scripts are replaced unnoticed, and connections stay few."""
    import redis as client  # noqa: PLC0415

    async def test(direct: Any) -> None:
        store = store_of(redis)
        await store.bind("a", Binding("w"), None)
        for trouble in (("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"), ("SCRIPT", "FLUSH")):
            found = await asyncio.gather(*(store.use("a") for _ in range(100)))
            assert {one.worker for one in found if one} == {"w"}
            direct.execute_command(*trouble)
        assert await store.use("a") is not None
        assert direct.info("clients")["connected_clients"] <= 2 + CONNECTIONS
        await store.stop()

    with client.Redis.from_url(redis.url) as direct:
        asyncio.run(test(direct))


def test_connections_that_lead_nowhere_any_more(redis: RedisServer) -> None:
    """They were silently dropped on the way: one failed call replaces all of them."""
    opened: list[asyncio.StreamWriter] = []
    dropped: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if writer not in dropped:
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection("127.0.0.1", redis.port)
        opened.extend((writer, on))
        await asyncio.gather(pass_on(reader, on), pass_on(back, writer), return_exceptions=True)

    async def test() -> None:
        between = await asyncio.start_server(accept, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{between.sockets[0].getsockname()[1]}"
        store = RedisStore(RedisSettings(url=url, timeout="2s"), uuid.uuid4().hex, SessionLease())
        await asyncio.gather(*(store.use("a") for _ in range(20)))
        dropped.extend(opened)
        assert len(dropped) > 4
        with pytest.raises(StoreDown):
            await store.use("a")
        assert await store.use("a") is None
        await store.stop()
        between.close()
        for one in opened:
            one.close()
        await between.wait_closed()

    asyncio.run(test())


def test_who_leaves_in_the_middle_leaves_no_answer_to_others(redis: RedisServer) -> None:
    """The answer to a cancelled call is not taken for the answer to the next call."""

    async def test() -> None:
        store = store_of(redis)
        for key in "ab":
            await store.bind(key, Binding(f"w-{key}"), None)
        for turns in range(12):
            asked = asyncio.create_task(store.use("a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            found = await store.use("b")
            assert found is not None
            assert found.worker == "w-b"
        await store.stop()

    asyncio.run(test())
