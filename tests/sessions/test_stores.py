"""What every store guarantees, in memory and in Redis."""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pydantic import SecretStr

from router.sessions import redis as redis_store
from router.sessions.redis import RedisStore
from router.sessions.scripted import CONNECTIONS
from router.sessions.scripts import CLEARED
from router.sessions.store import MemoryStore, Store, StoreDown
from router.sessions.table import Binding, Lease, Session
from router.settings_session import RedisSettings
from tests.sessions.redis_server import RedisServer

Make = Callable[[Lease], Store]
Play = Callable[[Callable[[Make], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["memory", "redis"])
def play(request: pytest.FixtureRequest) -> Play:
    """Run a test in an event loop; it gets a function that makes stores with shared sessions."""

    def run(test: Callable[[Make], Coroutine[Any, Any, None]]) -> None:
        made: list[Store] = []
        name = uuid.uuid4().hex

        def make(lease: Lease) -> Store:
            if request.param == "redis":
                redis: RedisServer = request.getfixturevalue("redis")
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


def test_a_session_s_life(play: Play) -> None:
    """A session is bound, used, moved and closed."""

    async def test(make: Make) -> None:
        store = make(Lease(ttl=100))
        assert await store.use("a") is None
        before = time.time()
        session, done = await store.bind("a", Binding("w"), None)
        assert session is not None
        assert (session.worker, session.own, done) == ("w", "", True)
        assert abs(session.expires - before - 100) < 5
        moved, done = await store.bind("a", Binding("v", own="x"), "w")
        assert moved is not None
        assert (moved.worker, moved.own, moved.expires) == ("v", "x", session.expires)
        assert done
        used = await store.use("a")
        assert used is not None
        assert (used.worker, used.own) == ("v", "x")
        assert await store.close("a") is not None
        assert await store.close("a") is None
        assert await store.use("a") is None

    play(test)


def test_finding_is_no_use(play: Play) -> None:
    """A session can be looked up without being used: its times stay as they are."""

    def times(session: Session | None) -> tuple[float, float]:
        assert session is not None
        return session.used, session.expires

    async def test(make: Make) -> None:
        store = make(Lease(ttl=100, sliding=True))
        assert await store.find("a") is None
        bound = times((await store.bind("a", Binding("w"), None)).session)
        await asyncio.sleep(0.01)
        assert times(await store.find("a")) == bound
        used = times(await store.use("a"))
        assert used > bound
        assert times(await store.find("a")) == used
        await store.close("a")
        assert await store.find("a") is None

    play(test)


def test_wrong_expectations(play: Play) -> None:
    """A call with a wrong expectation changes nothing, and returns the actual state."""

    async def test(make: Make) -> None:
        store = make(Lease())
        assert await store.bind("a", Binding("v"), "w") == (None, False)
        await store.bind("a", Binding("w"), None)
        for expected in (None, "u"):
            told, done = await store.bind("a", Binding("v"), expected)
            assert told is not None
            assert (told.worker, done) == ("w", False)

    play(test)


def test_of_many_at_once_one_binds(play: Play) -> None:
    """Several routers bind one session at once: one succeeds, and all get the same result."""

    async def test(make: Make) -> None:
        stores = [make(Lease()) for _ in range(3)]
        for number in range(20):
            tries = [stores[n % 3].bind(f"s{number}", Binding(f"w{n}"), None) for n in range(12)]
            told = await asyncio.gather(*tries)
            assert sum(one.done for one in told) == 1
            [home] = {one.session.worker for one in told if one.session}
            moves = [stores[n % 3].bind(f"s{number}", Binding(f"v{n}"), home) for n in range(12)]
            told = await asyncio.gather(*moves)
            assert sum(one.done for one in told) == 1
            assert len({one.session.worker for one in told if one.session}) == 1

    play(test)


def test_expiry(play: Play) -> None:
    """Expiry is strict: an expired session is not found, and its id is free."""

    async def test(make: Make) -> None:
        store = make(Lease(ttl=0.2))
        await store.bind("a", Binding("w"), None)
        await asyncio.sleep(0.25)
        assert await store.use("a") is None
        again, _ = await store.bind("a", Binding("v"), None)
        assert again is not None
        assert again.worker == "v"

    play(test)


@pytest.mark.parametrize("sliding", [False, True])
def test_sliding(play: Play, sliding: bool) -> None:
    """Each use of a sliding session, and of no other, restarts `ttl`, but only up to `longest`."""

    async def test(make: Make) -> None:
        for key, longest in (("a", 2000.0), ("b", 1000.1)):
            store = make(Lease(ttl=1000, sliding=sliding, longest=longest))
            await store.bind(key, Binding("w"), None)
            await asyncio.sleep(0.2)
            used = await store.use(key)
            assert used is not None
            assert used.used >= used.created + 0.19
            end = min(used.used + 1000, used.created + longest) if sliding else used.created + 1000
            assert used.expires == pytest.approx(end, rel=0, abs=0.01)

    play(test)


def test_an_end_that_a_worker_has_given(play: Play) -> None:
    """An end that a worker has set is kept, even if sessions slide, but not beyond `longest`."""

    async def test(make: Make) -> None:
        store = make(Lease(ttl=100, sliding=True, longest=1000))
        ends = float(int(time.time()) + 7)
        its = Binding("w", own="o", expires=ends, fixed=True)
        session, _ = await store.bind("a", its, None)
        assert session is not None
        assert (session.expires, session.own) == (ends, "o")
        await store.bind("a", Binding("v", own="p"), "w")
        for _ in range(2):
            used = await store.use("a")
            assert used is not None
            assert (used.expires, used.fixed) == (ends, True)
        [(_, listed)] = await store.listed(9)
        assert (listed.expires, listed.fixed) == (ends, True)
        late = Binding("w", expires=ends + 9999, fixed=True)
        capped, _ = await store.bind("b", late, None)
        assert capped is not None
        assert abs(capped.expires - capped.created - 1000) < 0.01

    play(test)


def test_counts_and_room(play: Play) -> None:
    """If there are too many, the least recently used session is evicted."""

    async def test(make: Make) -> None:
        store = make(Lease(ttl=100, most=3))
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


def test_expired_ones_make_room_and_are_counted(play: Play) -> None:
    """Expired sessions make room first, so no live one is evicted."""

    async def test(make: Make) -> None:
        store = make(Lease(ttl=0.1, most=2))
        await store.bind("a", Binding("w"), None)
        await store.bind("b", Binding("w"), None)
        await asyncio.sleep(0.15)
        store.lease = Lease(ttl=100, most=2)
        for key in "cd":
            await store.bind(key, Binding("w"), None)
        kept = await store.look()
        assert (kept.open, kept.expired, kept.evicted) == (2, 2, 0)

    play(test)


def test_much_less_room_is_made_by_and_by(redis: RedisServer) -> None:
    """Evicting thousands takes several calls, so that Redis can answer others in between."""

    async def test() -> None:
        settings = RedisSettings(url=redis.url, timeout="5s")
        store = RedisStore(settings, uuid.uuid4().hex, Lease())
        for number in range(2 * CLEARED + 50):
            await store.bind(str(number), Binding("w"), None)
        store.lease = Lease(most=10)
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
        store = RedisStore(RedisSettings(url=redis.url, timeout="5s"), uuid.uuid4().hex, Lease())
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


def test_a_store_that_is_not_there(dead_url: str) -> None:
    """Every call raises StoreDown, with the reason."""

    async def test() -> None:
        url = dead_url.replace("http", "redis")
        store = RedisStore(RedisSettings(url=url, timeout="1s"), "p", Lease())
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
        store = RedisStore(settings, uuid.uuid4().hex, Lease())
        with pytest.raises(StoreDown) as down:
            await store.use("a")
        await store.stop()
        return str(down.value)

    with redis.hanging():
        assert asyncio.run(ask()) == f"no Redis answers in time at {redis.url}"
    refused = f"the Redis at {redis.url} does not take the password of session.redis.password"
    assert asyncio.run(ask(username="nobody", password=SecretStr("wrong"))) == refused


def test_what_others_use_is_not_one_s_own(play: Play) -> None:
    """A session can be moved or closed by the one that began it, unless it was used since."""

    async def test(make: Make) -> None:
        store = make(Lease())
        for key, others in (("a", False), ("b", True)):
            first, _ = await store.bind(key, Binding("w"), None)
            assert first is not None
            begun = first.used
            if others:  # looked for it, or tried to bind it
                await store.bind(key, Binding("u"), None)
            moved, done = await store.bind(key, Binding("v", used=begun), "w")
            assert moved is not None
            assert (moved.worker, done) == (("w", False) if others else ("v", True))
            ended = await store.close(key, begun=moved.created)
            assert (ended is None) == others
            assert (await store.use(key) is not None) == others

    play(test)


def test_another_session_of_the_same_id_is_not_one_s_own(play: Play) -> None:
    """After a close, another session with the same id is not closed by the first one's owner."""

    async def test(make: Make) -> None:
        store = make(Lease())
        first, _ = await store.bind("a", Binding("w"), None)
        assert first is not None
        assert await store.close("a") is not None
        await asyncio.sleep(0.01)  # so that the time differs
        await store.bind("a", Binding("w"), None)
        assert await store.close("a", begun=first.created) is None
        second = await store.use("a")
        assert second is not None
        assert second.created > first.created

    play(test)


def test_a_move_is_taken_back_unless_others_have_used_it(play: Play) -> None:
    """A router that moved a session can move it back, unless it was used in between."""

    async def test(make: Make) -> None:
        store = make(Lease())
        for key, others in (("a", False), ("b", True)):
            await store.bind(key, Binding("w"), None)
            mine = await store.use(key)
            assert mine is not None
            moved, _ = await store.bind(key, Binding("v"), "w")
            assert moved is not None
            last = moved.used
            assert last == mine.used
            if others:
                await asyncio.sleep(0.01)
                await store.use(key)
            back, done = await store.bind(key, Binding("w", used=last), "v")
            assert back is not None
            assert (back.worker, done) == (("v", False) if others else ("w", True))

    play(test)


def test_kept_connections_that_redis_has_closed(redis: RedisServer) -> None:
    """Lost connections and scripts are replaced unnoticed, and connections stay few."""
    import redis as client  # noqa: PLC0415

    async def test(direct: Any) -> None:
        store = RedisStore(RedisSettings(url=redis.url, timeout="5s"), uuid.uuid4().hex, Lease())
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
    """Connections were silently dropped on the way: one failed call replaces all of them."""
    lost: list[asyncio.StreamWriter] = []
    there: list[asyncio.StreamWriter] = []
    served: list[asyncio.Task[Any] | None] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if writer not in lost:
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection("127.0.0.1", redis.port)
        there.extend((writer, on))
        served.append(asyncio.current_task())
        ways = pass_on(reader, on), pass_on(back, writer)
        await asyncio.gather(*ways, return_exceptions=True)

    async def test() -> None:
        way = await asyncio.start_server(accept, "127.0.0.1", 0)
        url = f"redis://127.0.0.1:{way.sockets[0].getsockname()[1]}"
        store = RedisStore(RedisSettings(url=url, timeout="2s"), uuid.uuid4().hex, Lease())
        await asyncio.gather(*(store.use("a") for _ in range(20)))
        lost.extend(there)
        with pytest.raises(StoreDown):
            await store.use("a")
        assert await store.use("a") is None
        await store.stop()
        way.close()
        for one in there:
            one.close()
        await asyncio.gather(*(task for task in served if task))

    asyncio.run(test())


def test_who_leaves_in_the_middle_leaves_no_answer_to_others(redis: RedisServer) -> None:
    """The answer to a cancelled call is not taken for the answer to the next call."""

    async def test() -> None:
        store = RedisStore(RedisSettings(url=redis.url, timeout="5s"), uuid.uuid4().hex, Lease())
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
