"""What every store of sessions guarantees, in memory and in Redis."""

import asyncio
import time
import uuid

import pytest

from router.sessions.lua import MAX_CLEARED
from router.sessions.redis import RedisStore
from router.sessions.store import MemoryStore, steady
from router.sessions.table import MAX_DROPPED, Binding, OpenSession, SessionLease
from router.settings.sessions import RedisSettings
from tests.sessions.playing import Make, Play
from tests.sessions.redis_server import RedisServer


def there(session: OpenSession | None) -> OpenSession:
    """Return a session that must be open."""
    assert session is not None
    return session


def test_a_session_s_life(play: Play) -> None:
    """A session is bound, used, moved and closed; a wrong expectation changes nothing."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100))
        assert await store.use("a") is None
        assert await store.bind("a", Binding("v"), "w") == (None, False)
        session, done = await store.bind("a", Binding("w"), None)
        assert (there(session).worker, there(session).own, done) == ("w", "", True)
        ends = there(session).expires
        assert abs(ends - time.time() - 100) < 5
        for expected in (None, "u"):
            session, done = await store.bind("a", Binding("v"), expected)
            assert (there(session).worker, done) == ("w", False)
        session, done = await store.bind("a", Binding("v", own="x"), "w")
        assert (there(session).worker, there(session).expires, done) == ("v", ends, True)
        used = there(await store.use("a"))
        assert (used.worker, used.own) == ("v", "x")
        assert await store.close("a") is not None
        assert await store.close("a") is None
        assert await store.use("a") is None

    play(test)


def test_finding_is_no_use(play: Play) -> None:
    """A session can be looked up without being used: its times stay as they are."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100, sliding=True))
        assert await store.find("a") is None
        bound = there((await store.bind("a", Binding("w"), None)).session)
        before = bound.used, bound.expires
        await asyncio.sleep(0.01)
        found = there(await store.find("a"))
        assert (found.used, found.expires) == before
        used = there(await store.use("a"))
        assert (used.used, used.expires) > before

    play(test)


def test_of_many_at_once_one_binds(play: Play) -> None:
    """Several routers bind one session at once: one succeeds, and all get the same result."""

    async def test(make: Make) -> None:
        stores = [make(SessionLease()) for _ in range(3)]
        for number in range(20):
            home: str | None = None
            for _ in range(2):  # it begins, then it moves
                tries = (
                    stores[n % 3].bind(f"s{number}", Binding(f"{home}{n}"), home) for n in range(12)
                )
                results = await asyncio.gather(*tries)
                assert sum(one.done for one in results) == 1
                [home] = {there(one.session).worker for one in results}

    play(test)


def test_expiry(play: Play) -> None:
    """Expiry is strict: an expired session is not found, and its id is free. Expired ones make room
    first, so that no live one is evicted, and are counted."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=0.2, most=2))
        for key in "ab":
            await store.bind(key, Binding("w"), None)
        await asyncio.sleep(0.25)
        assert await store.use("a") is None
        store.lease = SessionLease(ttl=100, most=2)
        for key in "ac":
            session, _ = await store.bind(key, Binding("v"), None)
            assert there(session).worker == "v"
        assert await store.look() == (2, 2, 0)

    play(test)


@pytest.mark.parametrize("sliding", [False, True])
def test_sliding(play: Play, sliding: bool) -> None:
    """Each use of a sliding session, and of no other, restarts `ttl`, but only up to `longest`."""

    async def test(make: Make) -> None:
        for key, longest in (("a", 2000.0), ("b", 1000.1)):
            store = make(SessionLease(ttl=1000, sliding=sliding, longest=longest))
            await store.bind(key, Binding("w"), None)
            await asyncio.sleep(0.2)
            used = there(await store.use(key))
            assert used.used >= used.created + 0.19
            end = min(used.used + 1000, used.created + longest) if sliding else used.created + 1000
            assert used.expires == pytest.approx(end, rel=0, abs=0.01)

    play(test)


def test_an_end_that_a_worker_has_given(play: Play) -> None:
    """An end that a worker has set is kept, even if sessions slide, but not beyond `longest`."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100, sliding=True, longest=1000))
        ends = float(int(time.time()) + 7)
        its = Binding("w", own="o", expires=ends, fixed=True)
        session, _ = await store.bind("a", its, None)
        assert (there(session).expires, there(session).own) == (ends, "o")
        await store.bind("a", Binding("v", own="p"), "w")
        for _ in range(2):
            used = there(await store.use("a"))
            assert (used.expires, used.fixed) == (ends, True)
        [(_, listed)] = await store.listed(9)
        assert (listed.expires, listed.fixed) == (ends, True)
        late, _ = await store.bind("b", Binding("w", expires=ends + 9999, fixed=True), None)
        assert abs(there(late).expires - there(late).created - 1000) < 0.01

    play(test)


@pytest.mark.parametrize("others", [False, True])
def test_what_others_use_is_not_one_s_own(play: Play, others: bool) -> None:
    """Who began or moved a session can move it, move it back or close it, unless it was used since,
    or another one has its id."""

    async def test(make: Make) -> None:
        store = make(SessionLease())

        async def used(key: str) -> None:
            await asyncio.sleep(0.01)  # so that the time differs
            if others:  # looks for it, or tries to bind it
                await (store.use(key) if key == "b" else store.bind(key, Binding("u"), None))

        begun = there((await store.bind("a", Binding("w"), None)).session)
        first, created = begun.used, begun.created
        await used("a")
        session, done = await store.bind("a", Binding("v", used=first), "w")
        assert (there(session).worker, done) == (("w", False) if others else ("v", True))
        assert (await store.close("a", begun=created) is None) == others
        await store.close("a")
        await store.bind("a", Binding("w"), None)
        assert await store.close("a", begun=created) is None, "it is another session"
        await store.bind("b", Binding("w"), None)
        last = there((await store.bind("b", Binding("v"), "w")).session).used
        await used("b")
        session, done = await store.bind("b", Binding("w", used=last), "v")
        assert (there(session).worker, done) == (("v", False) if others else ("w", True))

    play(test)


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
        assert await store.look() == (3, 0, 1)
        assert {key for key, _ in await store.listed(10)} == {"a", "c", "d"}
        assert len(await store.listed(2)) == 2
        await store.close("a")
        assert (await store.look()).open == 2

    play(test)


def test_who_has_most_makes_room(play: Play) -> None:
    """Whoever opens most loses the session that was unused for longest; others lose none."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100, most=6))

        async def opens(owner: str, *keys: str) -> set[str]:
            for key in keys:
                await store.bind(key, Binding("w", owner=owner), None)
                await asyncio.sleep(0.002)
            return {key for key, _ in await store.listed(10)}

        await opens("ann", "a1", "a2")
        assert await opens("bob", *"bcdefghi") == {"a1", "a2", *"fghi"}
        await store.use("f")
        assert await opens("bob", "j") == {"a1", "a2", *"hifj"}
        # The second is more than half.
        assert await opens("ann", "a3", "a4") == {"a2", "a3", "a4", *"ifj"}
        await store.close("a3")
        assert await opens("", "x", "y") == {"a2", "a4", *"fjxy"}  # without a key
        assert (await store.look()).evicted == 8

    play(test)


def test_much_less_room_is_made_by_and_by(redis: RedisServer) -> None:
    """Evicting thousands takes several calls, so that Redis can answer others in between."""

    async def test() -> None:
        settings = RedisSettings(url=redis.url, timeout="5s")
        store = RedisStore(settings, uuid.uuid4().hex, SessionLease())
        for number in range(2 * MAX_CLEARED + 50):
            await store.bind(str(number), Binding("w"), None)
        store.lease = SessionLease(most=10)
        left = []
        for key in "abcd":
            await store.bind(key, Binding("w"), None)
            left.append((await store.look()).open)
        assert left == [MAX_CLEARED + 51, 52, 10, 10]
        assert await store.use("d") is not None
        await store.stop()

    asyncio.run(test())


def test_very_many_that_expire_at_once_are_dropped_bit_by_bit() -> None:
    """All are gone after one look, and others had their turns in between."""
    now, turns = 0.0, 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test() -> None:
        nonlocal now
        store = MemoryStore(SessionLease(ttl=10, most=10 * MAX_DROPPED), lambda: now)
        for number in range(10 * MAX_DROPPED):
            await store.bind(str(number), Binding("w"), None)
        other, now = asyncio.create_task(others()), 10.0
        assert await store.look() == (0, 10 * MAX_DROPPED, 0)
        other.cancel()

    asyncio.run(test())
    assert turns >= 9


@pytest.mark.parametrize("step", [86400.0, -86400.0])
def test_a_clock_that_is_set_ends_no_session(step: float) -> None:
    """Sessions in memory live by another clock; clients are told by the system's clock, and so is
    an end that a worker gives."""

    async def test() -> None:
        now = 1_800_014_400.0
        store = MemoryStore(SessionLease(ttl=1200), lambda: now, lambda: now + step)
        ours, _ = await store.bind("a", Binding("w"), None)
        assert there(ours).expires + store.ahead() == now + step + 1200
        theirs, _ = await store.bind("b", Binding("w", expires=now + step + 60, fixed=True), None)
        assert there(theirs).expires + store.ahead() == now + step + 60
        now += 59
        assert await store.find("b") is not None
        now += 1
        assert await store.find("b") is None
        assert await store.find("a") is not None

    asyncio.run(test())
    assert abs(steady() - time.time()) < 60
