"""No live session is on two workers at once, unless a move was announced: any order of events."""

import asyncio
import uuid
from collections.abc import Coroutine, Iterable
from time import monotonic
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from router.fleet import Pool, State, Worker
from router.sessions.redis import RedisStore
from router.sessions.sessions import Sessions
from router.sessions.store import MemoryStore
from router.sessions.visit import Visit, Wanted
from router.settings_session import RedisSettings, SessionSettings
from strategies.base import Decision, Prompt, Seconds
from strategies.session import Session, SessionOptions
from tests.sessions.redis_server import RedisServer

KEYS = ("a", "b", "c")
NAMES = ("w0", "w1", "w2")
MOVES = {"rebound", "spilled"}


class Served(NamedTuple):
    """A request that is being answered."""

    key: str
    worker: str
    life: int
    """Of the session: another one each time it was opened anew."""


class Asked(NamedTuple):
    """A request that has looked where its session is, and has not gone there yet."""

    router: int
    visit: Visit


async def _all(work: Iterable[Coroutine[Any, Any, str]]) -> list[str]:
    return await asyncio.gather(*work)


class Routers(RuleBasedStateMachine):
    """Routers that share sessions; each sees workers come and go for itself."""

    server: RedisServer | None = None
    count = 1

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.now = 1000.0
        self.pools = [self._pool() for _ in range(self.count)]
        self.name = uuid.uuid4().hex
        rules = SessionSettings(ttl="100s")
        self.sessions = [
            Sessions(rules, stays=n % 2 == 0, clock=lambda: self.now) for n in range(self.count)
        ]
        for pool, sessions in zip(self.pools, self.sessions, strict=True):
            pool.sessions = sessions
            if self.server is not None:
                redis = RedisSettings(url=self.server.url, timeout="5s")
                sessions.keep_in(RedisStore(redis, self.name, rules.lease))
        self.asked: list[Asked] = []
        self.served: list[Served] = []
        self.lives = dict.fromkeys(KEYS, 0)
        self.homes: dict[str, str] = {}

    def _pool(self) -> Pool:
        options = SessionOptions(spill=Seconds(0.0) if self.count > 1 else None)
        workers = []
        for name in NAMES:
            worker = Worker(name, f"http://{name}", upstream=None)  # type: ignore[arg-type]
            worker.become(State.READY, "ready")
            workers.append(worker)
        return Pool("p", ["*"], workers, Session(options))

    def _do(self, work: Any) -> Any:
        return self.runner.run(work)

    @rule(key=st.sampled_from(KEYS), router=st.integers(0, 1))
    def ask(self, key: str, router: int) -> None:
        """A request comes in, and looks where its session is."""
        router %= self.count
        visit = Visit(self.sessions[router], key, Wanted.EITHER)
        self._do(visit.look(self.pools[router], self.pools[router].taking))
        self.asked.append(Asked(router, visit))

    @rule(
        most=st.integers(1, 6),
        load=st.floats(0, 3),
        busy=st.integers(0, 2),
    )
    def go(self, most: int, load: float, busy: int) -> None:
        """Some are decided and go to workers, all at once; each router is busy elsewhere."""
        for number, pool in enumerate(self.pools):
            pool.workers[(busy + number) % len(NAMES)].load.book(monotonic(), load)
        batch, self.asked = self.asked[:most], self.asked[most:]
        outcomes = self._do(_all(self._go(one) for one in batch))
        gone = [(one.visit, name) for one, name in zip(batch, outcomes, strict=True) if name]
        for key in {visit.id for visit, _ in gone}:
            self._judge(key, {(name, visit.state) for visit, name in gone if visit.id == key})

    async def _go(self, asked: Asked) -> str:
        """What the proxy does when there is room; the worker's name, or nothing."""
        router, visit = asked
        pool = self.pools[router]
        await visit.look(pool, pool.taking)
        decision = self._rank(pool, visit)
        if decision is None:
            return ""
        choice = await visit.settle(decision.candidates[0], decision.candidates, pool, "m")
        return choice.worker.name

    def _judge(self, key: str, outcomes: set[tuple[str, str]]) -> None:
        announced = any(state in MOVES for _, state in outcomes)
        workers = {name for name, _ in outcomes} | {
            one.worker for one in self.served if one[::2] == (key, self.lives[key])
        }
        home = self.homes.get(key)
        assert {name for name, _ in outcomes} <= {home} or announced or home is None, "in silence"
        assert home or len(workers) == 1 or announced, "on two workers at once"
        session = self._do(self.sessions[0]._store.use(key))
        assert session is not None
        assert session.worker in {name for name, _ in outcomes}, "not where it is said to be"
        self.homes[key] = session.worker
        self.served += [Served(key, name, self.lives[key]) for name, _ in outcomes]

    def _rank(self, pool: Pool, visit: Visit) -> Decision | None:
        workers = [worker for worker in pool.taking if worker.ready]
        home = visit.home(pool, "m", workers)
        if home is not None and home not in workers:
            workers = [home, *workers]
        if not workers:
            return None
        for worker in workers:
            worker.models = {"m": {}}
        return pool.strategy.rank(Prompt("m", 100, bound=visit.bound), workers, monotonic())

    @rule(place=st.integers(0, 20))
    def answer(self, place: int) -> None:
        """One ends."""
        if self.served:
            self.served.pop(place % len(self.served))

    @rule(key=st.sampled_from(KEYS), router=st.integers(0, 1))
    def close(self, key: str, router: int) -> None:
        """A session is closed."""
        if self._do(self.sessions[router % self.count].close(key)):
            self._over(key)

    @rule(key=st.sampled_from(KEYS))
    def expire(self, key: str) -> None:
        """One, or all of them where only time can do it, reach their end."""
        store = self.sessions[0]._store
        if isinstance(store, MemoryStore):
            self.now += 100.0
            for one in KEYS:
                self._over(one)
        else:
            assert isinstance(store, RedisStore)
            name = f"{store._stem}s:{key}"
            if self._do(store._redis.exists(name)):
                self._do(store._redis.hset(name, "expires", "0"))
            self._over(key)

    def _over(self, key: str) -> None:
        self.lives[key] += 1
        self.homes.pop(key, None)

    @rule(router=st.integers(0, 1), name=st.sampled_from(NAMES), ready=st.booleans())
    def notice(self, router: int, name: str, ready: bool) -> None:
        """A router finds a worker dead, or alive again; the other one may not know yet."""
        worker = self._worker(router, name)
        worker.become(State.READY if ready else State.DOWN, "for a test")

    @rule(router=st.integers(0, 1), name=st.sampled_from(NAMES), drain=st.booleans())
    def drain(self, router: int, name: str, drain: bool) -> None:
        """A worker is to be taken away, or not any more."""
        self._worker(router, name).draining = drain
        pool = self.pools[router % self.count]
        pool._staff(pool.workers)

    def _worker(self, router: int, name: str) -> Worker:
        return next(w for w in self.pools[router % self.count].workers if w.name == name)

    @invariant()
    def the_store_is_there(self) -> None:
        """Or this would test nothing."""
        assert not any(sessions.down for sessions in self.sessions)

    def teardown(self) -> None:
        """Let go of everything."""
        for sessions in self.sessions:
            self._do(sessions.stop())
        self.runner.close()


@pytest.mark.parametrize(("routers", "shared"), [(1, False), (1, True), (2, True)])
def test_never_two_workers(request: pytest.FixtureRequest, routers: int, shared: bool) -> None:
    """With one router and with two, in memory and through a real Redis."""
    server = request.getfixturevalue("redis") if shared else None
    kind = type("Here", (Routers,), {"server": server, "count": routers})
    wanted = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(kind, settings=wanted)
