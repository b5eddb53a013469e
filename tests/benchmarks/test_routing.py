"""The virtual clock: no request is lost, and the same seed gives the same numbers."""

from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.routing.bounds import PooledEngines
from benchmarks.routing.cache_aware import Affinity, Conductor, Dynamo, Scorers, VllmKvAware
from benchmarks.routing.columns import LARGE, SMALL
from benchmarks.routing.drive import EngineFleet, Placed, VirtualDrive
from benchmarks.routing.peers import Brix, Peer, RayPrefix, SmgTrees
from benchmarks.routing.policies import POLICIES, Policy, policy_named, router
from benchmarks.routing.workloads import MADE, PromptTurn, Talk, Work, chats, ideal, no_reuse
from strategies.api import NoOptions
from strategies.policies.least_load import LeastLoad

#: All but the bounds, which are no policies.
ROUTERS = [policy for policy in POLICIES if policy.make is not None]
FLEET = EngineFleet(SMALL, 4, cache_tokens=1_000_000)
CHATS = chats(1, 4.0, users=30, rounds=4)
KEYS = tuple(range(100, 120))


def run(
    policy: Policy, work: Work = CHATS, fleet: EngineFleet = FLEET
) -> tuple[VirtualDrive, list[Placed]]:
    """Run a workload through a policy."""
    drive = router(policy, fleet, 1)
    return drive, drive.run(work)


def least_load() -> VirtualDrive:
    """Return a fleet with a policy that looks at no prompt."""
    return VirtualDrive(FLEET, lambda _: LeastLoad(NoOptions()))


@pytest.mark.parametrize("policy", ROUTERS, ids=lambda policy: policy.name)
def test_every_request_ends_once(policy: Policy) -> None:
    """Each turn is answered after the one before it, no hit rate is above the ideal, nothing is
    left on any worker, and another run gives the same numbers."""
    drive, done = run(policy)
    ended = {(placed.asked.talk.session, placed.asked.place): placed for placed in done}
    assert len(ended) == len(done) == CHATS.requests
    for (session, place), placed in ended.items():
        job = placed.asked.job
        assert job.computed == job.prompt_tokens
        assert 0 <= (job.cached_tokens or 0) < job.prompt_tokens
        assert 0 < placed.first_s <= placed.ended_s
        if place:
            before = ended[session, place - 1]
            think_s = placed.asked.talk.turns[place].think_s
            assert placed.asked.at_s == pytest.approx(before.asked.at_s + before.ended_s + think_s)
    for seat in drive.seats:
        assert (seat.engine.running, seat.engine.cache.used) == (0, 0)
        assert (seat.load.in_flight, seat.load.kv_tokens) == (0, 0)
    cached = sum(placed.asked.job.cached_tokens or 0 for placed in done)
    best = ideal(CHATS, FLEET.profile, FLEET.block_tokens)
    # The ideal takes talk after talk; interleaved turns change hits on shared prefixes a bit.
    assert cached / sum(placed.asked.prompt.tokens for placed in done) <= best.hit_rate + 0.001
    again = run(policy)[1]
    assert [(p.first_s, p.seat.name) for p in done] == [(p.first_s, p.seat.name) for p in again]


@pytest.mark.parametrize("shortest", [False, True])
@pytest.mark.parametrize("infinite", [False, True])
def test_the_pooled_bounds(*, shortest: bool, infinite: bool) -> None:
    """Every request is answered once; four prompts at once take no longer than one, the fifth
    waits, and what one engine computed another finds."""
    pool = PooledEngines(FLEET, shortest=shortest, infinite=infinite)
    done = pool.run(CHATS)
    assert len({answer.job.number for answer in done}) == len(done) == CHATS.requests
    assert all(engine.running == 0 for engine in pool.engines)
    talks = [Talk(0.0, number, (PromptTurn((), 4_000, 1),)) for number in range(5)]
    once = ideal(Work("one", talks[:1]), SMALL, 512).ttft_s
    five = PooledEngines(FLEET, shortest=shortest, infinite=infinite).run(Work("five", talks))
    firsts = sorted(answer.first_s for answer in five)
    assert firsts == pytest.approx([once] * 4 + [2 * once], rel=0.05)
    keys = tuple(range(100))
    twice = Work(
        "twice",
        [Talk(0.0, 0, [PromptTurn(keys, 51_200 + 9, 1), PromptTurn(keys, 51_200 + 9, 1, 9.0)])],
    )
    last = PooledEngines(FLEET, shortest=shortest, infinite=infinite).run(twice)[-1]
    assert last.job.cached_tokens == 51_200


def test_a_restart_loses_no_request_that_had_no_token() -> None:
    """They go elsewhere; only answers that had begun break off."""
    drive = least_load()
    drive.at(2.0, lambda: drive.restart(drive.seats[0]))
    done = drive.run(no_reuse(1, 40.0, number=200))
    assert drive.cut, "the restart hit nobody: this shows nothing"
    assert len(done) + len(drive.cut) == 200
    assert all(seat.load.in_flight == 0 for seat in drive.seats)


@pytest.mark.parametrize("name", ["prefixaware", "kvaware", "leastload"])
def test_a_long_prompt_is_preempted_and_resumed(name: str) -> None:
    """The short one comes first; what was computed of the long one is not computed again, and is no
    hit either. A strategy that does not preempt keeps the order."""
    preempts = name != "leastload"
    long = PromptTurn(tuple(range(60_000 // 512)), 60_000, 2)
    work = Work("two", [Talk(0.0, 0, (long,)), Talk(1.0, 1, (PromptTurn((), 100, 2),))])
    drive, done = run(policy_named(name), work, EngineFleet(LARGE, 1))
    assert [placed.asked.talk.session for placed in done] == ([1, 0] if preempts else [0, 1])
    assert drive.preempted == preempts
    assert [placed.asked.job.cached_tokens for placed in done] == [0, 0]
    (seat,), alone = drive.seats, LARGE.prefill_seconds(60_000, 0)
    assert alone <= seat.engine.busy_s < alone + 0.1
    assert (seat.load.in_flight, seat.load.kv_tokens, seat.engine.running) == (0, 0, 0)


@pytest.mark.parametrize(
    "rule",
    [
        *(VllmKvAware, partial(Dynamo, weight=1.0), Scorers, Affinity, Conductor),
        *(SmgTrees, RayPrefix, Brix),
    ],
)
def test_a_peer_goes_where_the_prefix_is(rule: Callable[..., Peer]) -> None:
    """With all workers idle, the one that computed it, as its cache or the peer's memory has it."""
    drive = VirtualDrive(FLEET, rule)
    talks = [Talk(30.0 * n, n, (PromptTurn(KEYS, 20 * 512 + 100, 1),)) for n in range(6)]
    done = drive.run(Work("again", talks))
    assert len({placed.seat.name for placed in done}) == 1


@pytest.mark.parametrize("name", MADE)
def test_generated_work_is_the_same_by_seed(name: str) -> None:
    """Another seed gives other work; keys have 64 bits and cover no more than the prompt."""
    work = MADE[name](1)
    assert work == MADE[name](1)
    assert work != MADE[name](2)
    for talk in work.talks:
        for turn in talk.turns:
            assert len(turn.keys) * 512 <= turn.prompt_tokens
            assert all(0 <= key < 1 << 64 for key in turn.keys)
