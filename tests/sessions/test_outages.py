"""A Redis that hangs for a moment, or comes back empty: what routers believe, and when."""

import asyncio
import time
import uuid
from typing import Any

import pytest
import redis as client

from router.sessions.sessions import Sessions
from router.sessions.store import MemoryStore
from router.sessions.table import Binding, Bound, SessionLease
from router.settings.sessions import SessionSettings
from tests.reload.changing import change
from tests.sessions.asking import (
    CHAT,
    CLOSE,
    OPEN,
    Later,
    ask,
    events,
    homes,
    invoke,
    opened,
    state,
)
from tests.sessions.redis_server import RedisServer
from tests.support import MakeRouter, MakeStub, Router, until


def routers(
    stub: MakeStub, route: MakeRouter, redis: RedisServer, count: int = 2
) -> tuple[str, list[Router]]:
    """Start routers with the same workers, in a pool that no other test uses."""
    workers, name = [stub().url for _ in range(3)], f"p{uuid.uuid4().hex[:8]}"
    pools = [{"name": name, "workers": workers, "strategy": "session"}]
    # The timeout is longer than a busy machine needs, so that no outage happens by accident.
    rules = {"ttl": "20m", "redis": {"url": redis.url, "timeout": "1500ms"}}
    made = [route(pools=pools, session=rules) for _ in range(count)]
    redis.found_again(*made)
    return name, made


def test_a_moment_s_silence_changes_nothing(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """Nothing fails meanwhile; afterwards ids that are closed or unknown are refused."""
    pool, (one, other) = routers(stub, route, redis)
    before, during, kept = (opened(invoke(one, OPEN)) for _ in range(3))
    assert invoke(one, CLOSE, before).status_code == 200
    with redis.hanging():
        assert state(invoke(one, CHAT, kept)) == "hashed"
        assert invoke(one, CLOSE, during).status_code == 200
        assert invoke(one, CHAT, during).status_code == 400
        fresh = opened(invoke(one, OPEN))
        assert invoke(one, CHAT, fresh).status_code == 200
    redis.found_again(one, other)
    after = opened(invoke(one, OPEN))
    assert invoke(one, CLOSE, after).status_code == 200
    for router in (one, other):
        for key in (before, during, after):
            assert invoke(router, CHAT, key).status_code == 400
            assert invoke(router, CLOSE, key).status_code == 400
        assert [state(invoke(router, CHAT, key)) for key in (kept, fresh)] == ["kept"] * 2
    until(lambda: invoke(one, CHAT, uuid.uuid4().hex).status_code == 400)
    counts = [events(one, event, pool) for event in ("hashed", "spilled", "rebound")]
    assert counts == [3, 0, 0]


def test_another_url_of_redis_loses_no_session(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """What was started and closed during an outage is told to Redis by the new settings too."""
    name = f"p{uuid.uuid4().hex[:8]}"
    pools = [{"name": name, "workers": [stub().url, stub().url], "strategy": "session"}]
    router = route(pools=pools, session={"redis": {"url": "redis://127.0.0.1:1", "timeout": "2s"}})
    fresh, closed = (opened(invoke(router, OPEN)) for _ in range(2))
    assert invoke(router, CLOSE, closed).status_code == 200
    change(router, pools=pools, session={"redis": {"url": redis.url, "timeout": "2s"}})
    redis.found_again(router)
    assert state(invoke(router, CHAT, fresh)) == "kept"
    assert invoke(router, CHAT, closed).status_code == 400
    assert events(router, "closed", name) == 1


def test_a_redis_that_comes_back_empty(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """A session known to either router goes on, unless it was closed since; and while Redis is
    down, an empty list would say that no session is open."""
    pool, (one, other) = routers(stub, route, redis)
    keys, again = [opened(invoke(one, OPEN)) for _ in range(3)], "chosen-by-a-client"
    for word in (CHAT, CLOSE, CHAT):
        named = {"x-session-id": again}
        assert one.http.post("/invocations", json=word, headers=named).status_code == 200
    assert invoke(one, CLOSE, keys[0]).status_code == 200
    redis.kill()
    for _ in range(2):
        reply = one.http.get("/sessions")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "session_store_down")
        assert pool in reply.json()["error"]["message"]
    redis.start()
    for key in keys[1:]:
        workers = {
            invoke(router, CHAT, key).headers["x-warmroute-worker"] for router in (other, one)
        }
        assert len(workers) == 1
    redis.found_again(one, other)
    assert invoke(one, CLOSE, keys[1]).status_code == 200
    for key in keys[:2]:
        assert invoke(one, CHAT, key).status_code == 400
        assert invoke(one, CLOSE, key).status_code == 400
    assert [state(invoke(one, CHAT, key)) for key in (keys[2], again)] == ["kept"] * 2


def test_all_that_are_open_are_listed(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """Thousands of expired sessions that were not swept away yet do not hide an open one."""
    pool, [router] = routers(stub, route, redis, 1)
    stem = f"warmroute:{{{pool}}}:"
    expired = {f"old-{number}": 1.0 + number for number in range(5000)}
    with client.Redis.from_url(redis.url) as direct:
        direct.zadd(f"{stem}used", expired)
        direct.zadd(f"{stem}ends", expired)
        key = opened(invoke(router, OPEN))
        assert list(homes(router)) == [key]
        assert direct.zcard(f"{stem}ends") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"worker": "w"},
        {"worker": "w", "created": "nan", "expires": "9999999999.0"},
        {"worker": "w", "created": "1.0", "expires": "1e300"},
        {"worker": "a\nb", "created": "1.0", "expires": "9999999999.0"},
        {"worker": b"\xff", "created": "1.0", "expires": "9999999999.0"},
    ],
)
def test_what_is_no_session_disturbs_no_other(
    stub: MakeStub, route: MakeRouter, redis: RedisServer, wrong: dict[str, Any]
) -> None:
    """A malformed entry counts as not open, and does not make Redis count as down."""
    pool, [router] = routers(stub, route, redis, 1)
    place = f"warmroute:{{{pool}}}:s:bad"
    assert state(ask(router, "good")) == "new"
    with client.Redis.from_url(redis.url) as direct:
        if wrong:
            direct.hset(place, mapping=wrong)
        else:
            direct.set(place, "no session at all")
    states = [state(ask(router, key)) for key in ("bad", "bad", "good")]
    assert states == ["new", "kept", "kept"]
    assert set(homes(router)) == {"bad", "good"}
    assert router.metric("warmroute_session_store_up", pool=pool)


def test_whoever_looks_at_stores_goes_on_looking(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unexpected error the loop goes on, or nobody would notice that a store is back."""
    sessions = route(stub().url, strategy="session").door.fleet.pools[0].sessions
    assert sessions is not None
    looked: list[int] = []

    async def fault() -> None:
        looked.append(1)
        raise ValueError("for a test")

    monkeypatch.setattr(sessions, "look", fault)
    until(lambda: len(looked) == 2)


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

    sessions.keep_in(Far(SessionLease(), time.time))

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


def test_while_redis_is_away_both_choose_alike(
    stub: MakeStub, route: MakeRouter, dead_url: str
) -> None:
    """By the id's hash, over all workers; if one is lost, its sessions and no others move."""
    stubs = {f"w{n}": stub() for n in range(3)}
    workers = [{"url": one.url, "name": name} for name, one in stubs.items()]
    redis = {"url": dead_url.replace("http", "redis")}
    both = [route(*workers, strategy="session", session={"redis": redis}) for _ in range(2)]

    def chosen(number: int) -> str:
        replies = [ask(router, f"s{number}") for router in both]
        assert [state(reply) for reply in replies] == ["hashed"] * 2
        [where] = {reply.headers["x-warmroute-worker"] for reply in replies}
        return str(where)

    before = [chosen(number) for number in range(30)]
    assert set(before) == {"w0", "w1", "w2"}
    stubs["w1"].stop()
    for router in both:
        assert ask(router, f"s{before.index('w1')}").status_code == 200
        until(lambda: not router.worker(1).ready)  # noqa: B023
    after = [chosen(number) for number in range(30)]
    moved = {now for then, now in zip(before, after, strict=True) if then == "w1"}
    assert moved == {"w0", "w2"}
    assert all(then in {now, "w1"} for then, now in zip(before, after, strict=True))


def test_a_request_without_a_session_asks_nobody(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """A Redis that hangs delays only requests with a session."""
    rules = {"redis": {"url": redis.url, "timeout": "60s"}}
    router = route(stub().url, strategy="session", session=rules)
    with redis.hanging():
        waiting = Later(router, "any")
        until(lambda: router.door.dispatcher.scheduler.in_flight == 1)
        assert state(ask(router)) == ""
        assert waiting.replies == []
    assert state(waiting.reply()) == "new"
    assert events(router, "hashed") == 0
