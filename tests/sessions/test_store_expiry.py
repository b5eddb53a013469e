"""Until when a store keeps a session."""

import asyncio
import time

import pytest

from router.sessions.store import MemoryStore
from router.sessions.table import DROPPED, Binding, SessionLease
from tests.sessions.playing import Make, Play
from tests.support import MakeRouter, MakeStub, until


def test_expiry(play: Play) -> None:
    """Expiry is strict: an expired session is not found, and its id is free."""

    async def test(make: Make) -> None:
        store = make(SessionLease(ttl=0.2))
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
            store = make(SessionLease(ttl=1000, sliding=sliding, longest=longest))
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
        store = make(SessionLease(ttl=100, sliding=True, longest=1000))
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
        store = MemoryStore(SessionLease(ttl=10, most=10 * DROPPED), lambda: now)
        for number in range(10 * DROPPED):
            await store.bind(str(number), Binding("w"), None)
        other, now = asyncio.create_task(others()), 10.0
        assert await store.look() == (0, 10 * DROPPED, 0)
        other.cancel()

    asyncio.run(test())
    assert turns >= 9


def test_what_expires_in_memory_is_dropped_without_any_request(
    stub: MakeStub, route: MakeRouter
) -> None:
    """Nobody has to ask for metrics or start another session."""
    router = route(stub().url, strategy="session", session={"ttl": "1s"})
    body, headers = {"model": "m", "messages": []}, {"x-session-id": "a"}
    reply = router.http.post("/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200
    [pool] = router.door.fleet.pools
    assert pool.sessions is not None
    store = pool.sessions._store
    assert isinstance(store, MemoryStore)
    until(lambda: not len(store._table))
    assert store._table.expired == 1
