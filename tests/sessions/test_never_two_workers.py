"""In any order of events, no live session is on two workers unless a move was announced."""

import asyncio
import uuid
from time import monotonic
from typing import Any, ClassVar, NamedTuple

import pytest
import redis as client
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from router.fleet.worker import ProbeState
from router.sessions.redis import RedisStore
from router.sessions.store import MemoryStore, Store
from router.sessions.table import OpenSession, SessionLease
from router.settings.sessions import RedisSettings
from tests.sessions.redis_server import RedisServer
from tests.sessions.wires import Answered, Machine, Yielding

KEYS = ("a", "b")
NAMES = ("w0", "w1", "w2")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
OPEN = {"requestType": "NEW_SESSION"}
#: What a client may do with a session. `turn`: OpenAI's API, where any id will do. `go on`:
#: SageMaker's API. `open` and `begin`: without and with a prompt.
ACTS = ("turn", "turn", "turn", "go on", "open", "begin", "close")


class Asked(NamedTuple):
    """One request."""

    key: str
    router: int
    act: str


class Said(NamedTuple):
    """A request and its answer."""

    asked: Asked
    answered: Answered


REQUESTS = st.lists(
    st.builds(Asked, st.sampled_from(KEYS), st.integers(0, 1), st.sampled_from(ACTS)),
    min_size=1,
    max_size=5,
)


Before = str | tuple[str, str] | None
#: Before the requests, all workers recover (`calm`), one gets a fault, or nothing changes (None).
BEFORE: st.SearchStrategy[Before] = st.one_of(
    st.just("calm"),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(("dead", "full", "broken"))),
    st.none(),
)


class Routers(RuleBasedStateMachine):
    """Routers that share sessions; each of them sees the workers' state for itself."""

    server: RedisServer | None = None
    routers: ClassVar[list[Machine]] = []
    runner: ClassVar[asyncio.Runner]
    spill = True
    """Whether sessions may move to avoid load; if not, they end with their worker."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.homes: dict[str, str | None] = dict.fromkeys(KEYS)
        self._do(self._begin())

    async def _begin(self) -> None:
        self.store: Store = MemoryStore(SessionLease(), lambda: self.now)
        self.name = uuid.uuid4().hex
        if self.server is not None:
            where = RedisSettings(url=self.server.url, timeout="5s")
            self.store = RedisStore(where, self.name, SessionLease())
        for router, turns in zip(self.routers, ((0, 2, 1, 3, 0, 1), (1, 0, 2, 0, 3)), strict=False):
            router.begin(Yielding(self.store, turns), lambda: self.now)

    def _do(self, work: Any) -> Any:
        return self.runner.run(work)

    def _all_are_well(self) -> bool:
        """Return whether every worker is well and every router knows it."""
        return all(
            router.wires[one.name].how == "well"
            and (one.ready and not one.draining and one.breaker.closed)
            for router in self.routers
            for one in router.pool.workers
        )

    @rule(requests=REQUESTS, load=st.floats(0, 3), busy=st.integers(0, 2), before=BEFORE)
    def ask(self, requests: list[Asked], load: float, busy: int, before: Before) -> None:
        """Send requests at once, while each router has other load on one of the workers."""
        if before == "calm":
            self.mend()
        elif before is not None:
            for router in self.routers:
                router.wires[before[0]].how = before[1]
        now, booked = monotonic(), []
        for number, router in enumerate(self.routers):
            other = router.worker(NAMES[(busy + number) % len(NAMES)]).load
            booked.append((other, other.book(now, load)))
        all_well = self._all_are_well()  # a request may find out that this is no longer so
        came = self._do(self._all(requests))
        for other, booking in booked:
            other.release(booking, now)
        for key in {one.key for one in requests}:
            self._judge(key, [said for said in came if said.asked.key == key], all_well=all_well)

    async def _all(self, requests: list[Asked]) -> list[Said]:
        return await asyncio.gather(*(self._one(asked) for asked in requests))

    async def _one(self, asked: Asked) -> Said:
        router, key = self.routers[asked.router % len(self.routers)], asked.key
        if asked.act == "turn":
            return Said(asked, await router.ask("/v1/chat/completions", CHAT, x_session_id=key))
        named = {"x_amzn_sagemaker_session_id": key}
        body: dict[str, Any] = {**OPEN, "extSessionID": key}
        if asked.act == "go on":
            return Said(asked, await router.ask("/invocations", CHAT, **named))
        if asked.act == "close":
            said = await router.ask("/invocations", {"requestType": "CLOSE"}, **named)
            return Said(asked, said)
        body |= CHAT if asked.act == "begin" else {}
        return Said(asked, await router.ask("/invocations", body))

    def _judge(self, key: str, came: list[Said], *, all_well: bool) -> None:
        sent = [  # a worker's error is an answer too, but does not begin a session
            one.answered
            for one in came
            if one.answered.state or (one.asked.act == "open" and one.answered.status == 200)
        ]
        closed = sum(one.asked.act == "close" and one.answered.status == 200 for one in came)
        begun = {one.worker for one in sent if one.state in {"new", ""}}  # `open` reports no state
        moved = {one.worker for one in sent if one.state in {"rebound", "spilled"}}
        stayed = {one.worker for one in sent if one.state == "kept"}
        home = self.homes[key]
        session = self._do(self._look(key))
        self.homes[key] = session.worker if session else None
        elsewhere = stayed - {home} - begun - moved
        assert self.spill or not moved, "moved though it must not"
        if not all_well:  # a request that was refused, or lost, after a move has not announced it
            untold = sum(one.answered.status >= 400 or one.answered.state != "kept" for one in came)
            assert len(elsewhere) <= untold, "on another worker, in silence"
            return
        assert all(one.answered.status in {200, 400} for one in came), "a failure without a reason"
        assert not elsewhere, "on another worker, in silence"
        assert len(begun - moved) <= (home is None) + closed, "begun on two workers at once"
        for one in sent:
            if one.state == "spilled":
                assert one.reason == "spill", "moved though nothing spoke for it"
            assert one.state != "rebound", "moved though its worker is there"
        if session is None:
            assert closed or not sent, "not noted"
        elif sent:
            assert session.worker in begun | moved | stayed, "not where it is said to be"

    async def _look(self, key: str) -> OpenSession | None:
        return await self.store.use(key)

    @rule(key=st.sampled_from(KEYS))
    def expire(self, key: str) -> None:
        """Let one session expire, or all of them where only the clock can do it."""
        if isinstance(self.store, RedisStore):
            assert self.server is not None
            name = f"warmroute:{{{self.name}}}:s:{key}"
            with client.Redis.from_url(self.server.url) as direct:
                if direct.exists(name):
                    direct.hset(name, "expires", "0")
            self.homes[key] = None
        else:
            self.now += 100.0
            self.homes = dict.fromkeys(KEYS)

    @rule(
        router=st.integers(0, 1),
        name=st.sampled_from(NAMES),
        how=st.sampled_from(("well", "well", "full", "broken", "dead")),
    )
    def befall(self, router: int, name: str, how: str) -> None:
        """Give a worker a fault, or let it recover, as seen by one router."""
        self.routers[router % len(self.routers)].wires[name].how = how

    @rule()
    def mend(self) -> None:
        """Let all workers recover, and every router know it."""
        for router in self.routers:
            for name, wire in router.wires.items():
                wire.how = "well"
                worker = router.worker(name)
                worker.become(ProbeState.READY, "for a test")
                worker.draining = False
                if not worker.breaker.closed:
                    worker.breaker.let_in(monotonic())
            router.pool.change(router.pool.models, router.pool.workers)

    @rule(router=st.integers(0, 1), name=st.sampled_from(NAMES), ready=st.booleans())
    def notice(self, router: int, name: str, ready: bool) -> None:
        """A router finds a worker dead, or alive again; the other router may not know yet."""
        worker = self.routers[router % len(self.routers)].worker(name)
        worker.become(ProbeState.READY if ready else ProbeState.DOWN, "for a test")

    @rule(router=st.integers(0, 1), name=st.sampled_from(NAMES), drain=st.booleans())
    def drain(self, router: int, name: str, drain: bool) -> None:
        """A worker is drained, or not any more."""
        chosen = self.routers[router % len(self.routers)]
        chosen.worker(name).draining = drain
        chosen.pool.change(chosen.pool.models, chosen.pool.workers)

    @invariant()
    def the_store_is_there(self) -> None:
        """The store is up, or this would test nothing; and nothing is left booked."""
        for router in self.routers:
            sessions = router.pool.sessions
            assert sessions is not None
            assert not sessions.down
            assert all(worker.load.in_flight == 0 for worker in router.pool.workers)

    def teardown(self) -> None:
        """Stop the store."""
        self._do(self.store.stop())


@pytest.mark.parametrize(
    ("examples", "routers", "shared", "spill"),
    [
        (20, 2, False, True),
        pytest.param(60, 1, False, True, marks=pytest.mark.long),
        pytest.param(60, 2, False, True, marks=pytest.mark.long),
        pytest.param(60, 2, False, False, marks=pytest.mark.long),
        pytest.param(60, 2, True, True, marks=pytest.mark.long),
    ],
)
def test_never_two_workers(
    request: pytest.FixtureRequest, examples: int, routers: int, shared: bool, spill: bool
) -> None:
    """One router or two, which share sessions in memory or in a real Redis."""
    strategy: dict[str, Any] = {"name": "session", "over": "leastload"}
    rules = {"ttl": "100s", "on_worker_lost": "rebind" if spill else "error"}
    strategy |= {"spill": "1ms"} if spill else {}
    told = {"strategy": strategy, "session": rules, "timeouts": {"queue": "10ms"}}
    wanted = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    with asyncio.Runner() as runner:
        more = {
            "server": request.getfixturevalue("redis") if shared else None,
            "routers": [Machine(NAMES, told) for _ in range(routers)],
            "runner": runner,
            "spill": spill,
        }
        run_state_machine_as_test(type("Here", (Routers,), more), settings=wanted)
