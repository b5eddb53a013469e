"""The system's clock is set: sessions in memory last as long as before, and clients are told when
they end by the clock as it is then."""

import asyncio

import pytest

from router.sessions.sessions import Sessions
from router.sessions.store import MemoryStore, steady
from router.sessions.table import Binding, SessionLease
from tests.support import MakeRouter, MakeStub, Router

#: On 15 January 2027.
NOON = 1_800_014_400.0
CHAT = {"model": "m", "messages": []}


def sessions_of(router: Router) -> Sessions:
    """Return the router's sessions, which live by clocks that stand still at noon."""
    [pool] = router.door.fleet.pools
    assert pool.sessions is not None
    pool.sessions.clock = pool.sessions.lasting = lambda: NOON
    sessions: Sessions = pool.sessions
    return sessions


def use(router: Router) -> str:
    """Use the session; return what the answer says of it."""
    reply = router.http.post("/v1/chat/completions", json=CHAT, headers={"x-session-id": "a"})
    assert reply.status_code == 200
    return reply.headers["x-warmroute-session"]


@pytest.mark.parametrize(
    ("step", "day"), [(86400.0, "16"), (-86400.0, "14")], ids=["forward", "back"]
)
def test_a_clock_that_is_set_ends_no_session(
    stub: MakeStub, route: MakeRouter, step: float, day: str
) -> None:
    """Nor does it keep one open: it ends when its time is over."""
    router = route(stub().url, strategy="session", session={"ttl": "20m"})
    sessions = sessions_of(router)
    assert use(router) == "new; expires=2027-01-15T12:20:00Z"
    sessions.clock = lambda: NOON + step
    assert use(router) == f"kept; expires=2027-01-{day}T12:20:00Z"
    [listed] = router.http.get("/sessions").json()
    assert listed["created"] == f"2027-01-{day}T12:00:00Z"
    assert listed["expires"] == f"2027-01-{day}T12:20:00Z"
    sessions.lasting = lambda: NOON + 1199.0
    assert use(router).startswith("kept;")
    sessions.lasting = lambda: NOON + 1200.0
    assert use(router).startswith("new;")


@pytest.mark.parametrize("step", [86400.0, -86400.0])
def test_an_end_that_a_worker_gives_is_by_the_clock_of_all(step: float) -> None:
    """The worker's clock is right, as the router's is since it was set."""

    async def play() -> None:
        now = NOON
        store = MemoryStore(SessionLease(), lambda: now, lambda: now + step)
        ends = NOON + step + 60
        session, _ = await store.bind("a", Binding("w", expires=ends, fixed=True), None)
        assert session is not None
        assert session.expires + store.ahead() == ends
        now += 59
        assert await store.find("a") is not None
        now += 1
        assert await store.find("a") is None

    asyncio.run(play())


def test_two_clocks_that_agree_but_for_a_moment_agree() -> None:
    """They are not read at the same moment, and what is told does not change by that."""
    store = MemoryStore(SessionLease(), lambda: NOON, lambda: NOON + 0.04)
    assert store.ahead() == 0


def test_the_steady_clock_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on whatever the time of day."""
    before = steady()
    monkeypatch.setattr("router.sessions.store.time", lambda: 0.0)
    assert before <= steady()
