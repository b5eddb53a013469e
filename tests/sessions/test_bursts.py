"""Many sessions that begin at once: load stays even, limits hold, and each begins once."""

import asyncio
import time
import uuid
from collections import Counter
from typing import Any

import httpx
import pytest

from router.sessions.store import MemoryStore
from router.sessions.table import Binding, Bound, OpenSession, SessionLease
from tests.sessions.asking import CHAT, OPEN, PATH, ask, events
from tests.sessions.redis_server import RedisServer
from tests.support import OK, Action, MakeRouter, MakeStub, until

WORKERS = 4


class Busy:
    """The requests that a worker has in flight, and the most it ever had."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    def enter(self) -> bool:
        """Count a request that has arrived."""
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        return True

    def leave(self) -> bool:
        """Count a request that is about to be answered."""
        self.now -= 1
        return True

    def script(self) -> list[Action]:
        """Return a script that takes a while for each request."""
        return [self.enter, 0.1, self.leave, *OK]


class Team:
    """Workers that count their requests, and a router in front of them."""

    def __init__(self, stub: MakeStub, route: MakeRouter, redis: str | None, most: int) -> None:
        self.counts = [Busy() for _ in range(WORKERS)]
        self.workers = [stub(one.script()) for one in self.counts]
        self.pool = f"p{uuid.uuid4().hex[:8]}"
        urls = [worker.url for worker in self.workers]
        pools = [{"name": self.pool, "workers": urls, "strategy": "session"}]
        rules = {"redis": {"url": redis, "timeout": "5s"}} if redis else {}
        self.router = route(pools=pools, session=rules, limits={"in_flight": most})

    def ask(self, path: str, bodies: list[tuple[dict[str, Any], str]]) -> list[httpx.Response]:
        """Send all of them at once, over connections that are open already."""
        return asyncio.run(self._ask(path, bodies))

    async def _ask(self, path: str, bodies: list[tuple[dict[str, Any], str]]) -> list[Any]:
        bounds = httpx.Limits(max_connections=len(bodies))
        async with httpx.AsyncClient(base_url=self.router.url, limits=bounds, timeout=30) as client:
            await asyncio.gather(*(client.get("/health/live") for _ in bodies))
            calls = [
                client.post(path, json=body, headers={"x-session-id": key} if key else {})
                for body, key in bodies
            ]
            return await asyncio.gather(*calls)


@pytest.fixture(params=[False, True], ids=["in memory", "in Redis"])
def store(request: pytest.FixtureRequest) -> str | None:
    """Where sessions are kept: None is in memory."""
    server: RedisServer | None = request.getfixturevalue("redis") if request.param else None
    return server.url if server else None


def shares(replies: list[httpx.Response]) -> list[int]:
    """Return how many requests each worker answered; all must have succeeded."""
    assert {reply.status_code for reply in replies} == {200}
    return sorted(Counter(reply.headers["x-warmroute-worker"] for reply in replies).values())


def test_they_spread_evenly(stub: MakeStub, route: MakeRouter, store: str | None) -> None:
    """Each new session counts for those that follow, even while the store is still recording it,
    and even without a prompt."""
    team = Team(stub, route, store, most=100)
    bodies = [(CHAT, f"s{number}") for number in range(6 * WORKERS)]

    def all_are_there() -> bool:
        return sum(one.all for one in team.counts) == len(bodies)

    for worker, one in zip(team.workers, team.counts, strict=True):
        worker.script = [one.enter, all_are_there, one.leave, *OK]
    assert shares(team.ask(PATH, bodies)) == [6] * WORKERS
    assert shares(team.ask("/invocations", [(OPEN, "")] * 6 * WORKERS)) == [6] * WORKERS
    until(team.router.idle)


def test_no_worker_is_sent_too_many(stub: MakeStub, route: MakeRouter, store: str | None) -> None:
    """However many begin at once, no worker gets more than its limit; the others wait. Of the first
    requests of one session one chooses the worker."""
    team = Team(stub, route, store, most=2)
    bodies = [(CHAT, f"s{number}") for number in range(4 * WORKERS)]
    assert sum(shares(team.ask(PATH, bodies))) == 4 * WORKERS
    assert shares(team.ask(PATH, [(CHAT, "one")] * 6)) == [6]
    assert max(one.most for one in team.counts) <= 2
    until(team.router.idle)


@pytest.mark.parametrize("more", [{}, CHAT], ids=["without a prompt", "with one"])
def test_an_id_is_begun_once(
    stub: MakeStub, route: MakeRouter, store: str | None, more: dict[str, Any]
) -> None:
    """Of those that begin one id at once, only the first succeeds, though all have one worker."""
    team = Team(stub, route, store, most=100)
    for worker in team.workers[1:]:
        worker.stop()
    replies = team.ask("/invocations", [({**OPEN, **more, "extSessionID": "mine"}, "")] * 6)
    assert sorted(reply.status_code for reply in replies) == [200, 400, 400, 400, 400, 400]
    until(lambda: events(team.router, "new", team.pool) == 1)
    [there] = team.router.http.get("/sessions").json()
    assert there["id"] == "mine"


def test_who_is_never_first_gives_up(stub: MakeStub, route: MakeRouter) -> None:
    """If others bind the session every time, nothing is sent and nothing stays booked."""
    workers = [stub() for _ in range(2)]
    router = route(*(worker.url for worker in workers), strategy="session")
    pool = router.door.fleet.pools[0]
    sessions = pool.sessions
    assert sessions is not None

    class Others(MemoryStore):
        async def bind(self, key: str, to: Binding, expected: str | None) -> Bound:
            del key, expected
            there = next(one.name for one in pool.workers if one.name != to.worker)
            return Bound(OpenSession(there, 1.0, 2e9, 1.0))

    router.call(lambda: sessions.keep_in(Others(SessionLease(), time.time)))
    reply = ask(router, "a")
    assert (reply.status_code, "Another request is moving" in reply.text) == (503, True)
    assert [worker.requests for worker in workers] == [[], []]
    assert router.metric("warmroute_decisions_total", pool="default", reason="bind") == 1
    until(router.idle)
