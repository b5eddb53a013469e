"""A Redis that hangs for a moment, or comes back without its memory: what is believed, and when."""

import uuid
from typing import Any

import httpx

from tests.sessions.redis_server import RedisServer
from tests.support import MakeRouter, MakeStub, Router, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
OPEN = {"requestType": "NEW_SESSION"}
CLOSE = {"requestType": "CLOSE"}
HEADER = "X-Amzn-SageMaker-Session-Id"
EVENTS = "warmroute_session_events_total"


def invoke(router: Router, body: dict[str, Any], key: str | None = None) -> httpx.Response:
    """What boto3 would send."""
    return router.http.post("/invocations", json=body, headers={HEADER: key} if key else {})


def opened(router: Router) -> str:
    """The id of a session that has begun."""
    reply = invoke(router, OPEN)
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-amzn-sagemaker-new-session-id"]).partition(";")[0]


def routers(stub: MakeStub, route: MakeRouter, redis: RedisServer, count: int = 2) -> list[Router]:
    """Some before the same workers, in a pool that no other test has."""
    workers = [stub().url for _ in range(3)]
    name = f"p{uuid.uuid4().hex[:8]}"
    pools = [{"name": name, "workers": workers, "strategy": "session"}]
    rules = {"ttl": "20m", "redis": {"url": redis.url}}
    made = [route(pools=pools, session=rules) for _ in range(count)]
    redis.found_again(*made)
    return made


def test_a_moment_s_silence_changes_nothing(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """Nothing fails meanwhile, and afterwards what is closed, or never was, is refused."""
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


def test_what_redis_has_forgotten_is_believed(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """Of any router: the session goes on. What has been closed since does not."""
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
    """However many have expired before them and were not yet swept away."""
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
