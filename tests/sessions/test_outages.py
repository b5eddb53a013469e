"""A Redis that hangs for a moment, or comes back empty: what routers believe, and when."""

import asyncio
import time
import uuid
from typing import Any

import httpx
import pytest

from router.sessions.redis import RedisStore
from router.sessions.sessions import Sessions
from router.sessions.store import Kept, MemoryStore, StoreDown
from router.sessions.table import Binding, Bound, OpenSession, SessionLease
from router.settings.sessions import RedisSettings, SessionSettings
from tests.reload.changing import change
from tests.sessions.redis_server import RedisServer
from tests.sessions.wires import Machine
from tests.support import MakeRouter, MakeStub, Router, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
OPEN = {"requestType": "NEW_SESSION"}
CLOSE = {"requestType": "CLOSE"}
HEADER = "X-Amzn-SageMaker-Session-Id"
EVENTS = "warmroute_session_events_total"


def invoke(router: Router, body: dict[str, Any], key: str | None = None) -> httpx.Response:
    """Send what boto3 would send."""
    return router.http.post("/invocations", json=body, headers={HEADER: key} if key else {})


def opened(router: Router) -> str:
    """Begin a session and return its id."""
    reply = invoke(router, OPEN)
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-amzn-sagemaker-new-session-id"]).partition(";")[0]


def routers(stub: MakeStub, route: MakeRouter, redis: RedisServer, count: int = 2) -> list[Router]:
    """Start routers with the same workers, in a pool that no other test uses."""
    workers = [stub().url for _ in range(3)]
    name = f"p{uuid.uuid4().hex[:8]}"
    pools = [{"name": name, "workers": workers, "strategy": "session"}]
    # The timeout is longer than a busy machine needs, so that no outage happens by accident.
    rules = {"ttl": "20m", "redis": {"url": redis.url, "timeout": "1500ms"}}
    made = [route(pools=pools, session=rules) for _ in range(count)]
    redis.found_again(*made)
    return made


def test_a_moment_s_silence_changes_nothing(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """Nothing fails meanwhile; afterwards ids that are closed or unknown are refused."""
    one, other = routers(stub, route, redis)
    before, during = opened(one), opened(one)
    kept = opened(one)
    assert invoke(one, CLOSE, before).status_code == 200
    with redis.hanging():
        assert invoke(one, CHAT, kept).headers["x-warmroute-session"].startswith("hashed;")
        assert invoke(one, CLOSE, during).status_code == 200
        assert invoke(one, CHAT, during).status_code == 400
        fresh = opened(one)
        assert invoke(one, CHAT, fresh).status_code == 200
    redis.found_again(one, other)
    after = opened(one)
    assert invoke(one, CLOSE, after).status_code == 200
    for router in (one, other):
        for key in (before, during, after):
            assert invoke(router, CHAT, key).status_code == 400
            assert invoke(router, CLOSE, key).status_code == 400
        for key in (kept, fresh):
            assert invoke(router, CHAT, key).headers["x-warmroute-session"].startswith("kept;")
    until(lambda: invoke(one, CHAT, uuid.uuid4().hex).status_code == 400)
    pool = one.door.fleet.pools[0].name
    assert one.metric(EVENTS, pool=pool, event="hashed") == 3
    moved = [one.metric(EVENTS, pool=pool, event=event) for event in ("spilled", "rebound")]
    assert moved == [0, 0]


@pytest.mark.parametrize("differs", ["timeout", "url"])
def test_other_settings_of_redis_lose_no_session(
    stub: MakeStub, route: MakeRouter, redis: RedisServer, differs: str
) -> None:
    """What was started and closed during an outage is told to Redis by the new settings too."""
    name = f"p{uuid.uuid4().hex[:8]}"
    pools = [{"name": name, "workers": [stub().url, stub().url], "strategy": "session"}]
    good = {"url": redis.url, "timeout": "1500ms"}
    wrong = {**good, "url": "redis://127.0.0.1:1"} if differs == "url" else good
    router = route(pools=pools, session={"redis": wrong})
    with redis.hanging():
        fresh, closed = opened(router), opened(router)
        assert router.door.fleet.pools[0].sessions.down
        assert invoke(router, CLOSE, closed).status_code == 200
        change(router, pools=pools, session={"redis": {**good, "timeout": "2s"}})
    redis.found_again(router)
    reply = invoke(router, CHAT, fresh)
    assert reply.headers.get("x-warmroute-session", "").startswith("kept;"), reply.text
    assert invoke(router, CHAT, closed).status_code == 400
    assert router.metric(EVENTS, pool=name, event="closed") == 1


def test_the_failure_of_a_former_store() -> None:
    """It comes late, and says nothing of the store that is used by then."""

    class Late(MemoryStore):
        async def listed(self, most: int) -> list[tuple[str, OpenSession]]:
            del most
            await changed.wait()
            raise StoreDown("late")

    async def run() -> bool:
        sessions = Sessions(SessionSettings(), stays=True)
        sessions.keep_in(Late(SessionLease(), time.time))
        asking = asyncio.create_task(sessions.listed(1))
        await asyncio.sleep(0)
        sessions.keep_in(MemoryStore(SessionLease(), time.time))
        changed.set()
        with pytest.raises(StoreDown):
            await asking
        return sessions.down

    changed = asyncio.Event()
    assert not asyncio.run(run())


def test_listing_says_that_it_cannot_know(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """While Redis is down an empty list would say that no session is open."""
    [router] = routers(stub, route, redis, 1)
    key, pool = opened(router), router.door.fleet.pools[0].name
    redis.kill()
    for _ in range(2):
        reply = router.http.get("/sessions")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "session_store_down")
        assert pool in reply.json()["error"]["message"]
    redis.start()
    redis.found_again(router)
    assert router.http.get("/sessions").json() == []  # it came back empty
    assert invoke(router, CHAT, key).headers["x-warmroute-session"].startswith("kept;")


def test_what_redis_has_forgotten_is_believed(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """A session known to either router goes on, unless it was closed since."""
    one, other = routers(stub, route, redis)
    keys = [opened(one) for _ in range(4)]
    redis.kill()
    redis.start()
    for key in keys:
        homes = {invoke(router, CHAT, key).headers["x-warmroute-worker"] for router in (other, one)}
        assert len(homes) == 1
    redis.found_again(one, other)
    assert invoke(one, CLOSE, keys[0]).status_code == 200
    for router in (one, other):
        assert invoke(router, CHAT, keys[0]).status_code == 400
        assert invoke(router, CHAT, keys[1]).headers["x-warmroute-session"].startswith("kept;")


def test_all_that_are_open_are_listed(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """Thousands of expired sessions that were not swept away yet do not hide an open one."""
    import redis as client  # noqa: PLC0415

    [router] = routers(stub, route, redis, 1)
    stem = f"warmroute:{{{router.door.fleet.pools[0].name}}}:"
    expired = {f"old-{number}": 1.0 + number for number in range(5000)}
    with client.Redis.from_url(redis.url) as direct:
        direct.zadd(f"{stem}used", expired)
        direct.zadd(f"{stem}ends", expired)
        key = opened(router)
        assert [one["id"] for one in router.http.get("/sessions").json()] == [key]
        assert direct.zcard(f"{stem}ends") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"worker": "w"},
        {"worker": "w", "created": "1.0", "expires": "soon"},
        {"worker": "w", "created": "nan", "expires": "9999999999.0"},
        {"worker": "w", "created": "1.0", "expires": "1e300"},
        {"worker": "a\nb", "created": "1.0", "expires": "9999999999.0"},
        {"worker": b"\xff", "created": "1.0", "expires": "9999999999.0"},
    ],
)
def test_what_is_no_session_disturbs_no_other(
    stub: MakeStub, route: MakeRouter, redis: RedisServer, wrong: dict[str, str]
) -> None:
    """A malformed entry counts as not open, and does not make Redis count as down."""
    import redis as client  # noqa: PLC0415

    [router] = routers(stub, route, redis, 1)
    name = router.door.fleet.pools[0].name
    place = f"warmroute:{{{name}}}:s:bad"

    def uses(key: str) -> str:
        reply = router.http.post("/v1/chat/completions", json=CHAT, headers={"x-session-id": key})
        assert reply.status_code == 200, reply.text
        return reply.headers["x-warmroute-session"].partition(";")[0]

    assert uses("good") == "new"
    with client.Redis.from_url(redis.url) as direct:
        if wrong:
            direct.hset(place, mapping=wrong)
        else:
            direct.set(place, "no session at all")
    assert [uses("bad"), uses("bad"), uses("good")] == ["new", "kept", "kept"]
    assert {one["id"] for one in router.http.get("/sessions").json()} == {"bad", "good"}
    assert router.metric("warmroute_session_store_up", pool=name)


def test_whoever_looks_at_stores_goes_on_looking(
    stub: MakeStub, route: MakeRouter, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unexpected error the loop goes on, or nobody would notice that a store is back."""
    [router] = routers(stub, route, redis, 1)
    sessions = router.door.fleet.pools[0].sessions
    assert sessions is not None
    looked: list[int] = []

    async def fault() -> None:
        looked.append(1)
        raise ValueError("for a test")

    monkeypatch.setattr(sessions, "look", fault)
    until(lambda: len(looked) == 2)


def test_what_befell_during_a_look_is_told_too() -> None:
    """A session bound during the look is recorded as well, though the store seemed lost to it."""
    sessions = Sessions(SessionSettings(), stays=True)

    class Slow(MemoryStore):
        async def look(self) -> Kept:
            sessions.down = True
            await sessions.bind("a", Binding("w"), None)
            return await super().look()

    slow = Slow(sessions._store.lease, time.time)
    sessions.keep_in(slow)
    asyncio.run(sessions.look())
    assert not sessions.down
    assert [key for key, _ in asyncio.run(slow.listed(9))] == ["a"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_busy_router_finds_its_store_again(fails: bool) -> None:
    """Each session is recorded once, even if all are used again meanwhile.

    That also holds if the store seems lost to a request in the meantime.
    """
    sessions = Sessions(SessionSettings(), stays=True)

    class Far(MemoryStore):
        async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
            await asyncio.sleep(0)
            sessions.down |= fails
            if sessions.down:
                await sessions.bind(key, to, None)
            return await super().bind(key, to, expected)

    sessions.keep_in(Far(sessions._store.lease, time.time))

    async def test() -> None:
        sessions.down = True
        for number in range(100):
            await sessions.bind(str(number), Binding("w"), None)
        async with asyncio.timeout(10):
            await sessions.look()
        assert sessions.down == fails
        assert len(sessions.away.begun) == (100 if fails else 0)
        assert len(await sessions.listed(200)) == 100

    asyncio.run(test())


def test_what_was_begun_meanwhile_is_known_before_it_is_told(redis: RedisServer) -> None:
    """It stays where it is, whatever its hash says, and its id cannot begin another session."""
    machine = Machine(("a", "b", "c"), {"strategy": "session"})

    async def test() -> None:
        store = RedisStore(
            RedisSettings(url=redis.url, timeout="5s"), uuid.uuid4().hex, SessionLease()
        )
        machine.begin(store, time.time)
        sessions = machine.pool.sessions
        assert sessions is not None
        await store.doubt(60)
        for home in machine.wires:
            for known in (False, True):
                key = uuid.uuid4().hex
                sessions.away.begin(key, store.lease.begun(Binding(home), time.time()))
                found = await sessions.find(
                    key, machine.pool, machine.pool.workers, known=known, uses=True
                )
                assert found is not None
                assert found.worker == home
        await store.stop()

    asyncio.run(test())


def test_what_was_closed_here_is_over_though_redis_has_forgotten_it(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """A router remembers what it closed, and what it began again after closing."""
    [one] = routers(stub, route, redis, 1)
    key, again = opened(one), "chosen-by-a-client"
    named = {"x-session-id": again}
    for word in (CHAT, CLOSE, CHAT):
        assert one.http.post("/invocations", json=word, headers=named).status_code == 200
    assert invoke(one, CLOSE, key).status_code == 200
    redis.kill()
    redis.start()
    redis.found_again(one)
    assert invoke(one, CHAT, key).status_code == 400
    assert invoke(one, CLOSE, key).status_code == 400
    assert invoke(one, CHAT, again).headers["x-warmroute-session"].startswith("kept;")
