"""What every store guarantees, in memory and in Redis."""

import asyncio
import time

from router.sessions.table import Binding, OpenSession, SessionLease
from tests.sessions.playing import Make, Play


def test_a_session_s_life(play: Play) -> None:
    """A session is bound, used, moved and closed."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100))
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

    def times(session: OpenSession | None) -> tuple[float, float]:
        assert session is not None
        return session.used, session.expires

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=100, sliding=True))
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
        store = make(SessionLease())
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
        stores = [make(SessionLease()) for _ in range(3)]
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
